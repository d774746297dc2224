#include "train/step_timer.h"

#include <utility>

namespace trireme {

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  wall_ns += other.wall_ns;
  for (std::size_t i = 0; i < phase_ns.size(); ++i) phase_ns[i] += other.phase_ns[i];
  exposed_ns += other.exposed_ns;
  waits_in_passes_ns += other.waits_in_passes_ns;
  return *this;
}

double StepTimes::forward_backward_seconds() const {
  return seconds_of(Phase::kForward) + seconds_of(Phase::kBackwardInput) +
         seconds_of(Phase::kBackwardWeight) - static_cast<double>(waits_in_passes_ns) * 1e-9;
}

StepTimes StepTimer::lap() {
  stop();
  return std::exchange(counted_, {});
}

StepTimes StepTimer::since_last_reading() {
  StepTimes since;
  const std::int64_t now_ns = steady_now_ns();
  since.wall_ns = now_ns - std::exchange(read_ns_, now_ns);
  for (std::size_t i = 0; i < since.phase_ns.size(); ++i)
    since.phase_ns[i] = runtime_.trace.take_total_ns(static_cast<Phase>(i));
  const ByAxis exposed_ns = runtime_.channels.exposed_ns();
  since.exposed_ns = exposed_ns - std::exchange(exposed_ns_, exposed_ns);
  since.waits_in_passes_ns = step_.take_waits_in_passes_ns();
  return since;
}

}  // namespace trireme
