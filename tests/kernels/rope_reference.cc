#include "kernels/rope_reference.h"

#include <cmath>

namespace trireme::reference {

RopeOutput rope_forward(const RopeCase& c) {
  RopeOutput result{std::vector<double>(c.in.size()), std::vector<double>(c.tokens * c.heads)};
  const std::size_t half = c.rotated / 2;
  for (std::size_t row = 0; row < c.tokens * c.heads; ++row) {
    const double* in = &c.in[row * c.head_dim];
    double square = 0;
    for (std::size_t d = 0; d < c.head_dim; ++d)
      square += in[d] * in[d] / static_cast<double>(c.head_dim);
    result.rstd[row] = 1 / std::sqrt(square + c.eps);
    const auto n = [&](std::size_t d) {
      if (c.weight.empty()) return in[d];
      const double value = in[d] * result.rstd[row] * c.weight[d];
      return c.rounded ? c.rounded(value) : value;
    };
    const double* angles =
        &c.cos_sin[static_cast<std::size_t>(c.positions[row / c.heads]) * c.rotated];
    for (std::size_t d = c.rotated; d < c.head_dim; ++d) result.out[row * c.head_dim + d] = n(d);
    for (std::size_t j = 0; j < half; ++j) {
      result.out[row * c.head_dim + j] = n(j) * angles[j] - n(j + half) * angles[half + j];
      result.out[row * c.head_dim + j + half] = n(j + half) * angles[j] + n(j) * angles[half + j];
    }
  }
  return result;
}

RopeGradients rope_backward(const RopeCase& c, const std::vector<double>& dout) {
  RopeGradients result{std::vector<double>(c.in.size()), std::vector<double>(c.weight.size())};
  const std::size_t half = c.rotated / 2;
  const std::vector<double> rstd = rope_forward(c).rstd;
  for (std::size_t row = 0; row < c.tokens * c.heads; ++row) {
    const double* angles =
        &c.cos_sin[static_cast<std::size_t>(c.positions[row / c.heads]) * c.rotated];
    const double* d = &dout[row * c.head_dim];
    std::vector<double> dn(d, d + c.head_dim);
    for (std::size_t j = 0; j < half; ++j) {
      dn[j] = d[j] * angles[j] + d[j + half] * angles[half + j];
      dn[j + half] = d[j + half] * angles[j] - d[j] * angles[half + j];
    }
    const auto n = [&](std::size_t i) { return c.in[row * c.head_dim + i] * rstd[row]; };
    double mean = 0;
    for (std::size_t i = 0; i < c.weight.size(); ++i) {
      mean += dn[i] * c.weight[i] * n(i) / static_cast<double>(c.head_dim);
      result.dweight[i] += dn[i] * n(i);
    }
    for (std::size_t i = 0; i < c.head_dim; ++i) {
      result.din[row * c.head_dim + i] =
          c.weight.empty() ? dn[i] : rstd[row] * (dn[i] * c.weight[i] - n(i) * mean);
    }
  }
  return result;
}

}  // namespace trireme::reference
