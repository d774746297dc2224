// How long schedules take to make, to check and to simulate. Ends with 1 where a simulation takes
// longer than it may: 50 ms for 32 stages and 256 micro-batches, 1 s for 128 stages of 4 virtual
// ones each and 2,048 micro-batches.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "pipeline/checker.h"
#include "pipeline/schedules/schedules.h"

namespace {

using namespace trireme;

template <class Work>
double seconds_of(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The best of three simulations is within the limit.
bool measure(ScheduleRequest request, double seconds_max) {
  Schedule schedule;
  const double make = seconds_of([&] { schedule = make_schedule(request); });
  const double check = seconds_of([&] { require_valid(schedule, "schedule"); });
  double best = std::numeric_limits<double>::infinity();
  Simulation simulation;
  for (int i = 0; i < 3; ++i) {
    best = std::min(best, seconds_of([&] {
                      simulation = simulate(schedule, request.times, request.w_memory);
                    }));
  }
  const ScheduleShape shape = shape_of(schedule);
  std::size_t actions = 0;
  for (const std::vector<Action>& rank : schedule.ranks) actions += rank.size();
  fmt::print("| {} | {} x {} | {} | {} | {:.1f} | {:.1f} | {:.2f}{} | {:.4f} |\n",
             schedule_names()[static_cast<std::size_t>(request.kind)], shape.ranks,
             shape.stages_per_rank(), shape.micro_batches, actions, make * 1e3, check * 1e3,
             best * 1e3, best <= seconds_max ? "" : " too long", simulation.bubble_rate);
  return best <= seconds_max;
}

}  // namespace

int main() {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  fmt::print("| schedule | ranks x stages | micro-batches | actions | make, ms | check, ms | ");
  fmt::print("simulate, ms | bubble |\n|---|---|---|---|---|---|---|---|\n");
  bool good = true;
  // Times of a model of 28.3 billion parameters on 32 stages (Qi et al. 2023, table 6).
  const ActionTimes times{10402, 10248, 7698, 460};
  for (int kind = 0; kind < static_cast<int>(schedule_names().size()); ++kind) {
    ScheduleRequest request;
    request.kind = static_cast<ScheduleKind>(kind);
    request.stages = 32;
    request.micro_batches = 256;
    request.times = times;
    good = measure(request, 0.05) && good;
  }
  ScheduleRequest large;
  large.kind = ScheduleKind::kInterleaved;
  large.stages = 128;
  large.micro_batches = 2048;
  large.virtual_stages = 4;
  large.times = times;
  good = measure(large, 1) && good;
  // The searches at other sizes.
  for (const ScheduleKind kind : {ScheduleKind::kZbAuto, ScheduleKind::kZbV}) {
    for (const int stages : {4, 8, 16, 64}) {
      ScheduleRequest request;
      request.kind = kind;
      request.stages = stages;
      request.micro_batches = 4 * stages;
      request.times = times;
      request.memory_limit = 1.5 * stages;
      request.w_memory = 0.4324;
      good = measure(request, kAny) && good;
    }
  }
  return good ? 0 : 1;
}
