#include "kernels/update/moment_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace trireme {

namespace {

enum class Sign : std::uint8_t { kSigned, kUnsigned };

/// The middles of `parts` even parts of [0.1, 1], rounded where torch.linspace rounds.
std::vector<float> middles(int parts) {
  std::vector<float> bounds;
  const float step = (1.0F - 0.1F) / static_cast<float>(parts);
  for (int k = 0; k <= parts; ++k) {
    const bool lower = k < (parts + 1) / 2;
    bounds.push_back(lower ? std::fma(step, static_cast<float>(k), 0.1F)
                           : std::fma(-step, static_cast<float>(parts - k), 1.0F));
  }
  std::vector<float> middles;
  for (std::size_t k = 0; k + 1 < bounds.size(); ++k)
    middles.push_back((bounds[k] + bounds[k + 1]) / 2);
  return middles;
}

std::vector<float> map_of(Sign sign) {
  constexpr float kDecades[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  std::vector<float> map = {0, 1};
  int parts = sign == Sign::kSigned ? 1 : 2;
  for (const float decade : kDecades) {
    for (const float middle : middles(parts)) {
      map.push_back(decade * middle);
      if (sign == Sign::kSigned) map.push_back(-decade * middle);
    }
    parts *= 2;
  }
  std::sort(map.begin(), map.end());
  return map;
}

class Cells {
 public:
  explicit Cells(const std::vector<float>& map) {
    for (std::size_t i = 0; i + 1 < map.size(); ++i)
      midpoints_.push_back((map[i] + map[i + 1]) / 2);
  }

  /// The cell of magnitudes that begin with `bits`.
  [[nodiscard]] std::uint32_t cell(std::uint32_t bits, int shift, bool negative) const {
    const auto code_of = [&](std::uint32_t low) { return this->code_of(bits | low, negative); };
    const std::uint32_t all = (1U << shift) - 1;
    const int code = code_of(0), next = code + (negative ? -1 : 1);
    std::uint32_t last = 0, beyond = all + 1;  // the last with that code is below `beyond`
    while (beyond - last > 1) {
      const std::uint32_t middle = (last + beyond) / 2;
      (code_of(middle) == code ? last : beyond) = middle;
    }
    expect(code_of(all) == code || code_of(all) == next, "two midpoints in a cell");
    return static_cast<std::uint32_t>(code) | last << 8;
  }

 private:
  [[nodiscard]] int code_of(std::uint32_t magnitude, bool negative) const {
    const float v = std::bit_cast<float>(negative ? magnitude | 0x80000000U : magnitude);
    return static_cast<int>(std::lower_bound(midpoints_.begin(), midpoints_.end(), v) -
                            midpoints_.begin());
  }
  std::vector<float> midpoints_;
};

MomentCodes codes_of(Sign sign) {
  const std::vector<float> map = map_of(sign);
  expect(map.size() == 256, "{} values of 8 bits", map.size());
  MomentCodes codes = {};
  std::copy(map.begin(), map.end(), codes.value);
  // From below the smallest midpoint, where all are 0, to 1, where none is left.
  codes.shift = sign == Sign::kSigned ? 17 : 16;
  codes.first =
      static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(0x1p-23F) >> codes.shift) - 1;
  const auto end = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(1.0F) >> codes.shift) + 1;
  codes.count = end - codes.first;
  codes.negative = sign == Sign::kSigned ? codes.count : 0;
  expect(codes.count + codes.negative <= MomentCodes::kCellsMost, "{} cells", codes.count);
  const Cells cells(map);
  for (std::int32_t i = 0; i < codes.count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(codes.first + i) << codes.shift;
    codes.cells[i] = cells.cell(bits, codes.shift, false);
    if (codes.negative > 0) codes.cells[codes.negative + i] = cells.cell(bits, codes.shift, true);
  }
  return codes;
}

}  // namespace

std::uint8_t moment_code(const MomentCodes& map, float x, float absmax) {
  const float v = x * (1.0F / (absmax < kMomentLeast ? kMomentLeast : absmax));
  const auto bits = std::bit_cast<std::int32_t>(v);
  const bool below = map.negative > 0 && bits < 0;
  const std::int32_t magnitude = bits & 0x7fffffff, low = magnitude & ((1 << map.shift) - 1);
  const std::int32_t cell = std::clamp((magnitude >> map.shift) - map.first, 0, map.count - 1);
  const auto found = static_cast<std::int32_t>(map.cells[cell + (below ? map.negative : 0)]);
  const int step = below ? -1 : 1;
  return static_cast<std::uint8_t>((found & 255) + (low > found >> 8 ? step : 0));
}

const MomentTables& moment_tables() {
  static const MomentTables kTables = {codes_of(Sign::kSigned), codes_of(Sign::kUnsigned)};
  return kTables;
}

}  // namespace trireme
