#include "pipeline/schedules/schedules.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/human_format.h"
#include "pipeline/checker.h"
#include "pipeline/schedules/greedy.h"

namespace trireme {

namespace {

constexpr std::int64_t kActionsMax = 100'000'000;

/// A request with every number in place.
struct Sizes {
  std::string_view name;
  int stages, micro_batches, virtual_stages, group_size;
};

/// As a person would write it: the rule, then what was asked, then what would be legal.
template <class... Args>
[[noreturn]] void refuse(const Sizes& sizes, fmt::format_string<Args...> format, Args&&... args) {
  throw ConfigError("{} on {} with {}: {}", sizes.name, counted(sizes.stages, "stage"),
                    counted(sizes.micro_batches, "micro-batch"),
                    fmt::format(format, std::forward<Args>(args)...));
}

void check_virtual_stages(const Sizes& sizes, ScheduleKind kind) {
  if (kind == ScheduleKind::kInterleaved) {
    if (sizes.virtual_stages < 2) {
      refuse(sizes,
             "{} virtual stage of a rank has nothing to interleave. Legal: 2 or more, or 1f1b",
             sizes.virtual_stages);
    }
  } else if (const int only = default_virtual_stages(kind); sizes.virtual_stages != only) {
    refuse(sizes, "{} virtual stages of a rank. Legal: {}{}", sizes.virtual_stages, only,
           only == 1 ? "; interleaved takes more" : ", in the shape of a V");
  }
}

void check_micro_batches(const Sizes& sizes, ScheduleKind kind) {
  const int p = sizes.stages, m = sizes.micro_batches, group = sizes.group_size;
  if (kind == ScheduleKind::kZbH2 && m < 2 * p - 1) {
    refuse(sizes,
           "too few micro-batches to fill the pipeline. Legal: {} or more (2·stages - 1), or "
           "zb-auto, which takes any number",
           2 * p - 1);
  }
  if (kind == ScheduleKind::kDualPipeV && m < 2 * p)
    refuse(sizes, "too few micro-batches. Legal: {} or more (2·stages)", 2 * p);
  if (kind != ScheduleKind::kInterleaved) return;
  if (m < p) refuse(sizes, "too few micro-batches. Legal: {} or more (the stages)", p);
  if (group < p || group > m) {
    refuse(sizes, "a group of {} micro-batches. Legal: {} (the stages) to {} (the micro-batches)",
           group, p, m);
  }
  if (const int rest = m % group; rest != 0 && rest < p) {
    const int above = m - rest + (group == p ? group : p);
    refuse(sizes,
           "after groups of {} micro-batches {} are left, fewer than the stages. Legal: {} or {} "
           "micro-batches, or another group size",
           group, rest, m - rest, above);
  }
}

Schedule generate(const ScheduleRequest& request, const Sizes& sizes) {
  const int p = sizes.stages, m = sizes.micro_batches;
  switch (request.kind) {
    case ScheduleKind::kGpipe:
      return make_gpipe(p, m);
    case ScheduleKind::kOneFOneB:
      return make_1f1b(p, m);
    case ScheduleKind::kInterleaved:
      return make_interleaved(p, sizes.virtual_stages, m, sizes.group_size);
    case ScheduleKind::kZbH1:
      return make_zb_h1(p, m, request.w_memory, request.memory_limit, request.stage_sizes);
    case ScheduleKind::kZbH2:
      return make_zb_h2(p, m, request.w_memory, request.memory_limit, request.stage_sizes);
    case ScheduleKind::kZbAuto:
      return make_zb_auto(request);
    case ScheduleKind::kZbV:
      return make_zb_v(request);
    case ScheduleKind::kVHalf:
      return make_v_half(request);
    case ScheduleKind::kVMin:
      return make_v_min(request);
    case ScheduleKind::kDualPipeV:
      return make_dualpipe_v(p, m);
  }
  throw InternalError("a schedule of no kind");
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"gpipe", "1f1b",      "interleaved", "zb-h1",
                                                 "zb-h2", "zb-auto",   "zb-v",        "v-half",
                                                 "v-min", "dualpipe-v"};
  return names;
}

std::optional<ScheduleKind> schedule_kind(std::string_view name) {
  const std::vector<std::string>& names = schedule_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<ScheduleKind>(found - names.begin());
}

int default_virtual_stages(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kInterleaved:
    case ScheduleKind::kZbV:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kDualPipeV:
      return 2;
    default:
      return 1;
  }
}

