#pragma once
// What metrics.jsonl says of a run beside its losses, restarts included, in memory that does not
// grow with the run: steps stand in bins of equal counts, of what happens the last is kept.

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace trireme {

/// Of a step.
enum class Figure : std::uint8_t {
  kGradNorm,
  kLearningRate,
  kStepSeconds,
  kTokensPerSecond,
  kMfu,
  kMemoryBytes,
  kExposedSeconds,  ///< communication that nothing hid, all axes
};
inline constexpr std::size_t kFigureCount = 7;

/// Of the steps of a bin that have the figure, and it is finite.
struct FigureRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  double sum = 0, count = 0;
  void add(double value);
  void add(const FigureRange& later);
  [[nodiscard]] bool known() const { return count > 0; }
  [[nodiscard]] double mean() const { return sum / count; }
};

struct StepBin {
  std::int64_t steps = 0;
  double tokens = 0;  ///< consumed behind its last step
  std::array<FigureRange, kFigureCount> figures;
  [[nodiscard]] const FigureRange& of(Figure figure) const {
    return figures[static_cast<std::size_t>(figure)];
  }
};

enum class RunEventKind : std::uint8_t { kRestart, kSkip, kSave, kFailedSave, kEnd };
inline constexpr std::size_t kRunEventKinds = 5;

struct RunEvent {
  std::int64_t step = 0;
  std::string text;
};

struct RunEvents {
  std::int64_t count = 0;
  std::deque<RunEvent> last;
};

/// Sums over all lives; empty where nobody told.
struct RunTotals {
  std::int64_t steps = 0;  ///< number of the last
  double tokens = 0;
  double step_seconds = 0, stall_seconds = 0;
  double device_seconds = 0;  ///< of both, by the devices of their life
  std::optional<double> joules, predicted_joules;
  std::vector<std::pair<std::string, double>> parts;  ///< of the step's seconds
};

class RunFigures {
 public:
  static constexpr std::size_t kBinsMax = 512, kEventsMax = 50;

  /// Lines in order; strange ones are left out, and steps that have been.
  void add(const Json& line);

  [[nodiscard]] const std::vector<StepBin>& bins() const { return bins_; }
  [[nodiscard]] const StepBin& last_step() const { return last_step_; }
  [[nodiscard]] const RunEvents& events(RunEventKind kind) const {
    return events_[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] const RunTotals& totals() const { return totals_; }
  /// The start line of the newest life; null before any.
  [[nodiscard]] const Json& start() const { return start_; }
  /// Why the newest life ended; "" while it lasts.
  [[nodiscard]] const std::string& end_reason() const { return end_reason_; }
  /// Of devices, and of energy where it is known, at the newest start's prices; empty without any.
  [[nodiscard]] std::optional<double> cost() const;

 private:
  void add_start(const Json& line);
  void add_step(std::int64_t step, const Json& line);
  void add_times(const Json& line);
  void add_checkpoint(std::int64_t step, const Json& line);
  void add_event(RunEventKind kind, std::int64_t step, std::string text);
  void put_into_bin(const StepBin& step);

  std::vector<StepBin> bins_;
  std::int64_t steps_per_bin_ = 1;
  StepBin last_step_;
  std::array<RunEvents, kRunEventKinds> events_;
  RunTotals totals_;
  Json start_;
  std::string end_reason_;
  double world_ = 1;
  std::optional<double> watts_, device_hour_price_, kwh_price_;
};

}  // namespace trireme
