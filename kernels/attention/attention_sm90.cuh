#pragma once
// What Hopper's kernels of attention share: heads as TMA sees them, products of their tiles by
// wgmma, and the turns of warpgroups.
//
// A tile of kRows tokens of a head stands in shared memory in blocks of 64 columns, each with rows
// of 128 bytes in the 128-byte swizzle. Tokens beyond the sequence and columns beyond the head are
// zeros in it.

#include "kernels/attention/attention_mask.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/ring.cuh"

namespace trireme::cuda::attention {

inline constexpr int kBlockColumns = 64;

/// Elements from one block of 64 columns of a tile to the next.
template <int kRows>
inline constexpr int kBlockElements = int{kRows} * kBlockColumns;

// ---- heads and TMA ----

/// Whether TMA takes them: 16-byte addresses and strides.
inline bool suits_tma(const void* data, std::int64_t stride, std::int64_t head_dim) {
  return aligned_to_16(data) && stride % 8 == 0 && head_dim % 8 == 0;
}

/// Heads of some sequences, as a call has them.
struct SequencesOfHeads {
  const void* data;
  std::int64_t stride;  ///< from token to token, in elements
  std::int64_t sequences, tokens, heads, head_dim;
};
/// They as (column, head, token of the sequence, sequence); a box is `rows` tokens of a block of
/// columns, 128 bytes, of `heads` heads side by side, and ends where its sequence does.
template <class Element = bf16>
TensorMap heads_map(const SequencesOfHeads& of, int rows, int heads = 1) {
  const auto size = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  return tensor_map<4, Element>(
      {.base = static_cast<const Element*>(of.data),
       .dims = {size(of.head_dim), size(of.heads), size(of.tokens), size(of.sequences)},
       .strides = {size(of.head_dim), size(of.stride), size(of.tokens * of.stride)},
       .box = {128 / sizeof(Element), static_cast<std::uint32_t>(heads),
               static_cast<std::uint32_t>(rows), 1}});
}

/// A token of a head.
struct HeadAt {
  int head, token, sequence;
};

/// One thread: kRows tokens of kD columns, counted on `full`.
template <int kD, int kRows>
__device__ __forceinline__ void bring_heads(bf16* tile, const TensorMap& map, const HeadAt& at,
                                            std::uint64_t* full) {
#pragma unroll
  for (int block = 0; block < kD / kBlockColumns; ++block)
    ptx::tma_load_4d(tile + block * kBlockElements<kRows>, map, block * kBlockColumns, at.head,
                     at.token, at.sequence, full);
}

/// One thread: the tile's tokens that the sequence has, once its bytes have been fenced.
template <int kD, int kRows>
__device__ __forceinline__ void store_heads(const TensorMap& map, const bf16* tile,
                                            const HeadAt& at) {
#pragma unroll
  for (int block = 0; block < kD / kBlockColumns; ++block)
    ptx::tma_store_4d(map, block * kBlockColumns, at.head, at.token, at.sequence,
                      tile + block * kBlockElements<kRows>);
  ptx::bulk_commit();
  ptx::bulk_wait_read<0>();
}

// ---- products ----

/// d (+)= a b^T of one 16-wide step, by the width that d has.
template <int kTransposeA, int kTransposeB, int kCount>
__device__ __forceinline__ void wgmma(float (&d)[kCount], std::uint64_t a, std::uint64_t b,
                                      bool accumulate) {
  if constexpr (kCount == 32) {
    ptx::wgmma_m64n64k16_bf16<kTransposeA, kTransposeB>(d, a, b, accumulate);
  } else if constexpr (kCount == 40) {
    ptx::wgmma_m64n80k16_bf16<kTransposeA, kTransposeB>(d, a, b, accumulate);
  } else if constexpr (kCount == 48) {
    ptx::wgmma_m64n96k16_bf16<kTransposeA, kTransposeB>(d, a, b, accumulate);
  } else if constexpr (kCount == 64) {
    ptx::wgmma_m64n128k16_bf16<kTransposeA, kTransposeB>(d, a, b, accumulate);
  } else if constexpr (kCount == 96) {
    ptx::wgmma_m64n192k16_bf16<kTransposeA, kTransposeB>(d, a, b, accumulate);
  } else {
    static_assert(kCount == 128);
    ptx::wgmma_m64n256k16_bf16<kTransposeA, kTransposeB>(d, a, b, accumulate);
  }
}
/// Likewise with a in registers.
template <int kTransposeB, int kCount>
__device__ __forceinline__ void wgmma(float (&d)[kCount], const std::uint32_t (&a)[4],
                                      std::uint64_t b, bool accumulate) {
  if constexpr (kCount == 32) {
    ptx::wgmma_m64n64k16_bf16<kTransposeB>(d, a, b, accumulate);
  } else if constexpr (kCount == 64) {
    ptx::wgmma_m64n128k16_bf16<kTransposeB>(d, a, b, accumulate);
  } else if constexpr (kCount == 96) {
    ptx::wgmma_m64n192k16_bf16<kTransposeB>(d, a, b, accumulate);
  } else {
    static_assert(kCount == 128);
    ptx::wgmma_m64n256k16_bf16<kTransposeB>(d, a, b, accumulate);
  }
}

/// Issues d = a b^T: 64 rows of a tile of kRowsA, from `row` on, with all rows of one of kRowsB.
template <int kD, int kRowsA, int kRowsB>
__device__ __forceinline__ void issue_rows_product(float (&d)[kRowsB / 2], const bf16* a, int row,
                                                   const bf16* b) {
  const std::uint64_t rows_a = ptx::wgmma_descriptor_sw128(a + row * kBlockColumns),
                      rows_b = ptx::wgmma_descriptor_sw128(b);
#pragma unroll
  for (int i = 0; i < kD / 16; ++i) {
    // In a descriptor's units of 16 bytes: 16 columns along a row, and blocks of 64.
    constexpr int kSteps = kBlockColumns / 16;
    const int along = i % kSteps * 2, block = i / kSteps;
    wgmma<0, 0>(d, rows_a + along + block * (kBlockElements<kRowsA> / 8),
                rows_b + along + block * (kBlockElements<kRowsB> / 8), i > 0);
  }
}

/// Issues d (+)= w b: w 64 rows in registers, as operands of 16 of b's kRows rows each.
template <int kRows, int kCount>
__device__ __forceinline__ void issue_weighted_rows(float (&d)[kCount],
                                                    const std::uint32_t (&w)[kRows / 16][4],
                                                    const bf16* b, bool accumulate) {
  constexpr int kBlockBytes = kBlockElements<kRows> * static_cast<int>(sizeof(bf16));
  const std::uint64_t rows = ptx::wgmma_descriptor_sw128_mn(b, kBlockBytes);
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) wgmma<1>(d, w[i], rows + i * 128, accumulate || i > 0);
}

// ---- warpgroups and barriers ----

/// One warp is through with a stage; lanes may have read it by themselves.
__device__ __forceinline__ void release(std::uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
}

/// The named barrier of one consuming warpgroup alone.
__device__ __forceinline__ void sync_warpgroup(int consumer) {
  ptx::barrier_sync(1 + consumer, kWarpgroup);
}

}  // namespace trireme::cuda::attention