void check_request(const ScheduleRequest& request, std::string_view what) {
  const ActionTimes& times = request.times;
  const std::array values = {times.forward, times.backward_input, times.backward_weight};
  const double least = *std::min_element(values.begin(), values.end());
  const double most = *std::max_element(values.begin(), values.end());
  const bool positive = std::all_of(values.begin(), values.end(),
                                    [](double time) { return time > 1e-100 && time < 1e100; });
  // Times far apart would be lost in sums of them.
  if (!positive || most > 1e6 * least) {
    throw ConfigError(
        "{}: times F {}, B {}, W {}. Legal: numbers above 0 (1e-100 to 1e100), none a million "
        "times another",
        what, times.forward, times.backward_input, times.backward_weight);
  }
  if (!(times.transfer >= 0) || !(times.transfer <= 1e6 * most))
    throw ConfigError("{}: time C {}. Legal: 0 to {}", what, times.transfer, 1e6 * most);
  // With full recomputation an activation is little, and what waits for a W much more.
  if (!(request.w_memory >= 0 && request.w_memory <= 1e6))
    throw ConfigError("{}: w-memory {}. Legal: 0 to 1000000 activations", what, request.w_memory);
  if (request.memory_limit && !(*request.memory_limit >= 1)) {
    throw ConfigError("{}: a memory limit of {} full-stage activations. Legal: 1 or more", what,
                      *request.memory_limit);
  }
}

namespace {

void check_limit(const Schedule& schedule, const ScheduleRequest& request, const Sizes& sizes) {
  const ScheduleShape shape = shape_of(schedule);
  bool fits = true;
  double needed = 0;
  for (std::int32_t rank = 0; rank < shape.ranks; ++rank) {
    const double peak = peak_of(schedule.ranks[static_cast<std::size_t>(rank)], shape,
                                request.w_memory, 0, request.stage_sizes);
    const double limit =
        limit_of_rank(*request.memory_limit, request.stage_sizes, shape.placement, rank);
    fits = fits && peak <= limit * (1 + 1e-12);
    needed = std::max(needed, peak);
  }
  if (fits) return;
  refuse(sizes,
         "a memory limit of {} full-stage activations is too small. Legal: {} or more, or zb-auto "
         "or zb-v, which take any from 1",
         *request.memory_limit, needed);
}

}  // namespace

std::vector<std::int32_t> placement_of(const ScheduleRequest& request) {
  const int stages = request.virtual_stages.value_or(default_virtual_stages(request.kind));
  const bool v_shape =
      default_virtual_stages(request.kind) == 2 && request.kind != ScheduleKind::kInterleaved;
  return v_shape ? v_placement(request.stages) : interleaved_placement(request.stages, stages);
}

namespace {

Sizes sizes_of(const ScheduleRequest& request) {
  return {schedule_names()[static_cast<std::size_t>(request.kind)], request.stages,
          request.micro_batches,
          request.virtual_stages.value_or(default_virtual_stages(request.kind)),
          request.group_size.value_or(request.stages)};
}

}  // namespace

void check_sizes(const ScheduleRequest& request) {
  const Sizes sizes = sizes_of(request);
  if (sizes.stages < 1 || sizes.micro_batches < 1) refuse(sizes, "legal are 1 or more of both");
  check_virtual_stages(sizes, request.kind);
  if (std::int64_t{3} * sizes.stages * sizes.virtual_stages > kActionsMax / sizes.micro_batches)
    refuse(sizes, "more than {} actions. Legal: fewer stages or micro-batches", kActionsMax);
  if (request.kind != ScheduleKind::kInterleaved && sizes.group_size != sizes.stages) {
    refuse(sizes, "a group of {} micro-batches. Legal: none; interleaved alone has groups",
           sizes.group_size);
  }
  check_micro_batches(sizes, request.kind);
}

Schedule make_schedule(const ScheduleRequest& request) {
  const Sizes sizes = sizes_of(request);
  check_sizes(request);
  check_request(request, sizes.name);
  Schedule schedule = generate(request, sizes);
  expect(!schedule.ranks.empty(), "no schedule within a memory limit of 1 or more");
  if (request.memory_limit) check_limit(schedule, request, sizes);
  return schedule;
}

}  // namespace trireme
