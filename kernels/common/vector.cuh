#pragma once
// Accesses of several elements. On the host they check alignment, as compilers may split them.

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
#endif
  *reinterpret_cast<Vector<T, kCount>*>(to) = vector;
}

}  // namespace trireme::cuda
