#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "train/runtime.h"

namespace trireme {

/// Writes run.directory/trace.json with the spans of all ranks over the steps of log.trace_steps.
class TraceSteps {
 public:
  explicit TraceSteps(Runtime& runtime)
      : runtime_(runtime), steps_(runtime.config.log.trace_steps) {}
  /// Before and after each step, with its number. Collective. A failed write is warned of.
  void before(std::int64_t step);
  void after(std::int64_t step);
  /// The trace begins or ends behind this step.
  [[nodiscard]] bool turns_behind(std::int64_t step) const {
    return steps_ && (step + 1 == (*steps_)[0] || step == (*steps_)[1]);
  }

 private:
  Runtime& runtime_;
  std::optional<std::array<std::int64_t, 2>> steps_;
};

}  // namespace trireme
