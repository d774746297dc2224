#include "kernels/update_8bit_reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/update/moment_codes.h"
#include "support/golden.h"

namespace trireme::reference {

const std::vector<float>& moment_map(bool of_signed) {
  static const auto of = [](const char* name) {
    const GoldenTensors golden = read_tensors(golden_path("moments/tensors.safetensors"));
    const std::vector<double>& map = golden.at(name).values;
    return std::vector<float>(map.begin(), map.end());
  };
  static const std::vector<float> kSigned = of("map.signed"), kUnsigned = of("map.unsigned");
  return of_signed ? kSigned : kUnsigned;
}

Moments encode_moments(const std::vector<double>& x, bool of_signed) {
  const std::vector<float>& map = moment_map(of_signed);
  constexpr auto kBlock = static_cast<std::size_t>(kMomentBlock);
  Moments moments;
  for (std::size_t begin = 0; begin < x.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, x.size());
    float absmax = 0;
    for (std::size_t i = begin; i < end; ++i)
      absmax = std::max(absmax, std::abs(static_cast<float>(x[i])));
    moments.absmax.push_back(absmax);
    const float factor = 1.0F / std::max(absmax, 1e-38F);
    for (std::size_t i = begin; i < end; ++i) {
      const float v = static_cast<float>(x[i]) * factor;
      int code = 0;
      for (std::size_t k = 0; k + 1 < map.size(); ++k) code += (map[k] + map[k + 1]) / 2 < v;
      moments.codes.push_back(code);
    }
  }
  return moments;
}

std::vector<double> decode_moments(const Moments& from, bool of_signed) {
  const std::vector<float>& map = moment_map(of_signed);
  std::vector<double> x;
  for (std::size_t i = 0; i < from.codes.size(); ++i) {
    const auto absmax = static_cast<float>(from.absmax[i / static_cast<std::size_t>(kMomentBlock)]);
    x.push_back(map[static_cast<std::size_t>(from.codes[i])] * absmax);
  }
  return x;
}

}  // namespace trireme::reference
