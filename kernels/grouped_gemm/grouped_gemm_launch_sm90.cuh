#pragma once
// What launches of Hopper's grouped products share, and those of weights, in a file of their own.

#include "kernels/common/cuda.cuh"
#include "kernels/common/gpu_scratch.h"
#include "kernels/grouped_gemm/grouped_gemm_gpu_table.h"

namespace trireme::cuda {

/// Of what an int counts, with tiles behind it.
constexpr std::int64_t kLongestSide = (std::int64_t{1} << 31) - 1024;

template <class T, class Args>
std::int64_t clusters_of(const Args& args) {
  return max(args.multiprocessors / T::kCluster, 1);
}

/// Of gradients, whose sums of several sources are kept where there is room for some tiles.
template <class T, class Args>
std::int64_t weight_clusters(const Args& args) {
  constexpr std::int64_t kMost = gpu_scratch::kGroupedWeightsBlocks *
                                 gpu_scratch::kGroupedWeightsTile / (T::kM * T::kN * T::kCluster);
  return args.sources == 1 ? clusters_of<T>(args) : min(clusters_of<T>(args), kMost);
}

template <class T>
LaunchConfig hopper_launch(const Exec& exec, const char* name, std::int64_t clusters) {
  return {.grid = static_cast<unsigned>(clusters) * T::kCluster,
          .block = T::kThreads,
          .smem_bytes = sizeof(typename T::Smem),
          .stream = stream_of(exec),
          .name = name,
          .cluster = T::kCluster};
}

bool hopper_serves_weights(const GroupedGemmWeightsGpuArgs& args);
void hopper_weights(const GroupedGemmWeightsGpuArgs& args);

}  // namespace trireme::cuda
