#include "kernels/expert_rows_reference.h"

#include "kernels/glu_reference.h"

namespace trireme::reference {
namespace {

std::size_t index_of(double value) { return static_cast<std::size_t>(value); }

}  // namespace

ExpertRowsTable expert_rows(const std::vector<double>& chosen, std::size_t slots,
                            const std::vector<double>& place, const std::vector<double>& sources,
                            std::int64_t experts_here) {
  ExpertRowsTable table;
  table.slot_row.assign(chosen.size(), -1);
  const auto rows = [&] { return static_cast<double>(table.row_slot.size()); };
  for (std::int64_t g = 0; g < experts_here; ++g) {
    for (std::size_t p = 0; p + 1 < sources.size(); ++p) {
      table.begins.push_back(rows());
      const std::size_t end = index_of(sources[p + 1]) * slots;
      for (std::size_t slot = index_of(sources[p]) * slots; slot < end; ++slot) {
        if (place[index_of(chosen[slot])] != static_cast<double>(g)) continue;
        table.slot_row[slot] = rows();
        table.row_slot.push_back(static_cast<double>(slot));
      }
    }
  }
  table.begins.push_back(rows());
  return table;
}

std::vector<double> gather_rows(const std::vector<double>& x, std::size_t channels,
                                const std::vector<double>& row_slot, std::size_t slots) {
  std::vector<double> rows;
  for (const double slot : row_slot) {
    for (std::size_t c = 0; c < channels; ++c)
      rows.push_back(x[index_of(slot) / slots * channels + c]);
  }
  return rows;
}

std::vector<double> combine_rows(const std::vector<double>& rows, std::size_t channels,
                                 const std::vector<double>& slot_row, std::size_t slots,
                                 const std::vector<double>& addend) {
  std::vector<double> y(slot_row.size() / slots * channels);
  for (std::size_t i = 0; i < y.size(); ++i) {
    for (std::size_t j = 0; j < slots; ++j) {
      const double row = slot_row[i / channels * slots + j];
      if (row >= 0) y[i] += rows[index_of(row) * channels + i % channels];
    }
    if (!addend.empty()) y[i] += addend[i];
  }
  return y;
}

std::vector<double> weighted_glu_forward(const WeightedGlu& args) {
  std::vector<double> h = glu_forward(args.gate, args.gate_up, args.ffn);
  for (std::size_t i = 0; i < h.size(); ++i) h[i] *= args.weights[i / index_of(args.ffn)];
  return h;
}

WeightedGluGradient weighted_glu_backward(const WeightedGlu& args, const std::vector<double>& dh) {
  const std::size_t ffn = index_of(args.ffn);
  WeightedGluGradient d{glu_backward(args.gate, dh, args.gate_up, args.ffn),
                        std::vector<double>(args.weights.size())};
  const std::vector<double> act = glu_forward(args.gate, args.gate_up, args.ffn);
  for (std::size_t i = 0; i < d.gate_up.size(); ++i) d.gate_up[i] *= args.weights[i / (2 * ffn)];
  for (std::size_t i = 0; i < dh.size(); ++i) d.weights[i / ffn] += dh[i] * act[i];
  return d;
}

}  // namespace trireme::reference
