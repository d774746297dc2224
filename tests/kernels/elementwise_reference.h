#pragma once
// The formulas of kernels/elementwise/elementwise.h as scalar loops in double.

#include <cstdint>
#include <vector>

namespace trireme::reference {

std::vector<double> accumulate(std::vector<double> destination, const std::vector<double>& source);
std::vector<double> column_sum(std::vector<double> sum, const std::vector<double>& x);

}  // namespace trireme::reference
