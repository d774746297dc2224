#pragma once
// Sums of fp32 and bf16 as host execution makes them: in rank order and fp32, rounded once.

#include <bit>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/dtype.h"

namespace trireme::simt {

inline float value_of(const char* at, DType type) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  BFloat16 half;
  std::memcpy(&half, at, sizeof half);
  return to_float(half);
}
inline void put(char* at, DType type, float value) {
  if (type == DType::kF32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const BFloat16 half = to_bfloat16(value);
  std::memcpy(at, &half, sizeof half);
}
/// Of `count` ranks from `first` on: neighbours, then their neighbours, as sums in rank order are.
inline float sum_at(const std::vector<const char*>& of_ranks, std::size_t first, std::size_t count,
                    std::size_t offset, DType type) {
  if (count == 1) return value_of(of_ranks[first] + offset, type);
  const std::size_t half = std::bit_floor(count - 1);
  return sum_at(of_ranks, first, half, offset, type) +
         sum_at(of_ranks, first + half, count - half, offset, type);
}
/// to[i] = the sum over ranks, in their order, of what each has given at place i.
inline void sum(char* to, const std::vector<const char*>& of_ranks, std::size_t count, DType type) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t offset = i * size_of(type);
    put(to + offset, type, sum_at(of_ranks, 0, of_ranks.size(), offset, type));
  }
}

}  // namespace trireme::simt
