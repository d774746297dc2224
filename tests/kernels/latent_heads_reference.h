#pragma once
// The formulas of kernels/latent_heads/latent_heads.h as scalar loops in double.

#include <cstddef>
#include <vector>

namespace trireme::reference {

struct LatentCase {
  std::size_t tokens, heads;
  std::size_t nope, rope, value;
  std::size_t head_dim;  ///< of q, k and v
  bool interleaved;
  std::vector<double> positions, cos_sin;  ///< empty: nothing rotates
};

/// All dense.
std::vector<double> latent_queries(const LatentCase& c, const std::vector<double>& in);
struct LatentKeysOutput {
  std::vector<double> k, v;
};
LatentKeysOutput latent_keys(const LatentCase& c, const std::vector<double>& in,
                             const std::vector<double>& r);
std::vector<double> latent_queries_backward(const LatentCase& c, const std::vector<double>& dq);
struct LatentKeysGradients {
  std::vector<double> din, dr;
};
LatentKeysGradients latent_keys_backward(const LatentCase& c, const std::vector<double>& dk,
                                         const std::vector<double>& dv);
std::vector<double> latent_row(const LatentCase& c, const std::vector<double>& latent,
                               const std::vector<double>& r);
std::vector<double> latent_absorbed_queries(const LatentCase& c, const std::vector<double>& in,
                                            const std::vector<double>& w);
std::vector<double> latent_absorbed_values(const LatentCase& c, const std::vector<double>& u,
                                           const std::vector<double>& w);

}  // namespace trireme::reference
