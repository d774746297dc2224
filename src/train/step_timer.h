#pragma once

#include <array>
#include <cstdint>

#include "train/step.h"

namespace trireme {

/// Where a rank's time of a step went.
struct StepTimes {
  std::int64_t wall_ns = 0;
  std::array<std::int64_t, static_cast<std::size_t>(Phase::kCount)> phase_ns = {};  ///< by Phase
  ByAxis exposed_ns;                    ///< waits for other ranks
  std::int64_t waits_in_passes_ns = 0;  ///< of these, what forward's and backward's phases contain

  [[nodiscard]] double seconds() const { return static_cast<double>(wall_ns) * 1e-9; }
  [[nodiscard]] double seconds_of(Phase phase) const {
    return static_cast<double>(phase_ns[static_cast<std::size_t>(phase)]) * 1e-9;
  }
  [[nodiscard]] double exposed_seconds(Axis axis) const {
    return static_cast<double>(exposed_ns[axis]) * 1e-9;
  }
  /// Without their waits.
  [[nodiscard]] double forward_backward_seconds() const;
  StepTimes& operator+=(const StepTimes& other);
};

/// Counts what the steps' thread does between start() and stop(); evaluation is of no step.
class StepTimer {
 public:
  /// Both must outlive this. Stands still at first.
  StepTimer(Runtime& runtime, Step& step) : runtime_(runtime), step_(step) {}
  void start() { static_cast<void>(since_last_reading()); }
  void stop() { counted_ += since_last_reading(); }
  /// What has been counted since the last call; goes on.
  StepTimes lap();

 private:
  StepTimes since_last_reading();

  Runtime& runtime_;
  Step& step_;
  std::int64_t read_ns_ = 0;
  ByAxis exposed_ns_;
  StepTimes counted_;
};

}  // namespace trireme
