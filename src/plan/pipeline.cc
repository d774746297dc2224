#include "plan/pipeline.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"
#include "pipeline/checker.h"
#include "pipeline/schedules/schedules.h"

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
  if (config.pipeline_times) {
    const auto& [f, b, w, c] = *config.pipeline_times;
    request.times = {f, b, w, c};
  }
  request.memory_limit = config.pipeline_memory_limit;
  return request;
}

Plan plan_of(const RunConfig::Parallel& config, std::int64_t micro_batches) {
  if (!schedule_kind(config.pipeline_schedule)) {
    Plan plan = read_plan(config.pipeline_schedule);
    require_valid(plan, config.pipeline_schedule);
    const PlanShape shape = shape_of(plan);
    if (shape.ranks != config.pipeline || shape.micro_batches != micro_batches) {
      throw ConfigError(
          "parallel.pipeline_schedule: {} is a plan of {} ranks and {} micro-batches, the run has "
          "pipeline {} and {} micro-batches in a step. Use another plan or other extents",
          config.pipeline_schedule, shape.ranks, shape.micro_batches, config.pipeline,
          micro_batches);
    }
    return plan;
  }
  return make_schedule(schedule_request(config, micro_batches));
}

Program proved_program(const Plan& plan, const ActionTimes& times) {
  Program program = lower(plan, times);
  if (const std::optional<ProgramFault> fault = check_program(plan, program)) {
    throw InternalError("the program of a valid plan is refused: rank {}, position {}, rule {}: {}",
                        fault->rank, fault->position, fault->rule, fault->message);
  }
  return program;
}

std::vector<std::int64_t> layers_of_stages(const RunConfig::Parallel& config,
                                           const ModelConfig& model, std::int64_t stages) {
  if (config.pipeline_layers.empty()) {
    if (stages > model.layers) {
      throw ConfigError(
          "parallel.pipeline: {} virtual stages for a model of {} layers; each needs one. Legal: "
          "pipeline x virtual_stages up to {}",
          stages, model.layers, model.layers);
    }
    std::vector<std::int64_t> layers;
    for (std::int64_t s = 0; s < stages; ++s)
      layers.push_back(even_piece(model.layers, stages, s).size);
    return layers;
  }
  const std::vector<std::int64_t>& given = config.pipeline_layers;
  const std::int64_t sum = std::accumulate(given.begin(), given.end(), std::int64_t{0});
  const bool positive =
      std::all_of(given.begin(), given.end(), [](std::int64_t count) { return count > 0; });
  if (static_cast<std::int64_t>(given.size()) != stages || sum != model.layers || !positive) {
    throw ConfigError(
        "parallel.pipeline_layers: {} entries with {} layers in all. Legal: {} entries (one for "
        "each virtual stage), each at least 1, together the model's {} layers",
        given.size(), sum, stages, model.layers);
  }
  return given;
}

}  // namespace

std::vector<ChunkShape> Pipeline::chunks_of(int rank) const {
  std::vector<ChunkShape> chunks;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (placement[s] != rank) continue;
    const std::vector<Action>& actions = plan.ranks[static_cast<std::size_t>(rank)];
    chunks.push_back({stages[s], slots[s], waiting_for_weights(actions, static_cast<int>(s))});
  }
  return chunks;
}

Pipeline make_pipeline(const RunConfig& config, const ResolvedBatch& batch, const Plan* made) {
  const RunConfig::Parallel& parallel = config.parallel;
  Pipeline pipeline;
  pipeline.plan = made != nullptr ? *made : plan_of(parallel, batch.accumulation);
  pipeline.placement = shape_of(pipeline.plan).placement;
  pipeline.times = schedule_request(parallel, batch.accumulation).times;
  pipeline.slots = slots_of(pipeline.plan);
  pipeline.step = proved_program(pipeline.plan, pipeline.times);
  pipeline.evaluation = proved_program(make_forward_pass(pipeline.placement), pipeline.times);
  const auto stages = static_cast<std::int64_t>(pipeline.placement.size());
  std::int64_t first = 0;
  for (const std::int64_t layers : layers_of_stages(parallel, config.model, stages)) {
    pipeline.stages.push_back({first, layers, first == 0, first + layers == config.model.layers});
    first += layers;
  }
  for (const std::vector<Action>& actions : pipeline.plan.ranks) {
    pipeline.split =
        pipeline.split || std::any_of(actions.begin(), actions.end(), [](const Action& action) {
          return action.kind == ActionKind::kBackwardInput;
        });
  }
  return pipeline;
}

}  // namespace trireme
