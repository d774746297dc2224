#include "kernels/nf4_reference.h"

#include <algorithm>
#include <cmath>

namespace trireme::reference {

namespace {
constexpr std::size_t kBlock = 64;
}

float nf4_level(int code) {
  // As bitsandbytes prints them.
  constexpr double kLevels[] = {-1.0,
                                -0.6961928009986877,
                                -0.5250730514526367,
                                -0.39491748809814453,
                                -0.28444138169288635,
                                -0.18477343022823334,
                                -0.09105003625154495,
                                0.0,
                                0.07958029955625534,
                                0.16093020141124725,
                                0.24611230194568634,
                                0.33791524171829224,
                                0.44070982933044434,
                                0.5626170039176941,
                                0.7229568362236023,
                                1.0};
  return static_cast<float>(kLevels[code]);
}

Nf4 nf4_quantize(const std::vector<double>& x) {
  Nf4 out;
  out.codes.resize((x.size() + 1) / 2, 7);
  for (std::size_t begin = 0; begin < x.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, x.size());
    const bool whole = end == begin + kBlock;
    float absmax = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const auto magnitude = static_cast<float>(std::abs(x[i]));
      if (!(magnitude <= absmax)) absmax = magnitude;  // a NaN too
      if (std::isnan(absmax)) break;
    }
    const float most = absmax < 1e-38F ? 1e-38F : absmax, factor = 1 / most;
    out.absmax.push_back(whole ? absmax : most);
    for (std::size_t i = begin; i < end; ++i) {
      const auto value = static_cast<float>(x[i]);
      const float v = whole ? value * factor : value / most;
      int code = 0;
      for (int k = 0; k < 15; ++k) code += v <= (nf4_level(k) + nf4_level(k + 1)) / 2 ? 0 : 1;
      double& byte = out.codes[i / 2];
      byte = i % 2 == 0 ? 16 * code + 7 : byte - 7 + code;
    }
  }
  return out;
}

std::vector<double> nf4_dequantize(const Nf4& from, std::size_t count) {
  std::vector<double> x;
  for (std::size_t i = 0; i < count; ++i) {
    const int byte = static_cast<int>(from.codes[i / 2]), code = i % 2 == 0 ? byte / 16 : byte % 16;
    x.push_back(nf4_level(code) * static_cast<float>(from.absmax[i / kBlock]));
  }
  return x;
}

}  // namespace trireme::reference
