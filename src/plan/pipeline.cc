#include "plan/pipeline.h"

#include <algorithm>
#include <numeric>

#include "base/human_format.h"
#include "config/adapters.h"
#include "pipeline/checker.h"
#include "pipeline/schedules/schedules.h"
#include "plan/layer_balance.h"
#include "plan/rank_part.h"

namespace trireme {

namespace {

/// `kind` is left alone where the config names a file.
ScheduleRequest schedule_request(const RunConfig::Parallel& config, std::int64_t micro_batches) {
  // Generators refuse what is too large; a narrower number must not look legal to them.
  const auto narrow = [](std::int64_t value) {
    return static_cast<int>(std::min<std::int64_t>(value, 1 << 30));
  };
  ScheduleRequest request;
  request.kind = schedule_kind(config.pipeline_schedule).value_or(request.kind);
  request.stages = narrow(config.pipeline);
  request.micro_batches = narrow(micro_batches);
  if (config.virtual_stages) request.virtual_stages = narrow(*config.virtual_stages);
  if (config.pipeline_group_size) request.group_size = narrow(*config.pipeline_group_size);
  request.memory_limit = config.pipeline_memory_limit;
  return request;
}

/// What B leaves for W and what R makes, in activations of one stage.
struct Held {
  double w, r;
};

/// Stages with B and W apart, bare and with a micro-batch more in flight, waiting or in R.
Held memory_of(const RunConfig& config, const MeshShape& mesh, const ResolvedBatch& passes,
               DType compute, const ChunkRange& range) {
  const RankPart part = part_of_rank(config.parallel, mesh, 0, StagePurpose::kTraining);
  StageShape shape =
      part.stage(passes.micro, config.data.sequence_length, config.parallel.recompute);
  shape.purpose = StagePurpose::kTrainingSplit;
  const auto bytes = [&](const ChunkShape& chunk) {
    shape.chunks = {chunk};
    return static_cast<double>(Stage::buffer_bytes(config.model, shape, compute));
  };
  const double one = bytes(lone_chunk(range, 1)), activation = bytes(lone_chunk(range, 2)) - one;
  return {1 + (bytes(lone_chunk(range, 1, 2)) - one) / activation,
          (bytes(lone_chunk(range, 1, 1, 1)) - one) / activation};
}

/// R needs something that F has not kept.
void check_recompute(const Schedule& schedule, const RunConfig& config) {
  const Recompute recompute = config.parallel.recompute;
  if (recompute == Recompute::kFull) return;
  if (recompute == Recompute::kSelective &&
      config.model.layer(0).attention.qk_norm != QkNorm::kNone)
    return;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::vector<Action>& actions = schedule.ranks[rank];
    const auto again = std::find_if(actions.begin(), actions.end(), [](const Action& action) {
      return action.kind == ActionKind::kRecompute;
    });
    if (again == actions.end()) continue;
    throw ConfigError(
        "parallel.pipeline_schedule: {}: rank {}, position {} ({}), rule recompute: with "
        "parallel.recompute \"{}\" F of this model keeps all that R would make again. Legal: the "
        "schedule without R, or parallel.recompute \"full\"",
        config.parallel.pipeline_schedule, rank, again - actions.begin(), text_of(*again),
        recompute == Recompute::kNone ? "none" : "selective");
  }
}

/// Rules of a run for a schedule that check_schedule accepts.
void check_for_run(const Schedule& schedule, const RunConfig& run, std::int64_t micro_batches) {
  const RunConfig::Parallel& config = run.parallel;
  const std::string& path = config.pipeline_schedule;
  const ScheduleShape shape = shape_of(schedule);
  if (shape.ranks != config.pipeline || shape.micro_batches != micro_batches) {
    throw ConfigError(
        "parallel.pipeline_schedule: {} is a schedule of {} and {}, the run has "
        "pipeline {} and {} in a step. Use another schedule or other extents",
        path, counted(shape.ranks, "rank"), counted(shape.micro_batches, "micro-batch"),
        config.pipeline, counted(micro_batches, "micro-batch"));
  }
  if (config.virtual_stages.value_or(shape.stages_per_rank()) != shape.stages_per_rank()) {
    throw ConfigError(
        "parallel.virtual_stages: {}, and the schedule {} has {} on each rank. Legal: {}, or leave "
        "it out",
        *config.virtual_stages, path, shape.stages_per_rank(), shape.stages_per_rank());
  }
  if (config.pipeline_group_size) {
    throw ConfigError(
        "parallel.pipeline_group_size: {}, and the schedule {} has its order already. Legal: leave "
        "it out; \"interleaved\" alone has groups",
        *config.pipeline_group_size, path);
  }
  check_recompute(schedule, run);
}

/// The schedule of a file, where the schedule is none of the kinds.
Schedule schedule_of_file(const RunConfig& config, std::int64_t micro_batches) {
  Schedule schedule = read_schedule(config.parallel.pipeline_schedule);
  require_valid(schedule, config.parallel.pipeline_schedule);
  check_for_run(schedule, config, micro_batches);
  return schedule;
}

Program proved_program(const Schedule& schedule, const ActionTimes& times) {
  Program program = lower(schedule, times);
  if (const std::optional<ProgramFault> fault = check_program(schedule, program)) {
    throw InternalError(
        "the program of a valid schedule is refused: rank {}, position {}, rule {}: {}",
        fault->rank, fault->position, fault->rule, fault->message);
  }
  return program;
}

/// Virtual stages that a config asks a generator for: of a V kind two on each rank at least, before
/// it refuses another number.
std::int64_t stages_of(const ScheduleRequest& request) {
  const int least = default_virtual_stages(request.kind);
  return std::int64_t{request.stages} *
         std::max<std::int64_t>(least, request.virtual_stages.value_or(least));
}

void check_layers(const RunConfig& config, std::int64_t stages) {
  const std::vector<std::int64_t>& given = config.parallel.pipeline_layers;
  const std::int64_t layers = config.model.layer_count();
  if (given.empty() && stages > layers) {
    throw ConfigError(
        "parallel.pipeline: {} for a model of {}; each needs one. Legal: "
        "pipeline x virtual_stages up to {}",
        counted(stages, "virtual stage"), counted(layers, "layer"), layers);
  }
  if (given.empty()) return;
  const std::int64_t sum = std::accumulate(given.begin(), given.end(), std::int64_t{0});
  const bool positive =
      std::all_of(given.begin(), given.end(), [](std::int64_t count) { return count > 0; });
  if (std::ssize(given) != stages || sum != layers || !positive) {
    throw ConfigError(
        "parallel.pipeline_layers: {} with {} in all. Legal: {} (one for "
        "each virtual stage), each at least 1, together the model's {}",
        counted(std::ssize(given), "entry"), counted(sum, "layer"), counted(stages, "entry"),
        counted(layers, "layer"));
  }
}

std::vector<std::int64_t> balanced(const RunConfig& config, const PassCost& layer,
                                   const std::vector<std::int32_t>& placement) {
  return balance_layers(
      {config.model.layer_count(), layer.all(), cost_of_head(config.model).all(), placement});
}

/// What each virtual stage holds, and how long its actions take.
void place_stages(const RunConfig& config, Pipeline& pipeline) {
  const ModelConfig& model = config.model;
  const PassCost layer =
      cost_of_layer(model, config.data.sequence_length, config.parallel.recompute);
  const PassCost head = cost_of_head(model);
  std::vector<std::int64_t> counts = config.parallel.pipeline_layers;
  if (counts.empty()) counts = balanced(config, layer, pipeline.placement);
  std::int64_t first = 0;
  for (const std::int64_t layers : counts) {
    pipeline.stages.push_back({first, layers, first == 0, first + layers == model.layer_count()});
    first += layers;
  }
  if (config.parallel.pipeline_times) {
    const auto& [f, b, w, c] = *config.parallel.pipeline_times;
    pipeline.times = {f, b, w, c};
    // B's time is that of a B which makes activations again.
    pipeline.times.recompute = layer.recompute > 0 ? std::min(f, b) : 0;
    return;
  }
  // A stage's F, B and W take 3 in the mean, as where nobody says anything.
  const double unit = static_cast<double>(model.layer_count() * layer.all() + head.all()) /
                      (3 * static_cast<double>(counts.size()));
  ActionTimes& times = pipeline.times;
  times = {0, 0, 0, 0};
  const std::int64_t first_trained = first_trained_layer(model);
  for (const ChunkRange& stage : pipeline.stages) {
    const auto time = [&](std::int64_t PassCost::*pass, std::int64_t layers) {
      return static_cast<double>(layers * layer.*pass + (stage.head ? head.*pass : 0)) / unit;
    };
    const std::int64_t back =
        stage.first_layer + stage.layers -
        std::clamp(first_trained, stage.first_layer, stage.first_layer + stage.layers);
    StageTimes of{time(&PassCost::forward, stage.layers), time(&PassCost::backward_input, back),
                  time(&PassCost::backward_weight, back), time(&PassCost::recompute, back)};
    // Nor is an action without work over when it begins: a program has one after the other.
    for (double* const back_time : {&of.backward_input, &of.backward_weight})
      *back_time = std::max(*back_time, 1e-3 * of.forward);
    times.stages.push_back(of);
    const auto share = 1 / static_cast<double>(counts.size());
    times.forward += times.stages.back().forward * share;
    times.backward_input += times.stages.back().backward_input * share;
    times.backward_weight += times.stages.back().backward_weight * share;
  }
}

std::int32_t first_trained_stage(const ModelConfig& model, const std::vector<ChunkRange>& stages) {
  // Where no layer is trained the head is, behind the last.
  const std::int64_t layer = std::min(first_trained_layer(model), model.layer_count() - 1);
  std::int32_t stage = 0;
  while (stages[static_cast<std::size_t>(stage)].first_layer +
             stages[static_cast<std::size_t>(stage)].layers <=
         layer)
    ++stage;
  return stage;
}

/// Layers of each virtual stage, in those of which 1F1B, one stage a rank, holds P on the rank that
/// holds most. So a memory limit is one of bytes, and 1F1B keeps that of P.
StageSizes stage_sizes(const RunConfig& config, const Pipeline& pipeline) {
  const std::int64_t ranks = config.parallel.pipeline;
  std::vector<std::int64_t> line;
  for (const ChunkRange& stage : pipeline.stages) line.push_back(stage.layers);
  if (std::ssize(line) != ranks)
    line = balanced(
        config, cost_of_layer(config.model, config.data.sequence_length, config.parallel.recompute),
        interleaved_placement(narrow<int>(ranks), 1));
  std::int64_t most = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    most = std::max(most, (ranks - rank) * line[static_cast<std::size_t>(rank)]);
  const double unit = static_cast<double>(most) / static_cast<double>(pipeline.stages.size());
  StageSizes sizes;
  for (const ChunkRange& stage : pipeline.stages)
    sizes.push_back(std::max(1.0, static_cast<double>(stage.layers) / unit));
  return sizes;
}

}  // namespace

