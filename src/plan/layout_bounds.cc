#include "plan/layout_bounds.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"
#include "pipeline/schedules/schedules.h"
#include "plan/layer_time.h"
#include "plan/zero_group.h"

namespace trireme {

namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

/// One micro-batch through all stages and back.
Schedule one_micro_batch(const std::vector<std::int32_t>& placement, int ranks) {
  Schedule schedule;
  schedule.ranks.resize(static_cast<std::size_t>(ranks));
  schedule.placement = placement;
  const auto rank_of = [&](std::int32_t stage) -> std::vector<Action>& {
    return schedule.ranks[static_cast<std::size_t>(placement[static_cast<std::size_t>(stage)])];
  };
  const auto stages = narrow<std::int32_t>(std::ssize(placement));
  for (std::int32_t s = 0; s < stages; ++s) rank_of(s).push_back({ActionKind::kForward, s, 0});
  for (std::int32_t s = stages; s-- > 0;) rank_of(s).push_back({ActionKind::kBackward, s, 0});
  return schedule;
}

ScheduleRequest request_of(const LayoutChoice& layout, std::int64_t micro_batches) {
  ScheduleRequest request;
  request.kind = *schedule_kind(layout.schedule);
  request.stages = narrow<int>(layout.pipeline);
  request.micro_batches = narrow<int>(micro_batches);
  if (layout.virtual_stages) request.virtual_stages = narrow<int>(*layout.virtual_stages);
  return request;
}

/// The kind's own with so few micro-batches that it is made at once: more hold no less.
Schedule short_schedule(const LayoutChoice& layout, std::int64_t micro_batches) {
  return make_schedule(request_of(layout, std::min(micro_batches, 2 * layout.pipeline)));
}

}  // namespace

LayoutBounds::LayoutBounds(const LayoutTask& task) : task_(task), config_(task.config) {
  run_.sample_tokens = task.input.sample_tokens;
  run_.device = task.input.device;
  run_.compute = compute_type(config_, run_.device);
  if (config_.precision.compute == ComputePrecision::kFp8)
    run_.fp8 = config_.precision.fp8.value_or(Fp8Precision());
  run_.sums = reduction_order(config_, run_.device);
  const std::int64_t layers = config_.model.layer_count();
  const auto in_fp8 = [&](std::int64_t layer) {
    return run_.fp8 && layer >= run_.fp8->bf16_layers[0] &&
           layer < layers - run_.fp8->bf16_layers[1];
  };
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto like = [&](const LayerKind& kind) {
      return in_fp8(kind.first) == in_fp8(layer) &&
             config_.model.layer(kind.first) == config_.model.layer(layer);
    };
    const auto found = std::find_if(kinds_.begin(), kinds_.end(), like);
    if (found == kinds_.end()) {
      kinds_.push_back({layer, 1});
    } else {
      ++found->count;
    }
  }
  count_elements();
}

void LayoutBounds::count_elements() {
  const ModelParams params = declare_params(config_.model);
  const ChunkParams& chunk = params.chunks.front();
  for (ParamIndex i = 0; i < std::ssize(params.metas); ++i) {
    const ParamMeta& meta = params.metas[static_cast<std::size_t>(i)];
    const bool at_an_end = i == chunk.embedding || i == chunk.position_embedding ||
                           i == chunk.head_gradient || meta.block == params.block_of(chunk.head);
    if (at_an_end || !meta.trainable) continue;
    Elements& elements = meta.view == MeshView::kExpert ? experts_ : dense_;
    elements.all += real(meta.shape.count());
    elements.copied += meta.in_f32 ? 0 : real(meta.shape.count());
  }
}

const RunConfig& LayoutBounds::config_of(const LayoutChoice& layout) {
  take_choice(layout, task_.config.batch.global->largest(), config_);
  return config_;
}

