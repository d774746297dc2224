#include "kernels/glu_reference.h"

#include <cmath>

#include "kernels/gelu_reference.h"

namespace trireme::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double value_of(GluGate gate, double g) {
  return gate == GluGate::kGelu ? gelu_forward({g})[0] : g * sigmoid(g);
}
double slope_of(GluGate gate, double g) {
  if (gate == GluGate::kGelu) return gelu_backward({1}, {g})[0];
  const double s = sigmoid(g);
  return s * (1 + g * (1 - s));
}

}  // namespace

std::vector<double> glu_forward(GluGate gate, const std::vector<double>& gate_up,
                                std::int64_t ffn) {
  const auto columns = static_cast<std::size_t>(ffn);
  std::vector<double> act(gate_up.size() / 2);
  for (std::size_t i = 0; i < act.size(); ++i) {
    const std::size_t at = i / columns * 2 * columns + i % columns;
    act[i] = value_of(gate, gate_up[at]) * gate_up[at + columns];
  }
  return act;
}

std::vector<double> glu_backward(GluGate gate, const std::vector<double>& dact,
                                 const std::vector<double>& gate_up, std::int64_t ffn) {
  const auto columns = static_cast<std::size_t>(ffn);
  std::vector<double> d(gate_up.size());
  for (std::size_t i = 0; i < dact.size(); ++i) {
    const std::size_t at = i / columns * 2 * columns + i % columns;
    const double g = gate_up[at], u = gate_up[at + columns];
    d[at] = dact[i] * u * slope_of(gate, g);
    d[at + columns] = dact[i] * value_of(gate, g);
  }
  return d;
}

}  // namespace trireme::reference
