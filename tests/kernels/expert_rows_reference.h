#pragma once

#include <cstdint>
#include <vector>

#include "kernels/glu/glu_gate.h"

namespace trireme::reference {

struct ExpertRowsTable {
  std::vector<double> begins, row_slot, slot_row;  ///< row_slot of R rows
};
/// chosen [T, slots].
ExpertRowsTable expert_rows(const std::vector<double>& chosen, std::size_t slots,
                            const std::vector<double>& place, const std::vector<double>& sources,
                            std::int64_t experts_here);

std::vector<double> gather_rows(const std::vector<double>& x, std::size_t channels,
                                const std::vector<double>& row_slot, std::size_t slots);
/// addend is empty or [T, channels].
std::vector<double> combine_rows(const std::vector<double>& rows, std::size_t channels,
                                 const std::vector<double>& slot_row, std::size_t slots,
                                 const std::vector<double>& addend);

/// weights are those of rows.
struct WeightedGlu {
  GluGate gate;
  std::vector<double> gate_up, weights;
  std::int64_t ffn;
};
std::vector<double> weighted_glu_forward(const WeightedGlu& args);
struct WeightedGluGradient {
  std::vector<double> gate_up, weights;
};
WeightedGluGradient weighted_glu_backward(const WeightedGlu& args, const std::vector<double>& dh);

}  // namespace trireme::reference
