#pragma once

#include <cstdint>

#include "base/exact_sum.h"
#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

using Word = unsigned long long;  // NOLINT: the type that atomicAdd takes

/// ExactSum::add for a sum of squares, by integer additions.
__device__ __forceinline__ void add_exactly(Word* words, double value) {
  if (!(value >= 0) || value == static_cast<double>(INFINITY)) {
    atomicAdd(&words[ExactSum::kWords - 1], Word{1});
    return;
  }
  const auto bits = __builtin_bit_cast(Word, value);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);  // 0 for subnormals and -0
  const Word fraction = bits & ((Word{1} << 52) - 1);
  const Word mantissa = exponent == 0 ? fraction : fraction | Word{1} << 52;
  if (mantissa == 0) return;
  const int position = exponent == 0 ? 0 : exponent - 1;  // of the mantissa's last bit
  const int shift = position % 32;
  // The mantissa shifted is one of three words of 32 bits.
  const Word low = mantissa << shift, high = shift == 0 ? 0 : mantissa >> (64 - shift);
  Word* word = words + position / 32;
  atomicAdd(&word[0], low & 0xffffffffU);
  atomicAdd(&word[1], low >> 32);
  if (high != 0) atomicAdd(&word[2], high);
}

}  // namespace trireme::cuda
