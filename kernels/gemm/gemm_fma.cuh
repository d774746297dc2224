#pragma once
// The f32 main loop: full f32, tiles in shared memory, the next operands in registers.

#include "kernels/gemm/gemm_tile.cuh"

namespace trireme::cuda {

/// A block's tile of kSide x kSide sums, kPer x kPer a thread: kPer / 2 neighbours in each half.
template <int kSide, int kPer>
struct FmaTile {
  static constexpr int kM = kSide, kN = kSide, kK = 16, kSums = kPer, kWide = kPer / 2;
  static constexpr int kAcross = kSide / kPer, kThreads = kAcross * kAcross;
  /// Elements of one operand that a thread brings in a step, four neighbours at a time.
  static constexpr int kFours = kSide * kK / kThreads / 4;
  struct Smem {
    alignas(16) float a[kK][kSide + 4];
    alignas(16) float b[kK][kSide + 4];
  };
};
using LargeFmaTile = FmaTile<128, 8>;
using SmallFmaTile = FmaTile<32, 4>;

/// How an operand's tile is loaded: four neighbours along k, or (kMnInner) along the other side.
template <class T, bool kMnInner>
struct FmaOperand {
  Vector<float, 4> four[T::kFours];

  __device__ __forceinline__ static int mn_of(int i) {
    const int index = i * T::kThreads + static_cast<int>(threadIdx.x);
    return kMnInner ? index % (T::kM / 4) * 4 : index / (T::kK / 4);
  }
  __device__ __forceinline__ static int k_of(int i) {
    const int index = i * T::kThreads + static_cast<int>(threadIdx.x);
    return kMnInner ? index / (T::kM / 4) : index % (T::kK / 4) * 4;
  }

  template <class Source>
  __device__ __forceinline__ void fetch(const float* global, std::int64_t mn_count, std::int64_t k0,
                                        std::int64_t k_count, bool wide, Source source) {
#pragma unroll
    for (int i = 0; i < T::kFours; ++i) {
      const std::int64_t mn = source(mn_of(i)), k = k0 + k_of(i);
      const std::int64_t rest = mn < 0 || k >= k_count ? 0 : kMnInner ? mn_count - mn : k_count - k;
      const float* from = global + (kMnInner ? k * mn_count + mn : mn * k_count + k);
      if (wide && rest > 0) {
        four[i] = load<4>(from);
        continue;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) four[i].at[e] = e < rest ? from[e] : 0.0F;
    }
  }
  __device__ __forceinline__ void keep(float (&tile)[T::kK][T::kM + 4]) const {
#pragma unroll
    for (int i = 0; i < T::kFours; ++i) {
      if constexpr (kMnInner) {
        store(&tile[k_of(i)][mn_of(i)], four[i]);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) tile[k_of(i) + e][mn_of(i)] = four[i].at[e];
      }
    }
  }
};

/// The sums of a thread.
template <class T>
struct FmaSums {
  float at[T::kSums][T::kSums];
};

/// Adds a tile's products over K to `sums`. `source_a`, `source_b`: which row of op(a), column of
/// op(b) stands at one of the tile, or -1. Ends with a barrier.
template <class T, bool kTransposeA, bool kTransposeB, class SourceA, class SourceB>
__device__ __forceinline__ void multiply_fma(FmaSums<T>& sums, typename T::Smem& shared,
                                             const Product<float>& product, const SourceA& source_a,
                                             const SourceB& source_b) {
  constexpr int kHalf = T::kN / 2, kWide = T::kWide;
  const int across = static_cast<int>(threadIdx.x) % T::kAcross,
            down = static_cast<int>(threadIdx.x) / T::kAcross;
  FmaOperand<T, kTransposeA> a;
  FmaOperand<T, !kTransposeB> b;
  const auto fetch = [&](std::int64_t k0) {
    a.fetch(product.a, product.m, k0, product.k, product.wide_a, source_a);
    b.fetch(product.b, product.n, k0, product.k, product.wide_b, source_b);
  };
  if (product.k > 0) fetch(0);
  for (std::int64_t k0 = 0; k0 < product.k; k0 += T::kK) {
    a.keep(shared.a);
    b.keep(shared.b);
    __syncthreads();
    if (k0 + T::kK < product.k) fetch(k0 + T::kK);
    const int count = static_cast<int>(min(std::int64_t{T::kK}, product.k - k0));
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      Vector<float, kWide> x[2], y[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        x[half] = load<kWide>(&shared.a[k][half * (T::kM / 2) + down * kWide]);
        y[half] = load<kWide>(&shared.b[k][half * kHalf + across * kWide]);
      }
#pragma unroll
      for (int i = 0; i < T::kSums; ++i) {
#pragma unroll
        for (int j = 0; j < T::kSums; ++j)
          sums.at[i][j] += x[i / kWide].at[i % kWide] * y[j / kWide].at[j % kWide];
      }
    }
    __syncthreads();
  }
}

/// Hands a thread's sums to the epilogue. `row0`, `column0`: of the block's tile in the result.
template <class T, class E>
__device__ __forceinline__ void finish_thread(const FmaSums<T>& sums, const E& epilogue,
                                              const DirectSink<typename E::Out>& sink,
                                              std::int64_t row0, std::int64_t column0,
                                              std::int64_t rows, std::int64_t columns) {
  constexpr int kHalf = T::kN / 2, kWide = T::kWide;
  const int across = static_cast<int>(threadIdx.x) % T::kAcross,
            down = static_cast<int>(threadIdx.x) / T::kAcross;
#pragma unroll
  for (int j = 0; j < (E::kDual ? kWide : T::kSums); j += 2) {
    const std::int64_t c = column0 + j / kWide * kHalf + across * kWide + j % kWide;
    if (c >= columns) continue;
    const auto state = epilogue.column(c);
#pragma unroll
    for (int i = 0; i < T::kSums; ++i) {
      const std::int64_t r = row0 + i / kWide * (T::kM / 2) + down * kWide + i % kWide;
      if (r >= rows) continue;
      const float* sum = sums.at[i];
      if constexpr (E::kDual) {
        epilogue(sink, r, c, state, epilogue.load(r, c), {sum[j], sum[j + 1]},
                 {sum[kWide + j], sum[kWide + j + 1]});
      } else {
        epilogue(sink, r, c, state, epilogue.load(r, c), {sum[j], sum[j + 1]});
      }
    }
  }
}

template <class T, bool kTransposeA, bool kTransposeB, class E>
__global__ void __launch_bounds__(T::kThreads)
    gemm_fma_kernel(const Product<float> product, const E epilogue,
                    const DirectSink<typename E::Out> sink) {
  static_assert(!E::kDual || kTransposeB, "two products want weights of [N, K]");
  constexpr int kHalf = T::kN / 2;
  constexpr int kResultN = E::kDual ? kHalf : T::kN;
  const std::int64_t columns = E::kDual ? product.n / 2 : product.n;
  const TileAt tile =
      tile_at(blockIdx.x, (product.m + T::kM - 1) / T::kM, (columns + kResultN - 1) / kResultN);
  const std::int64_t row0 = tile.row * T::kM;
  FmaSums<T> sums = {};
  multiply_fma<T, kTransposeA, kTransposeB>(
      sums, smem<typename T::Smem>(), product,
      [&](int m) { return row0 + m < product.m ? row0 + m : -1; },
      [&](int n) { return source_column<E::kDual, kHalf, T::kN>(tile.column, n, product.n); });
  finish_thread<T>(sums, epilogue, sink, row0, tile.column * kResultN, product.m, columns);
}

}  // namespace trireme::cuda