std::vector<ChunkShape> Pipeline::chunks_of(int rank) const {
  std::vector<ChunkShape> own;
  for (std::size_t s = 0; s < chunks.size(); ++s)
    if (placement[s] == rank) own.push_back(chunks[s]);
  return own;
}

std::vector<Schedule> Pipeline::schedules() const {
  std::vector<Schedule> all;
  for (const StepPlan& step : steps) all.push_back(step.schedule);
  return all;
}

bool Pipeline::splits(int rank) const {
  return std::ranges::any_of(steps, [&](const StepPlan& step) {
    const std::vector<Action>& actions = step.schedule.ranks[static_cast<std::size_t>(rank)];
    return std::ranges::any_of(
        actions, [](const Action& action) { return action.kind == ActionKind::kBackwardInput; });
  });
}

Pipeline lay_out_stages(const RunConfig& config, std::int64_t micro_batches) {
  const ScheduleRequest request = schedule_request(config.parallel, micro_batches);
  check_layers(config, stages_of(request));
  check_sizes(request);
  Pipeline pipeline;
  pipeline.placement = placement_of(request);
  place_stages(config, pipeline);
  return pipeline;
}

namespace {

/// The schedule of one size, where nobody has made it: generated, or that `of_file`.
Schedule schedule_of_step(const RunConfig& config, const Pipeline& pipeline,
                          const ScheduleRequest& request, const Schedule& of_file) {
  const RunConfig::Parallel& parallel = config.parallel;
  if (schedule_kind(parallel.pipeline_schedule)) return make_schedule(request);
  check_for_run(of_file, config, request.micro_batches);
  require_valid(of_file, parallel.pipeline_schedule,
                {parallel.pipeline_memory_limit, pipeline.w_memory, pipeline.r_memory});
  return of_file;
}

}  // namespace

