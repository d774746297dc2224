#pragma once
// The formulas of kernels/norm/norm.h as scalar loops in double.

#include <vector>

#include "kernels/norm/norm.h"

namespace trireme::reference {

struct NormCase {
  NormOp op;
  double eps;
  std::vector<double> s, weight, bias;  ///< s [T, C]; bias may be empty
};
struct NormOutput {
  std::vector<double> y, mean, rstd;
};
NormOutput norm_forward(const NormCase& c);

struct NormGradients {
  std::vector<double> ds, dweight, dbias;
};
NormGradients norm_backward(const NormCase& c, const std::vector<double>& dy);

}  // namespace trireme::reference
