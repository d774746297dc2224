#pragma once
// The formulas of kernels/rope/rope.h as scalar loops in double.

#include <functional>
#include <vector>

namespace trireme::reference {

struct RopeCase {
  std::size_t tokens, heads, head_dim;
  double eps;
  std::vector<double> in;  ///< [T, H, D], dense
  std::vector<double> positions, cos_sin;
  std::vector<double> weight;  ///< empty: no norm
  std::function<double(double)>
      rounded;          ///< to the type, where the norm alone would store; empty: not at all
  std::size_t rotated;  ///< dims of a head, the first
};
struct RopeOutput {
  std::vector<double> out, rstd;
};
RopeOutput rope_forward(const RopeCase& c);

struct RopeGradients {
  std::vector<double> din, dweight;
};
RopeGradients rope_backward(const RopeCase& c, const std::vector<double>& dout);

}  // namespace trireme::reference
