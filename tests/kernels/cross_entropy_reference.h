#pragma once
// The formulas of kernels/cross_entropy/cross_entropy.h as scalar loops in double.

#include <cstdint>
#include <vector>

namespace trireme::reference {

struct CrossEntropy {
  std::vector<double> maximum, sum, target_logit;  ///< of the part
  std::vector<double> loss, square, dlogits;       ///< taking the part for the whole vocabulary
};
struct CrossEntropyCase {
  std::vector<double> logits;
  std::int64_t columns, first, valid;
  std::vector<double> targets;
  double scale = 1, z_loss = 0;
};
CrossEntropy cross_entropy(const CrossEntropyCase& c);

}  // namespace trireme::reference
