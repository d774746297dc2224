#pragma once
// What an op leaves of the rows that it makes (QuantizedOutput).

#include "kernels/quantize/quantize_maxima.cuh"

namespace trireme::cuda {

/// A number that is larger where the largest magnitude is; half of it are that one's bits in f32.
template <class T, int kCount>
__device__ __forceinline__ unsigned order_of(const Vector<T, kCount>& y) {
  unsigned most = 0;
#pragma unroll
  for (int k = 0; k < kCount; ++k) most = max(most, bits_of(to_float(y.at[k])) << 1);
  return most;
}

/// amax = max(amax, what a whole warp's threads have found).
__device__ __forceinline__ void join_maximum(std::int32_t* amax, unsigned order) {
  order = warp_max(order);
  if (threadIdx.x % 32 == 0) atomicMax(amax, static_cast<std::int32_t>(order >> 1));
}
/// The same of kThreads that come together; `partials` are free.
template <int kThreads>
__device__ __forceinline__ void join_maximum(std::int32_t* amax, unsigned order,
                                             float (&partials)[kThreads / 32]) {
  if constexpr (kThreads > 32) {
    order = warp_max(order);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = float_of_bits(order);
    __syncthreads();
    order = 0;
    if (threadIdx.x % kThreads < kThreads / 32) order = bits_of(partials[threadIdx.x % kThreads]);
  }
  if (threadIdx.x % kThreads < 32) join_maximum(amax, order);
}

/// Eight values as they are loaded by `kWidth`.
template <int kWidth, class T>
__device__ __forceinline__ Vector<T, 8> load_eight(const T* from) {
  if constexpr (kWidth == 8) {
    return load<8>(from);
  } else {
    Vector<T, 8> values;
#pragma unroll
    for (int k = 0; k < 8; ++k) values.at[k] = from[k];
    return values;
  }
}

/// Codes of eight columns, and the scale of the 128 that sixteen neighbouring threads have. By
/// whole warps: behind the row's end y is 0. kWhole: rows of codes begin at a multiple of 8 bytes.
template <bool kWhole, class F8 = F8E4M3>
__device__ __forceinline__ void leave_codes(const RowCodes& to, std::int64_t row,
                                            std::int64_t column, const Vector<bf16, 8>& y) {
  const unsigned order = warp_max<16>(order_of(y));
  if (column >= to.width) return;
  const Scale of = scale_of(static_cast<std::int32_t>(order >> 1), largest_of<F8>());
  const auto pair = [&](int k) {
    return f8_pair<F8>(__fmul_rn(to_float(y.at[k]), of.factor),
                       __fmul_rn(to_float(y.at[k + 1]), of.factor));
  };
  const std::int64_t at = row * to.width + column;
  const Vector<unsigned, 2> words{pair(0) | pair(2) << 16, pair(4) | pair(6) << 16};
  if constexpr (kWhole) {
    store(reinterpret_cast<unsigned*>(to.codes + at), words);
  } else {
    store_codes(to.codes + at, words, 0, kOwn);
  }
  if (column % RowCodes::kBlock == 0) to.scales[at / RowCodes::kBlock] = of.scale;
}

}  // namespace trireme::cuda