const ResolvedRun& LayoutBounds::outline(const LayoutChoice& layout) {
  config_of(layout);
  const std::int64_t data = task_.input.world / layout.tensor / layout.context / layout.pipeline;
  run_.mesh = MeshShape({narrow<int>(layout.pipeline), narrow<int>(data),
                         narrow<int>(layout.context), narrow<int>(layout.tensor)});
  std::vector<Problem> problems;
  run_.batch = resolve_batch(config_.batch, data, problems);
  run_.passes = batch_of_passes(config_, run_.batch, task_.input.world, run_.device);
  run_.zero_group = 0;
  run_.pipeline = {};
  return run_;
}

std::int64_t LayoutBounds::actions_of(const LayoutChoice& layout) {
  outline(layout);
  return 2 * layout.pipeline * layout.virtual_stages.value_or(1) * run_.passes.accumulation;
}

double LayoutBounds::shape_seconds(const LayoutChoice& shape) {
  double least = 0;
  ResolvedBatch passes;
  // A micro-batch of CPUs is split without ZeRO 2 and 3 alone.
  for (const std::int64_t zero_stage : {0, 3}) {
    LayoutChoice layout = shape;
    layout.zero_stage = zero_stage;
    outline(layout);
    if (zero_stage != 0 && run_.passes == passes) break;
    passes = run_.passes;
    const StepLayout step = step_layout(config_, run_);
    const PartTimes parts(config_.model, step, task_.cluster);
    const auto seconds = [](const PartTime& time) {
      return time.forward.seconds() +
             std::min(time.backward.seconds(),
                      time.backward_input.seconds() + time.backward_weight.seconds());
    };
    double all = seconds(parts.embedding()) + seconds(parts.head());
    for (const LayerKind& kind : kinds_) all += real(kind.count) * seconds(parts.layer(kind.first));
    all *= real(passes.accumulation) / real(layout.pipeline);
    least = zero_stage == 0 ? all : std::min(least, all);
  }
  return (least + task_.cluster.host.step_seconds) * (1 - 1e-9);
}

double LayoutBounds::one_micro_batch_bytes(const LayoutChoice& shape) {
  const bool alike = kinds_.size() == 1;
  const std::int64_t layers = config_.model.layer_count();
  const std::int64_t of_rank = alike ? ceil_div(layers, shape.pipeline) : layers;
  const std::vector<std::int64_t> key = {shape.tensor,
                                         shape.context,
                                         static_cast<std::int64_t>(shape.context_method),
                                         shape.expert,
                                         shape.expert_tensor,
                                         run_.passes.micro,
                                         static_cast<std::int64_t>(shape.recompute),
                                         of_rank};
  const auto [at, made] = activations_.try_emplace(key, 0);
  if (!made) return alike ? at->second : at->second / real(shape.pipeline);
  RankPart part = part_of_rank(config_.parallel, run_.mesh, 0, StagePurpose::kTraining);
  part.fp8 = run_.fp8;
  StageShape stage = part.stage(run_.passes.micro, config_.data.sequence_length,
                                config_.parallel.recompute, run_.device);
  stage.chunks = {lone_chunk({0, of_rank, false, false}, 1)};
  at->second = real(Stage::buffer_bytes(config_.model, stage, run_.compute));
  return alike ? at->second : at->second / real(shape.pipeline);
}

std::int64_t LayoutBounds::shape_bytes(const LayoutChoice& shape, std::int64_t zero_stage) {
  LayoutChoice layout = shape;
  layout.zero_stage = zero_stage;
  outline(layout);
  const std::int64_t shards =
      zero_stage == 0 ? 1 : std::int64_t{run_.mesh.stage_size()} / layout.tensor;
  const std::int64_t expert_data = run_.mesh.stage_size() / (layout.expert * layout.expert_tensor);
  const double copy = run_.compute == DType::kF32 ? 0 : run_.fp8 ? 1 : 2;
  // As store/param_store.h lays them out; without copies the values are read themselves.
  const auto held = [&](const Elements& elements, std::int64_t owners) {
    const double share = 1 / real(owners);
    const double weights = zero_stage == 3 ? share : 1;
    const double values = copy == 0 ? weights : share;
    const double gradients = zero_stage >= 2 ? share : 1;
    return elements.all * (4 * values + 4 * gradients + 8 * share) +
           elements.copied * copy * weights;
  };
  const double stored = held(dense_, shards) / real(layout.pipeline * layout.tensor) +
                        held(experts_, std::gcd(shards, expert_data)) /
                            real(layout.pipeline * layout.expert * layout.expert_tensor);
  return static_cast<std::int64_t>(stored + one_micro_batch_bytes(layout));
}

