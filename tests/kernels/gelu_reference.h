#pragma once
// The formulas of kernels/gelu/gelu.h as scalar loops in double.

#include <vector>

namespace trireme::reference {

std::vector<double> gelu_forward(const std::vector<double>& x);
std::vector<double> gelu_backward(const std::vector<double>& dact, const std::vector<double>& x);

}  // namespace trireme::reference
