#pragma once
// Sums of fp32 and bf16 as host execution makes them: in rank order and fp32, rounded once.

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
/// to[i] = the sum over ranks, in their order, of what each has given at place i.
inline void sum(char* to, const std::vector<const char*>& of_ranks, std::size_t count, DType type) {
  for (std::size_t i = 0; i < count; ++i) {
    float value = value_of(of_ranks[0] + i * size_of(type), type);
    for (std::size_t rank = 1; rank < of_ranks.size(); ++rank)
      value += value_of(of_ranks[rank] + i * size_of(type), type);
    put(to + i * size_of(type), type, value);
  }
}

}  // namespace trireme::simt
