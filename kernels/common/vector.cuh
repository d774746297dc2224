#pragma once
// Accesses of several elements, each one of the machine's. The compiler splits what a struct's
// assignment stores into its elements, and joins no more than four of them again: eight of 2 bytes
// stay eight accesses, which no result shows. More than a word of small elements is stored as words
// therefore, and scripts/check_sass.py looks at what became of it. On the host accesses check
// alignment.

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

/// kCount elements that move as one access of sizeof(T) * kCount bytes, at most 16.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  static_assert(sizeof(T) * kCount <= 16);
  T at[kCount];
};

/// As many elements as one 16-byte access holds.
template <class T>
inline constexpr int kWide = static_cast<int>(16 / sizeof(T));

/// A number of elements as a type, to hand to a lambda: `decltype(width)::value`.
template <int kCount>
struct Width {
  static constexpr int value = kCount;
};

template <int kCount, class T>
__device__ __forceinline__ Vector<T, kCount> load(const T* from) {
#if !TRIREME_DEVICE
  simt::check_alignment(from, sizeof(T) * kCount);
#endif
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}
template <int kCount, class T>
__device__ __forceinline__ void store(T* to, const Vector<T, kCount>& vector) {
#if !TRIREME_DEVICE
  simt::check_alignment(to, sizeof(T) * kCount);
  *reinterpret_cast<Vector<T, kCount>*>(to) = vector;
#else
  if constexpr (sizeof(T) < 4 && sizeof(vector) > 4) {
    constexpr int kElements = 4 / sizeof(T), kWords = sizeof(vector) / 4;
    Vector<unsigned, kWords> words;
#pragma unroll
    for (int i = 0; i < kWords; ++i) __builtin_memcpy(&words.at[i], &vector.at[i * kElements], 4);
    *reinterpret_cast<Vector<unsigned, kWords>*>(to) = words;
  } else {
    *reinterpret_cast<Vector<T, kCount>*>(to) = vector;
  }
#endif
}

/// Two bf16 as a word, the first in its low half.
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  static_assert(sizeof bits == sizeof pair);
  __builtin_memcpy(&bits, &pair, sizeof bits);
  return bits;
}

}  // namespace trireme::cuda
