#pragma once

#include <vector>

#include "config/run_config.h"
#include "model/stage.h"
#include "parallel/mesh_shape.h"
#include "pipeline/lowering.h"
#include "plan/batch.h"

namespace trireme {

/// A step of so many micro-batches.
struct StepPlan {
  std::int64_t micro_batches = 0;
  Schedule schedule;
  Program program = {};  ///< what the ranks run, proved by check_program
};

/// The pipeline of a run: who does what in which order, and what each virtual stage holds. Pure:
/// the same on every rank. One rank without a pipeline is a schedule of one stage.
struct Pipeline {
  std::vector<StepPlan> steps;  ///< of each size of a batch, the largest first
  ActionTimes times;            ///< that they were made for, and are simulated with
  /// What a micro-batch takes between B and W, in activations, as a stage allocates it: the most.
  double w_memory = 1;
  double r_memory = 0;                  ///< the same of what R makes until B
  Program evaluation;                   ///< likewise proved
  std::vector<ChunkShape> chunks;       ///< of each virtual stage, with the memory that it takes
  std::vector<std::int32_t> placement;  ///< rank of each virtual stage
  std::vector<ChunkRange> stages;       ///< of the model, in its order

  /// Of the largest batch.
  [[nodiscard]] const Schedule& schedule() const { return steps.front().schedule; }
  /// All of them, the largest batch's first.
  [[nodiscard]] std::vector<Schedule> schedules() const;
  /// B and W of that rank are apart somewhere: its stages keep what W needs.
  [[nodiscard]] bool splits(int rank) const;
  /// Those of a pipeline rank.
  [[nodiscard]] std::vector<ChunkShape> chunks_of(int rank) const;
};

/// Placement, stages and times alone, of a kind of schedule that exists for these numbers. Throws
/// ConfigError as make_pipeline does.
Pipeline lay_out_stages(const RunConfig& config, std::int64_t micro_batches);

/// How much of a pipeline is made: who only compares layouts needs no programs, or no schedule.
enum class PipelineDetail : std::uint8_t { kRules, kSchedule, kPrograms };

/// From parallel.pipeline and what else speaks of it. Throws ConfigError naming the key: no such
/// schedule for these numbers, more stages than layers, layers that do not add up, a schedule file
/// that does not fit. `passes`: of each size of a batch, the largest first. `made`: the schedules,
/// where another rank has made or read them.
Pipeline make_pipeline(const RunConfig& config, const MeshShape& mesh,
                       const std::vector<ResolvedBatch>& passes, DType compute,
                       const std::vector<Schedule>* made = nullptr,
                       PipelineDetail detail = PipelineDetail::kPrograms);

}  // namespace trireme