bool LayoutBounds::lay_out(const LayoutChoice& layout) {
  const ScheduleRequest request = request_of(layout, run_.passes.accumulation);
  try {
    check_sizes(request);
    const bool v_shape = !layout.virtual_stages && default_virtual_stages(request.kind) == 2;
    const std::vector<std::int64_t> key = {layout.pipeline, layout.virtual_stages.value_or(1),
                                           v_shape ? 1 : 0,
                                           static_cast<std::int64_t>(layout.recompute)};
    auto found = stages_.find(key);
    if (found == stages_.end())
      found = stages_.emplace(key, lay_out_stages(config_, run_.passes.accumulation)).first;
    run_.pipeline = found->second;
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

void LayoutBounds::take_schedule(Schedule schedule) {
  run_.pipeline.steps = {{run_.passes.accumulation, std::move(schedule)}};
}

/// Which group of ZeRO a run takes, its memory decides.
template <class Seconds>
double LayoutBounds::with_either_group(const Seconds& seconds) {
  StepLayout step = step_layout(config_, run_);
  const double all = seconds(step);
  const std::int64_t group = zero_group_of_node(config_, task_.input.node, run_.mesh);
  if (group == 0) return all;
  step.zero_ranks = group;
  return std::min(all, seconds(step));
}

std::optional<double> LayoutBounds::seconds(const LayoutChoice& layout, bool may_split) {
  outline(layout);
  if (!lay_out(layout)) return {};
  const ScheduleOutline schedule{run_.pipeline.placement, may_split};
  return with_either_group([&](const StepLayout& step) {
    return least_step_seconds(config_.model, step, schedule, task_.cluster);
  });
}

double LayoutBounds::played_seconds(const LayoutChoice& layout) {
  outline(layout);
  expect(lay_out(layout), "a layout without a schedule");
  take_schedule(make_schedule(request_of(layout, run_.passes.accumulation)));
  return with_either_group([&](const StepLayout& step) {
    return predict_step(config_.model, step, task_.cluster).seconds;
  });
}

std::int64_t LayoutBounds::bytes(const LayoutChoice& layout, bool may_split) {
  outline(layout);
  expect(lay_out(layout), "a layout without a schedule");
  take_schedule(may_split ? one_micro_batch(run_.pipeline.placement, narrow<int>(layout.pipeline))
                          : short_schedule(layout, run_.passes.accumulation));
  run_.pipeline.chunks = chunks_of(run_.pipeline.schedule(), run_.pipeline.stages);
  const std::int64_t last = run_.mesh.size() - run_.mesh.stage_size();
  const std::int64_t group = zero_group_of_node(config_, task_.input.node, run_.mesh);
  const auto most = [&](std::int64_t zero_group) {
    return std::max(bytes_of(zero_group, 0), last == 0 ? 0 : bytes_of(zero_group, last));
  };
  return group == 0 ? most(0) : std::min(most(0), most(group));
}

std::int64_t LayoutBounds::bytes_of(std::int64_t zero_group, std::int64_t rank) {
  run_.zero_group = zero_group;
  MemoryRequest request = memory_request(config_, run_, StagePurpose::kTraining, narrow<int>(rank));
  if (run_.device == DeviceKind::kCuda) request.saving_max = 0;  // the host's, in no sum
  return estimate_memory(config_.model, request).total();
}

}  // namespace trireme
