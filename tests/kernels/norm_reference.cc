#include "kernels/norm_reference.h"

#include <cmath>

namespace trireme::reference {

NormOutput norm_forward(const NormCase& c) {
  const std::size_t channels = c.weight.size(), tokens = c.s.size() / channels;
  NormOutput out{std::vector<double>(c.s.size()), std::vector<double>(tokens),
                 std::vector<double>(tokens)};
  for (std::size_t t = 0; t < tokens; ++t) {
    const double* s = &c.s[t * channels];
    double mean = 0, square = 0;
    if (c.op == NormOp::kLayer) {
      for (std::size_t i = 0; i < channels; ++i) mean += s[i] / static_cast<double>(channels);
    }
    for (std::size_t i = 0; i < channels; ++i)
      square += (s[i] - mean) * (s[i] - mean) / static_cast<double>(channels);
    out.mean[t] = mean;
    out.rstd[t] = 1 / std::sqrt(square + c.eps);
    for (std::size_t i = 0; i < channels; ++i) {
      out.y[t * channels + i] =
          (s[i] - mean) * out.rstd[t] * c.weight[i] + (c.bias.empty() ? 0 : c.bias[i]);
    }
  }
  return out;
}

NormGradients norm_backward(const NormCase& c, const std::vector<double>& dy) {
  const std::size_t channels = c.weight.size(), tokens = c.s.size() / channels;
  const NormOutput forward = norm_forward(c);
  NormGradients out{std::vector<double>(c.s.size()), std::vector<double>(channels),
                    std::vector<double>(channels)};
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto n = [&](std::size_t i) {
      return (c.s[t * channels + i] - forward.mean[t]) * forward.rstd[t];
    };
    double mean_g = 0, mean_gn = 0;
    for (std::size_t i = 0; i < channels; ++i) {
      const double d = dy[t * channels + i];
      out.dweight[i] += d * n(i);
      out.dbias[i] += d;
      if (c.op == NormOp::kLayer) mean_g += d * c.weight[i] / static_cast<double>(channels);
      mean_gn += d * c.weight[i] * n(i) / static_cast<double>(channels);
    }
    for (std::size_t i = 0; i < channels; ++i) {
      out.ds[t * channels + i] =
          forward.rstd[t] * (dy[t * channels + i] * c.weight[i] - mean_g - n(i) * mean_gn);
    }
  }
  return out;
}

}  // namespace trireme::reference
