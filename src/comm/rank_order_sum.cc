#include "comm/rank_order_sum.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace trireme {

namespace {
// Explicit vectors, because -O2 leaves such loops scalar. Lanes are elements: no sum crosses them.
constexpr std::size_t kLanes = 4;
using Lanes = float __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));
constexpr std::size_t kBlock = 1024;  // 4 KiB: running sums stay in the first-level cache

struct F32 {
  using Value = float;
  static Lanes load(const std::byte* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
  }
  static void store(std::byte* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof lanes); }
  static Value narrow(float value) { return value; }
};

struct BF16 {
  using Value = BFloat16;
  static Lanes load(const std::byte* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return reinterpret_cast<Lanes>(__builtin_convertvector(halves, Words) << 16);
  }
  /// The integer steps of to_bfloat16.
  static void store(std::byte* to, Lanes lanes) {
    const Words bits = reinterpret_cast<Words>(lanes);
    const Words rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const Words quiet = (bits >> 16) | 0x40U;
    const Words nan = reinterpret_cast<Words>((bits & 0x7fffffffU) > 0x7f800000U);
    const Halves halves = __builtin_convertvector((quiet & nan) | (rounded & ~nan), Halves);
    std::memcpy(to, &halves, sizeof halves);
  }
  static Value narrow(float value) { return to_bfloat16(value); }
};

template <class Type>
float scalar(const std::byte* from) {
  typename Type::Value value;
  std::memcpy(&value, from, sizeof value);
  return to_float(value);
}

/// sums[i] (+)= source[i]
template <class Type, bool kAdds>
void take(float* sums, const std::byte* source, std::size_t count) {
  auto* const to = reinterpret_cast<std::byte*>(sums);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Lanes term = Type::load(source + i * sizeof(typename Type::Value));
    F32::store(to + i * 4, kAdds ? F32::load(to + i * 4) + term : term);
  }
  for (; i < count; ++i) {
    const float term = scalar<Type>(source + i * sizeof(typename Type::Value));
    sums[i] = kAdds ? sums[i] + term : term;
  }
}

template <class Type>
void store(std::byte* out, const float* sums, std::size_t count) {
  constexpr std::size_t kSize = sizeof(typename Type::Value);
  const auto* const from = reinterpret_cast<const std::byte*>(sums);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Type::store(out + i * kSize, F32::load(from + i * 4));
  for (; i < count; ++i) {
    const auto value = Type::narrow(sums[i]);
    std::memcpy(out + i * kSize, &value, kSize);
  }
}

/// The sums of `count` elements from byte `offset` of each source, in the first of `levels`; the
/// others hold those of later sources meanwhile.
template <class Type>
void sum_block(std::span<const std::byte* const> sources, std::size_t offset, std::size_t count,
               float (*levels)[kBlock]) {
  if (sources.size() == 1) return take<Type, false>(*levels, sources[0] + offset, count);
  const std::size_t first = std::bit_floor(sources.size() - 1);
  sum_block<Type>(sources.first(first), offset, count, levels);
  const auto rest = sources.subspan(first);
  if (rest.size() == 1) return take<Type, true>(*levels, rest[0] + offset, count);
  sum_block<Type>(rest, offset, count, levels + 1);
  take<F32, true>(*levels, reinterpret_cast<const std::byte*>(levels[1]), count);
}

template <class Type>
void sum_all(std::span<const std::byte* const> sources, std::size_t count, std::byte* out) {
  constexpr std::size_t kSize = sizeof(typename Type::Value);
  constexpr std::size_t kLevels = 32;  // of sources that an int counts; used are those there are
  alignas(16) float levels[kLevels][kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    sum_block<Type>(sources, begin * kSize, size, levels);
    store<Type>(out + begin * kSize, *levels, size);
  }
}
}  // namespace

void sum_in_rank_order(std::span<const std::byte* const> sources, DType dtype, std::size_t count,
                       std::byte* out) {
  expect(dtype == DType::kF32 || dtype == DType::kBF16, "a sum of {} values", name_of(dtype));
  if (dtype == DType::kF32) {
    sum_all<F32>(sources, count, out);
  } else {
    sum_all<BF16>(sources, count, out);
  }
}

}  // namespace trireme
