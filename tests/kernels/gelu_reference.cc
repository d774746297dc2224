#include "kernels/gelu_reference.h"

#include <cmath>

namespace trireme::reference {
namespace {

const double kRoot = std::sqrt(2 / std::acos(-1.0));

}  // namespace

std::vector<double> gelu_forward(const std::vector<double>& x) {
  std::vector<double> act(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    // 1 + tanh u as 2 / (1 + exp(-2u)): equal, and exact where tanh u is near -1.
    const double u = kRoot * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    act[i] = x[i] / (1 + std::exp(-2 * u));
  }
  return act;
}

std::vector<double> gelu_backward(const std::vector<double>& dact, const std::vector<double>& x) {
  std::vector<double> dx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u = kRoot * (x[i] + 0.044715 * x[i] * x[i] * x[i]),
                 du = kRoot * (1 + 3 * 0.044715 * x[i] * x[i]);
    const double t = std::tanh(u);
    dx[i] = dact[i] * (0.5 * (1 + t) + 0.5 * x[i] * (1 - t * t) * du);
  }
  return dx;
}

}  // namespace trireme::reference
