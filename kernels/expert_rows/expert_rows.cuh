#pragma once
// How rows of experts are dealt out to warps.

#include "kernels/common/reduce.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/expert_rows/expert_rows_table.h"

namespace trireme::cuda::expert_rows {

void expert_bias_forward(const ExpertBiasArgs& args);
void expert_bias_backward(const ExpertBiasArgs& args);
void row_factors(const RowFactorsArgs& args);

inline constexpr int kThreads = 256, kWarps = kThreads / 32;

/// Of a warp: some columns of a row. Neighbours take neighbours: rows are read whole.
struct Share {
  std::int64_t row, column;
};
__device__ __forceinline__ Share share_of_warp(std::int64_t columns_per_warp,
                                               std::int64_t channels) {
  const std::int64_t unit = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::int64_t per_row = (channels + columns_per_warp - 1) / columns_per_warp;
  return {unit / per_row, unit % per_row * columns_per_warp};
}

inline LaunchConfig config_of_shares(const Exec& exec, std::int64_t rows, std::int64_t channels,
                                     std::int64_t columns_per_warp, const char* name) {
  const std::int64_t units = rows * blocks_for(channels, columns_per_warp);
  return {.grid = static_cast<unsigned>(blocks_for(units, kWarps)),
          .block = kThreads,
          .stream = stream_of(exec),
          .name = name};
}

__device__ __forceinline__ bool has_row(const WeightedGluRows& rows, std::int64_t r) {
  return r < rows.rows_max && (rows.row_count == nullptr || r < *rows.row_count);
}
__device__ __forceinline__ float weight_of(const WeightedGluRows& rows, std::int64_t r) {
  return rows.weights[rows.row_slot == nullptr ? r : rows.row_slot[r]];
}

inline constexpr int kDepth = 4;  // accesses that a thread has under way at once

/// Of a row that all lanes of a warp have.
__device__ __forceinline__ std::int64_t expert_of(const RowExperts& experts, std::int64_t r) {
  int before = 0;
  for (std::int64_t first = 0; first < experts.count; first += 32) {
    const std::int64_t g = first + threadIdx.x % 32;
    const bool begins = g < experts.count && experts.begins[g * experts.sources] <= r;
    before += __popc(__ballot_sync(kAllLanes, begins));
  }
  return before - 1;
}

}  // namespace trireme::cuda::expert_rows