Pipeline make_pipeline(const RunConfig& config, const MeshShape& mesh,
                       const std::vector<ResolvedBatch>& passes, DType compute,
                       const std::vector<Schedule>* made, PipelineDetail detail) {
  const ResolvedBatch& largest = passes.front();
  Pipeline pipeline;
  Schedule of_file;
  if (made == nullptr && schedule_kind(config.parallel.pipeline_schedule)) {
    pipeline = lay_out_stages(config, largest.accumulation);
  } else {
    if (made == nullptr) of_file = schedule_of_file(config, largest.accumulation);
    pipeline.placement = shape_of(made != nullptr ? made->front() : of_file).placement;
    check_layers(config, std::ssize(pipeline.placement));
    place_stages(config, pipeline);
  }
  for (const ChunkRange& stage : pipeline.stages) {
    const Held held = memory_of(config, mesh, largest, compute, stage);
    pipeline.w_memory = std::max(pipeline.w_memory, held.w);
    pipeline.r_memory = std::max(pipeline.r_memory, held.r);
  }
  const StageSizes sizes = stage_sizes(config, pipeline);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    StepPlan& step = pipeline.steps.emplace_back();
    step.micro_batches = passes[i].accumulation;
    ScheduleRequest request = schedule_request(config.parallel, step.micro_batches);
    request.times = pipeline.times;
    request.w_memory = pipeline.w_memory;
    request.stage_sizes = sizes;
    step.schedule =
        made != nullptr ? made->at(i) : schedule_of_step(config, pipeline, request, of_file);
    step.schedule.first_trained = first_trained_stage(config.model, pipeline.stages);
    append(pipeline.chunks, trireme::chunks_of(step.schedule, pipeline.stages));
    if (detail == PipelineDetail::kPrograms)
      step.program = proved_program(step.schedule, pipeline.times);
  }
  if (detail == PipelineDetail::kPrograms)
    pipeline.evaluation = proved_program(make_forward_pass(pipeline.placement), pipeline.times);
  return pipeline;
}

}  // namespace trireme
