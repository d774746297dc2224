#pragma once
// The formulas of kernels/glu/glu.h as scalar loops in double.

#include <cstdint>
#include <vector>

#include "kernels/glu/glu.h"

namespace trireme::reference {

std::vector<double> glu_forward(GluGate gate, const std::vector<double>& gate_up, std::int64_t ffn);
std::vector<double> glu_backward(GluGate gate, const std::vector<double>& dact,
                                 const std::vector<double>& gate_up, std::int64_t ffn);

}  // namespace trireme::reference
