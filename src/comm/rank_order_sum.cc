#include "comm/rank_order_sum.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace trireme {

namespace {
// Explicit vectors, because -O2 leaves such loops scalar. Lanes are elements: no sum crosses them.
constexpr std::size_t kLanes = 4;
using Lanes = float __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));
constexpr std::size_t kBlock = 1024;  // 4 KiB: the running sum stays in the first-level cache

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

template <class Type>
void sum_block(std::span<const std::byte* const> sources, std::size_t begin, std::size_t count,
               std::byte* out) {
  constexpr std::size_t kSize = sizeof(typename Type::Value);
  alignas(16) float sum[kBlock];
  auto* const sum_bytes = reinterpret_cast<std::byte*>(sum);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const std::byte* const source = sources[s] + begin * kSize;
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const Lanes term = Type::load(source + i * kSize);
      F32::store(sum_bytes + i * 4, s == 0 ? term : F32::load(sum_bytes + i * 4) + term);
    }
    for (; i < count; ++i) {
      const float term = scalar<Type>(source + i * kSize);
      sum[i] = s == 0 ? term : sum[i] + term;
    }
  }
  std::byte* const target = out + begin * kSize;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    Type::store(target + i * kSize, F32::load(sum_bytes + i * 4));
  for (; i < count; ++i) {
    const auto value = Type::narrow(sum[i]);
    std::memcpy(target + i * kSize, &value, kSize);
  }
}

template <class Type>
void sum_all(std::span<const std::byte* const> sources, std::size_t count, std::byte* out) {
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    sum_block<Type>(sources, begin, std::min(kBlock, count - begin), out);
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
