#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/run_config.h"
#include "model/param_table.h"
#include "parallel/mesh_shape.h"
#include "pipeline/schedule.h"
#include "plan/batch.h"
#include "plan/resolve.h"

namespace trireme {

/// What decides the time of a step beside model and machine: plain numbers, made anew for each
/// layout that is tried.
struct StepLayout {
  MeshShape mesh;
  ResolvedBatch passes;
  std::int64_t sequence_length = 1;
  DeviceKind device = DeviceKind::kCpu;
  std::int64_t threads = 0;  ///< of a CPU's rank; 0: its share of the cores
  DType compute = DType::kF32;
  std::optional<Fp8Precision> fp8 = {};
  bool sequence_parallel = false;
  ContextMethod context_method = ContextMethod::kRing;
  Recompute recompute = Recompute::kNone;
  std::int64_t zero_stage = 0, zero_ranks = 1;  ///< that hold one copy together
  std::int64_t expert = 1, expert_tensor = 1;
  DispatchMethod dispatch = DispatchMethod::kAllToAll;
  ReductionOrder sums = ReductionOrder::kRank;
  DType wire = DType::kF32;
  double update_bytes = 36;     ///< that an update moves for each element (Optimizer)
  bool whole_matrices = false;  ///< layers' matrices are updated as wholes (Muon)
  bool recorded = false;        ///< a step is replayed as a graph: hosts launch nothing
  const Schedule* schedule = nullptr;
  std::vector<ChunkRange> stages;  ///< of each virtual stage

  [[nodiscard]] std::int64_t extent(Axis axis) const { return mesh.extent(axis); }
  /// Tokens that a rank computes of a micro-batch, all of them or in the residual stream.
  [[nodiscard]] std::int64_t tokens() const {
    return passes.micro * sequence_length / extent(Axis::kContext);
  }
  [[nodiscard]] std::int64_t residual_tokens() const {
    return sequence_parallel ? tokens() / extent(Axis::kTensor) : tokens();
  }
  [[nodiscard]] std::int64_t expert_ranks() const { return expert * expert_tensor; }
  /// Ranks that sum a dense gradient, and one of an expert.
  [[nodiscard]] std::int64_t data_ranks() const {
    return extent(Axis::kData) * extent(Axis::kContext);
  }
  [[nodiscard]] std::int64_t expert_data_ranks() const {
    return data_ranks() * extent(Axis::kTensor) / expert_ranks();
  }
};

/// Of a run that resolves; `run` must outlive it.
StepLayout step_layout(const RunConfig& config, const ResolvedRun& run);

}  // namespace trireme
