#pragma once
// What grouped fp8 products for Hopper share: the main loop of gemm_fp8_sm90.cuh, over its large
// tiles by a block of its own (an expert's rows seldom fill a cluster's) or, for few, of 128 rows.

#include "kernels/common/segment_tiles.cuh"
#include "kernels/gemm/gemm_fp8_launch.cuh"
#include "kernels/grouped_gemm/grouped_gemm_launch_sm90.cuh"
#include "kernels/grouped_gemm/grouped_gemm_quantized_gpu_table.h"

namespace trireme::cuda {

template <Fp8Sums kSums>
using LargeGroupedTile = LargeFp8Tile<1, kSums>;

/// Codes of `count` matrices [rows, k] behind each other, in boxes of 128 of k.
inline TensorMap codes_maps(const void* codes, std::int64_t count, std::int64_t rows,
                            std::int64_t k, int box_rows) {
  const auto length = static_cast<std::uint64_t>(k), height = static_cast<std::uint64_t>(rows);
  return tensor_map<3, Fp8Code>({.base = static_cast<const Fp8Code*>(codes),
                                 .dims = {length, height, static_cast<std::uint64_t>(count)},
                                 .strides = {length, length * height},
                                 .box = {128, static_cast<std::uint32_t>(box_rows), 1}});
}

/// The kernel's warps: codes() by the first, scales() by the next, consume(consumer) by the
/// warpgroups that multiply.
template <class T, class Codes, class Scales, class Consume>
__device__ __forceinline__ void run_fp8(typename T::Smem& s, const Codes& codes,
                                        const Scales& scales, const Consume& consume) {
  static_assert(T::kCluster == 1 && T::kScaled);
  const int group = warpgroup();
  begin_ring<T>(s, 1 + T::kScaleThreads);
  if (group == 0) {
    ptx::decrease_registers<T::kProducerRegisters>();
    if (threadIdx.x < 32) {
      codes();
    } else if (threadIdx.x < 32 + T::kScaleThreads) {
      scales();
    }
    return;
  }
  ptx::increase_registers<T::kConsumerRegisters>();
  const Turns<T::kConsumers> turns{group - 1};
  if constexpr (T::kInTurn) turns.open();
  consume(group - 1);
  if constexpr (T::kInTurn) turns.close();
  if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
}

/// call(a, b) with the operands' formats as constants; one of them is e4m3.
template <class Args, class F>
void for_formats(const Args& args, const F& call) {
  constexpr Width<static_cast<int>(Fp8::kE4M3)> e4m3;
  constexpr Width<static_cast<int>(Fp8::kE5M2)> e5m2;
  if (args.format_a == DType::kF8E5M2) return call(e5m2, e4m3);
  if (args.format_b == DType::kF8E5M2) return call(e4m3, e5m2);
  call(e4m3, e4m3);
}

// In a file of their own.
void fp8_weights(const GroupedGemmQuantizedWeightsGpuArgs& args);

}  // namespace trireme::cuda
