#include "plan/search_answers.h"

#include <algorithm>
#include <functional>

#include "config/fields.h"
#include "plan/fp8_support.h"
#include "plan/layout_bounds.h"

namespace trireme {

namespace {

constexpr std::int64_t kFrugalTimed = 12;  // candidates that are planned whole

Trial trial_of(const LayoutTask& task, std::string change,
               const std::function<void(RunConfig&)>& make) {
  Trial trial{std::move(change)};
  RunConfig config = task.config;
  make(config);
  std::vector<Problem> problems;
  if (auto fault = fp8_fault(config, task.cluster)) {
    problems.push_back(*std::move(fault));
  } else {
    trial.layout = time_layout(task, config, problems);
  }
  if (!problems.empty()) trial.refused = format_problem(problems.front());
  return trial;
}

/// A shape and a stage of ZeRO, by what it holds at least.
struct Frugal {
  LayoutChoice choice;
  std::int64_t bytes = 0;
};

std::vector<Frugal> frugal_choices(const LayoutTask& task, LayoutBounds& bounds) {
  std::vector<Frugal> all;
  for (LayoutChoice& shape : layout_shapes(task, ShapesOf::kLeastMemory)) {
    for (const std::int64_t zero_stage : zero_stages_of(shape, task.input.world)) {
      shape.zero_stage = zero_stage;
      all.push_back({shape, bounds.shape_bytes(shape, zero_stage)});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Frugal& a, const Frugal& b) { return a.bytes < b.bytes; });
  return all;
}

}  // namespace

std::vector<Trial> trials_of(const LayoutTask& task) {
  std::vector<Trial> trials;
  const RunConfig::Parallel& own = task.config.parallel;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    if (recompute == own.recompute) continue;
    RunConfig named;
    named.parallel.recompute = recompute;
    trials.push_back(
        trial_of(task, "parallel.recompute " + find_field("parallel.recompute")->read(named).dump(),
                 [recompute](RunConfig& config) { config.parallel.recompute = recompute; }));
  }
  for (const std::int64_t stage : {0, 1, 2, 3}) {
    if (stage == own.zero_stage) continue;
    trials.push_back(
        trial_of(task, fmt::format("parallel.zero_stage {}", stage), [stage](RunConfig& config) {
          config.parallel.zero_stage = stage;
          if (stage == 0) config.parallel.zero_group.reset();
        }));
  }
  const bool fp8 = task.config.precision.compute == ComputePrecision::kFp8;
  if (!fp8 && task.cluster.device.tflops.fp8 == 0) return trials;
  trials.push_back(trial_of(task, fmt::format("precision.compute \"{}\"", fp8 ? "bf16" : "fp8"),
                            [fp8](RunConfig& config) {
                              config.precision.compute =
                                  fp8 ? ComputePrecision::kBf16 : ComputePrecision::kFp8;
                              if (fp8) config.precision.fp8.reset();
                            }));
  return trials;
}

std::optional<TimedLayout> largest_micro_batch(const LayoutTask& task) {
  const RunConfig::Parallel& own = task.config.parallel;
  const std::int64_t global = task.config.batch.global->largest();
  const std::int64_t others = own.tensor * own.context * own.pipeline;
  if (task.input.world % others != 0 || global % (task.input.world / others) != 0) return {};
  std::vector<std::int64_t> sizes = divisors_of(global / (task.input.world / others));
  std::reverse(sizes.begin(), sizes.end());
  RunConfig config = task.config;
  config.batch.accumulation.reset();
  LayoutBounds bounds(task);
  for (const std::int64_t micro : sizes) {
    config.batch.micro = micro;
    if (task.memory > 0 &&
        bounds.shape_bytes(choice_of(config, micro), own.zero_stage) > task.memory)
      continue;
    std::vector<Problem> problems;
    std::int64_t needed = 0;
    if (auto layout = time_if_it_fits(task, config, problems, needed)) return layout;
  }
  return {};
}

std::optional<TimedLayout> frugal_layout(const LayoutTask& task) {
  LayoutBounds bounds(task);
  std::optional<TimedLayout> least;
  std::int64_t timed = 0;
  for (const Frugal& frugal : frugal_choices(task, bounds)) {
    if (timed >= kFrugalTimed || (least && frugal.bytes >= least->bytes())) break;
    for (const char* schedule : {"1f1b", "v-min"}) {
      LayoutChoice choice = frugal.choice;
      choice.schedule = schedule;
      if (choice.pipeline == 1 && choice.schedule != "1f1b") continue;
      std::vector<Problem> problems;
      std::optional<TimedLayout> layout = time_layout(task, bounds.config_of(choice), problems);
      ++timed;
      if (!layout || (least && layout->bytes() >= least->bytes())) continue;
      least = std::move(layout);
      if (task.memory > 0 && least->bytes() <= task.memory) return least;
    }
  }
  return least;
}

std::optional<TimedLayout> fewest_ranks(const LayoutTask& task, std::int64_t most) {
  if (task.memory == 0) return {};
  const std::int64_t node = task.cluster.devices_per_node;
  LayoutTask fewer = task;
  for (std::int64_t ranks = 1; ranks <= most; ranks += ranks < node ? 1 : node) {
    fewer.input.world = ranks;
    LayoutBounds bounds(fewer);
    const std::vector<Frugal> choices = frugal_choices(fewer, bounds);
    if (choices.empty() || choices.front().bytes > task.memory) continue;
    if (auto layout = frugal_layout(fewer); layout && layout->bytes() <= task.memory) return layout;
  }
  return {};
}

}  // namespace trireme
