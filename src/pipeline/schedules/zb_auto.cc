#include "pipeline/schedules/schedules.h"
#include "pipeline/schedules/search.h"

namespace trireme {

Schedule make_zb_auto(const ScheduleRequest& request) {
  const int p = request.stages, m = request.micro_batches;
  GreedyTask task{p,
                  m,
                  interleaved_placement(p, 1),
                  request.times,
                  request.memory_limit.value_or(p),
                  request.w_memory,
                  request.stage_sizes};
  std::vector<Schedule> known = {
      make_1f1b(p, m), make_zb_h1(p, m, task.w_memory, task.memory_limit, task.stage_sizes)};
  if (m >= 2 * p - 1)
    known.push_back(make_zb_h2(p, m, task.w_memory, task.memory_limit, task.stage_sizes));
  return shortest_schedule(task, std::move(known));
}

}  // namespace trireme
