#pragma once
// What a config means on a given number of ranks: mesh, batch arithmetic, number of steps. Every
// rule beyond the config's own form is checked here, before any rank starts work. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "config/problem.h"
#include "config/run_config.h"
#include "parallel/mesh_shape.h"
#include "plan/batch.h"
#include "plan/expert_files.h"
#include "plan/pipeline.h"

namespace trireme {

struct AttentionBackend;

/// What is known of the machines of a run.
struct NodeFacts {
  std::int64_t ranks = 0;          ///< of every node, one after another; 0: not known, or not so
  std::int64_t bytes_of_rank = 0;  ///< memory that a rank has; 0: not known
};

struct ResolveInput {
  std::int64_t world = 1;
  std::optional<std::int64_t> windows =
      {};  ///< of the training data in one pass; needed for run.epochs
  std::optional<std::int64_t> vocabulary = {};  ///< of the tokenizer, where it is known
  std::int64_t sample_tokens = 0;  ///< as ResolvedRun has it; 0 where no tokenizer is known
  /// The schedules of each size of a batch where another rank has made or read them.
  const std::vector<Schedule>* schedules = nullptr;
  /// Likewise the experts' ranks.
  const ExpertPlacement* expert_placement = nullptr;
  DeviceKind device = DeviceKind::kCpu;
  NodeFacts node = {};
  PipelineDetail detail = PipelineDetail::kPrograms;  ///< kRules: nor is ZeRO's group chosen
};

struct ResolvedRun {
  MeshShape mesh;
  BatchRamp ramp;                  ///< samples of each step
  ResolvedBatch batch;             ///< the largest, as the config has it
  ResolvedBatch passes;            ///< as it is computed
  std::int64_t sample_tokens = 0;  ///< of the longest of evaluation.samples and its continuation
  DeviceKind device = DeviceKind::kCpu;
  DType compute = DType::kF32;           ///< what layers compute in
  std::optional<Fp8Precision> fp8 = {};  ///< of their products, which are in bf16 else
  ReductionOrder sums = ReductionOrder::kRank;
  std::int64_t steps = 0;  ///< 0 where run.epochs is given and the windows are not known
  /// Ranks that hold one copy under ZeRO; 0: all that see other tokens (plan/zero_group.h).
  std::int64_t zero_group = 0;
  ExpertPlacement expert_placement;  ///< of parallel.expert_placement
  Pipeline pipeline;                 ///< without stages where there is no model

  /// A batch of another size of the ramp, as it is computed.
  [[nodiscard]] ResolvedBatch passes_of(std::int64_t size) const {
    return {size, passes.micro, size / (passes.micro * passes.data_ranks), passes.data_ranks};
  }
  /// Of each size, the largest first.
  [[nodiscard]] std::vector<ResolvedBatch> passes_of_sizes() const;
  /// Samples of all steps, from the first on.
  [[nodiscard]] std::int64_t samples() const { return ramp.advance(0, steps); }
};

/// tensor x context x pipeline x (data or 1): what a plan assumes where nobody says.
std::int64_t default_world(const RunConfig& config);

/// Batch arithmetic alone. Two of global, micro, accumulation give the third; micro alone:
/// accumulation 1; global alone: micro 1; all must agree. Of a ramp each size, and what comes back
/// is the largest. Faults name the nearest legal values.
ResolvedBatch resolve_batch(const RunConfig::Batch& batch, std::int64_t data_ranks,
                            std::vector<Problem>& problems);

/// Steps of the run: run.steps; ceil(tokens / (global T)); floor(epochs windows / global) or 1. Of
/// a ramp: the fewest steps with so many tokens, the most with no more windows.
std::int64_t resolve_steps(const RunConfig& config, const BatchRamp& ramp,
                           std::optional<std::int64_t> windows, std::vector<Problem>& problems);

/// All of it, with the rules between schedule, model, data and batch. Appends faults to `problems`
/// and lines for stderr to `notes`. Looks only at sections in which `problems` holds nothing yet,
/// so that it may follow a parse that found faults: everything is then reported at once.
ResolvedRun resolve_run(const RunConfig& config, const ResolveInput& input,
                        std::vector<Problem>& problems, std::vector<std::string>& notes);

/// The type that the model computes in: the config's, else fp32 on the CPU and bf16 on a GPU. With
/// products in fp8 all else is in bf16.
DType compute_type(const RunConfig& config, DeviceKind device);

/// "fp32", "bf16", "fp8": of a run's precision.compute.
std::string_view precision_name(const ResolvedRun& run);

/// Who computes attention. `auto` comes to own where cuDNN would not serve the run.
const AttentionBackend& attention_backend(const RunConfig& config, DeviceKind device);

/// The order of sums over ranks: the config's, else rank order on the CPU and NCCL's on a GPU.
ReductionOrder reduction_order(const RunConfig& config, DeviceKind device);

/// The config with derived defaults written out (batch, data seed, end of the decay, precision,
/// order of sums), for config.json. What follows from the mesh (parallel.data, batch.accumulation)
/// or run.directory stays out unless given: the file trains the same on other ranks.
RunConfig with_defaults_written(const RunConfig& config, const ResolvedRun& run);

}  // namespace trireme
