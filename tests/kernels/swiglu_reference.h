#pragma once
// The formulas of kernels/swiglu/swiglu.h as scalar loops in double.

#include <cstdint>
#include <vector>

namespace trireme::reference {

std::vector<double> swiglu_forward(const std::vector<double>& gate_up, std::int64_t ffn);
std::vector<double> swiglu_backward(const std::vector<double>& dact,
                                    const std::vector<double>& gate_up, std::int64_t ffn);

}  // namespace trireme::reference
