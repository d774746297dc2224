#include "kernels/swiglu_reference.h"

#include <cmath>

namespace trireme::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

std::vector<double> swiglu_forward(const std::vector<double>& gate_up, std::int64_t ffn) {
  const auto columns = static_cast<std::size_t>(ffn);
  std::vector<double> act(gate_up.size() / 2);
  for (std::size_t i = 0; i < act.size(); ++i) {
    const std::size_t at = i / columns * 2 * columns + i % columns;
    act[i] = gate_up[at] * sigmoid(gate_up[at]) * gate_up[at + columns];
  }
  return act;
}

std::vector<double> swiglu_backward(const std::vector<double>& dact,
                                    const std::vector<double>& gate_up, std::int64_t ffn) {
  const auto columns = static_cast<std::size_t>(ffn);
  std::vector<double> d(gate_up.size());
  for (std::size_t i = 0; i < dact.size(); ++i) {
    const std::size_t at = i / columns * 2 * columns + i % columns;
    const double g = gate_up[at], u = gate_up[at + columns], s = sigmoid(g);
    d[at] = dact[i] * u * s * (1 + g * (1 - s));
    d[at + columns] = dact[i] * g * s;
  }
  return d;
}

}  // namespace trireme::reference
