#pragma once
// The second stage of a sum over tokens. The first leaves a row of sums for each piece of the
// tokens; their number follows from the shape alone, so that every GPU gives the same bits.

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

inline constexpr int kPieceWarps = 16;

struct PieceSums {
  float of_warp[kPieceWarps][32];
};

/// destination[c] += sum_p pieces[p, c]. One block: 32 columns; warp w takes pieces w, w + 16, ...
static __global__ void __launch_bounds__(32 * kPieceWarps)
    add_pieces_kernel(float* destination, const float* sums, std::int64_t pieces,
                      std::int64_t columns) {
  auto& partials = smem<PieceSums>().of_warp;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + lane;
  constexpr int kTurns = 8;
  float total = 0;
  for (std::int64_t first = warp; first < pieces; first += kTurns * kPieceWarps) {
    float taken[kTurns] = {};
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const std::int64_t piece = first + turn * kPieceWarps;
      if (piece < pieces && column < columns) taken[turn] = sums[piece * columns + column];
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) total += taken[turn];
  }
  partials[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  float sum = partials[0][lane];
#pragma unroll
  for (int w = 1; w < kPieceWarps; ++w) sum += partials[w][lane];
  destination[column] += sum;
}

inline void add_pieces(const Exec& exec, float* destination, const float* sums, std::int64_t pieces,
                       std::int64_t columns, const char* name) {
  launch(add_pieces_kernel,
         {.grid = static_cast<unsigned>(blocks_for(columns, 32)),
          .block = 32 * kPieceWarps,
          .smem_bytes = sizeof(PieceSums),
          .stream = stream_of(exec),
          .name = name},
         destination, sums, pieces, columns);
}

}  // namespace trireme::cuda
