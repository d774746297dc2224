#include "plan/layout_space.h"

#include <algorithm>
#include <map>

#include "pipeline/schedules/schedules.h"
#include "plan/mesh_rules.h"

namespace trireme {

namespace {

constexpr Recompute kRecomputes[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
constexpr ContextMethod kMethods[] = {ContextMethod::kRing, ContextMethod::kAllGather,
                                      ContextMethod::kUlysses};

class Shapes {
 public:
  Shapes(const LayoutTask& task, ShapesOf of)
      : task_(task),
        of_(of),
        config_(task.config),
        input_(task.input),
        global_(config_.batch.global->largest()) {
    input_.detail = PipelineDetail::kRules;
    input_.schedules = nullptr;
    input_.expert_placement = nullptr;
  }

  std::vector<LayoutChoice> all() {
    for (const std::int64_t tensor : divisors_of(input_.world)) {
      if (!tensor_extent_fits(config_.model, tensor)) continue;
      for (const std::int64_t context : divisors_of(input_.world / tensor)) {
        const std::int64_t rest = input_.world / tensor / context;
        for (const std::int64_t pipeline : divisors_of(rest)) {
          if (global_ % (rest / pipeline) == 0 && has_stages(pipeline))
            add_meshes(tensor, context, pipeline);
        }
      }
    }
    return std::move(shapes_);
  }

 private:
  void add_meshes(std::int64_t tensor, std::int64_t context, std::int64_t pipeline) {
    LayoutChoice choice;
    choice.tensor = tensor;
    choice.context = context;
    choice.pipeline = pipeline;
    const std::int64_t stage_ranks = input_.world / pipeline;
    const bool experts = config_.model.has_experts();
    for (const std::int64_t columns : {std::int64_t{1}, tensor}) {
      if (columns > 1 && (!experts || stage_ranks % columns != 0)) continue;
      for (const std::int64_t expert : divisors_of(experts ? stage_ranks / columns : 1)) {
        if (!expert_extents_fit(config_.model, expert, columns)) continue;
        choice.expert = expert;
        choice.expert_tensor = columns;
        add_methods(choice);
      }
      if (tensor == 1) break;
    }
  }

  /// Each pipeline rank has a layer.
  bool has_stages(std::int64_t pipeline) {
    const auto [known, asked] = has_stages_.try_emplace(pipeline, true);
    if (!asked) return known->second;
    LayoutChoice choice;
    choice.pipeline = pipeline;
    take_choice(choice, global_, config_);
    try {
      (void)lay_out_stages(config_, 1);
    } catch (const ConfigError&) {
      known->second = false;
    }
    return known->second;
  }

  void add_methods(LayoutChoice choice) {
    if (choice.context == 1) {
      choice.context_method = task_.config.parallel.context_method;
      return add_batches(choice);
    }
    for (const ContextMethod method : kMethods) {
      choice.context_method = method;
      add_batches(choice);
    }
  }

  void add_batches(LayoutChoice choice) {
    const std::int64_t data = input_.world / choice.tensor / choice.context / choice.pipeline;
    take_choice(choice, global_, config_);
    std::vector<Problem> problems;
    check_mesh_rules(config_, data, problems);
    if (!problems.empty()) return;
    for (const std::int64_t micro : divisors_of(global_ / data)) {
      if (of_ == ShapesOf::kLeastMemory && micro > 1) break;
      choice.micro = micro;
      config_.batch.micro = micro;
      std::vector<std::string> notes;
      (void)resolve_run(config_, input_, problems, notes);
      if (!problems.empty()) {
        problems.clear();
        continue;
      }
      for (const Recompute recompute : kRecomputes) {
        if (of_ == ShapesOf::kLeastMemory && recompute != Recompute::kFull) continue;
        choice.recompute = recompute;
        shapes_.push_back(choice);
      }
    }
  }

  const LayoutTask& task_;
  const ShapesOf of_;
  RunConfig config_;
  ResolveInput input_;
  const std::int64_t global_;
  std::map<std::int64_t, bool> has_stages_;  ///< by the pipeline's extent
  std::vector<LayoutChoice> shapes_;
};

}  // namespace

std::vector<std::int64_t> divisors_of(std::int64_t number) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    low.push_back(i);
    if (i * i != number) high.push_back(number / i);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::vector<LayoutChoice> layout_shapes(const LayoutTask& task, ShapesOf of) {
  return Shapes(task, of).all();
}

std::vector<std::int64_t> zero_stages_of(const LayoutChoice& shape, std::int64_t world) {
  if (world == shape.tensor * shape.pipeline) return {0};
  return {0, 1, 2, 3};
}

std::vector<ScheduleChoice> schedules_of(std::int64_t pipeline, std::int64_t layers) {
  if (pipeline == 1) return {{"1f1b", {}}};
  std::vector<ScheduleChoice> schedules;
  for (const std::string& name : schedule_names()) {
    const ScheduleKind kind = *schedule_kind(name);
    if (kind == ScheduleKind::kInterleaved) {
      for (std::int64_t stages = 2; stages <= layers / pipeline; ++stages)
        schedules.push_back({name, stages});
      continue;
    }
    const bool usual = kind == ScheduleKind::kOneFOneB;
    const bool searches = kind == ScheduleKind::kZbAuto || kind == ScheduleKind::kZbV;
    schedules.push_back({name, {}, !usual && kind != ScheduleKind::kGpipe, usual, searches});
  }
  return schedules;
}

}  // namespace trireme
