#pragma once
// Sums over tokens in two stages. The first leaves a row of sums for each piece of the tokens, the
// second adds these. How many pieces there are follows from the shape alone, so that every GPU
// gives the same bits.
//
// As many blocks as a GPU holds at once share the pieces, each as long a stretch of them as any
// other: a piece is kParts parts, each summed apart and then added in order, wherever that is done.
// A block that has a piece's first parts adds these; parts behind that are left to the second
// stage.

#include <type_traits>

#include "kernels/common/gpu_scratch.h"
#include "kernels/common/vector.cuh"

namespace trireme::cuda {

/// Parts of pieces: of blocks that have whole pieces each, or of some other number of blocks.
inline constexpr int kParts = gpu_scratch::kPartsOfPiece;

/// The first part that a block has; of block + 1 the end. Integer: wide enough for all parts times
/// the blocks.
template <class Integer = std::int64_t>
__host__ __device__ __forceinline__ Integer first_part(std::type_identity_t<Integer> block,
                                                       std::type_identity_t<Integer> blocks,
                                                       std::type_identity_t<Integer> pieces) {
  return block * pieces * kParts / blocks;
}

/// Where a part's sums go: parts that a block adds stand in `kept`, [columns] of shared memory,
/// until the last of them.
struct PartSums {
  float* kept;
  float* to;
  bool add;

  template <int kCount>
  __device__ __forceinline__ void put(std::int64_t column, Vector<float, kCount> sums) const {
    if (add) {
      const Vector<float, kCount> before = load<kCount>(kept + column);
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums.at[k] = before.at[k] + sums.at[k];
    }
    store(to + column, sums);
  }
};

/// A part on its way through a block.
struct Part {
  int piece, part, begin, end;  ///< of the parts of this piece that the block has

  /// In `sums`, [pieces kParts, columns].
  [[nodiscard]] __device__ __forceinline__ PartSums of(float* sums, std::int64_t columns,
                                                       float* kept) const {
    const bool added = begin == 0, last = part + 1 == end;
    float* slot = sums + (std::int64_t{piece} * kParts + (added ? 0 : part)) * columns;
    return {kept, added && !last ? kept : slot, added && part > 0};
  }
};

/// The block's share of `pieces`, each of `turns` turns: visit(piece, turn, next) for each turn,
/// next that of the same piece which follows or -1, first(piece, turn) before a piece's first, and
/// done(part) behind each part. Uniform in a block. Numbers of 32 bits, for the registers.
template <class First, class Visit, class Done>
__device__ __forceinline__ void for_parts(int pieces, int turns, First first, Visit visit,
                                          Done done) {
  const auto begin = static_cast<int>(first_part(blockIdx.x, gridDim.x, pieces)),
             end = static_cast<int>(first_part(std::int64_t{blockIdx.x} + 1, gridDim.x, pieces));
#pragma unroll 1
  for (int at = begin; at < end; ++at) {
    const int piece = at / kParts, part = at % kParts;
    const int parts = min(end - piece * kParts, kParts), turns_here = parts * turns / kParts;
    int turn = part * turns / kParts;
    if ((at == begin || part == 0) && turn < turns_here) first(piece, turn);
#pragma unroll 1
    for (const int stop = (part + 1) * turns / kParts; turn < stop; ++turn)
      visit(piece, turn, turn + 1 < turns_here ? turn + 1 : -1);
    done(Part{piece, part, max(begin - piece * kParts, 0), parts});
  }
}

inline constexpr int kPieceWarps = 16;

/// What the first stage leaves: [pieces, columns], or [pieces kParts, columns] of `blocks` blocks.
struct PieceRows {
  const float* sums;
  std::int64_t pieces, columns, blocks = 0;
};

/// A piece's sum. kWhole: its block has made all of it, and its parts stand `parts` rows apart;
/// else the first parts have been added by their block, the others are added here, in order.
/// Divisions of 64 bits would take longer than all else: pieces kParts blocks is below 2^31.
template <bool kWhole>
__device__ __forceinline__ float piece_sum(const PieceRows& rows, int parts, int piece,
                                           std::int64_t column) {
  const int first = piece * parts;
  const float* at = rows.sums + first * rows.columns + column;
  float sum = at[0];
  if constexpr (!kWhole) {
    const auto blocks = static_cast<unsigned>(rows.blocks),
               pieces = static_cast<unsigned>(rows.pieces);
#pragma unroll
    for (int i = 1; i < kParts; ++i) {
      const unsigned block =
          (static_cast<unsigned>(first + i + 1) * blocks - 1) / (pieces * kParts);
      // Left to us, unless its block has the piece's first part too.
      if (first_part<unsigned>(block, blocks, pieces) > static_cast<unsigned>(first))
        sum += at[i * rows.columns];
    }
  }
  return sum;
}

struct PieceSums {
  float of_warp[kPieceWarps][32];
};

/// destination[c] += sum_p pieces[p, c]. One block: 32 columns; warp w takes pieces w, w + 16, ...
template <bool kWhole>
static __global__ void __launch_bounds__(32 * kPieceWarps)
    add_pieces_kernel(float* destination, PieceRows rows, int parts) {
  auto& partials = smem<PieceSums>().of_warp;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + lane;
  constexpr int kTurns = 8;
  const auto pieces = static_cast<int>(rows.pieces);
  float total = 0;
  for (int first = warp; first < pieces; first += kTurns * kPieceWarps) {
    float taken[kTurns] = {};
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int piece = first + turn * kPieceWarps;
      if (piece < pieces && column < rows.columns)
        taken[turn] = piece_sum<kWhole>(rows, parts, piece, column);
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) total += taken[turn];
  }
  partials[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || column >= rows.columns) return;
  float sum = partials[0][lane];
#pragma unroll
  for (int w = 1; w < kPieceWarps; ++w) sum += partials[w][lane];
  destination[column] += sum;
}

inline void add_pieces(const Exec& exec, float* destination, const PieceRows& rows,
                       const char* name) {
  const bool whole = rows.blocks == 0 || rows.blocks == rows.pieces;
  launch(whole ? add_pieces_kernel<true> : add_pieces_kernel<false>,
         {.grid = static_cast<unsigned>(blocks_for(rows.columns, 32)),
          .block = 32 * kPieceWarps,
          .smem_bytes = sizeof(PieceSums),
          .stream = stream_of(exec),
          .name = name},
         destination, rows, rows.blocks == 0 ? 1 : kParts);
}

}  // namespace trireme::cuda
