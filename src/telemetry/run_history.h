#pragma once
// What metrics.jsonl says, over the whole life of a run, restarts included.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "telemetry/run_figures.h"

namespace trireme {

struct LossPoint {
  double tokens;
  double loss;  ///< NaN where the step had none
};

/// The newest that a step had; nothing where none had any.
std::optional<double> last_loss(const std::vector<LossPoint>& points);

/// Of one validation set; the only one may have no name.
struct ValidationCurve {
  std::string name;
  std::vector<LossPoint> points;  ///< in order of tokens
};

struct LossCurves {
  std::vector<LossPoint> training;          ///< in order of tokens
  std::vector<ValidationCurve> validation;  ///< in order of their first evaluations
  std::vector<double> restarts;             ///< tokens at each
  std::vector<double> skips;                ///< tokens of each skipped step
  double begin = 0;  ///< tokens before the first step, of a run that went on from another's
};

class RunHistory {
 public:
  explicit RunHistory(std::filesystem::path metrics_path) : path_(std::move(metrics_path)) {}
  /// Reads the lines added since the last call; all again where the file shrank. Throws DataError.
  void refresh();
  [[nodiscard]] LossCurves curves() const;
  [[nodiscard]] const RunFigures& figures() const { return figures_; }

 private:
  struct Evaluation {
    std::int64_t step;
    std::string name;
    double loss;
  };
  void add(const Json& line);
  [[nodiscard]] double tokens_at(std::int64_t step) const;

  std::filesystem::path path_;
  std::uint64_t offset_ = 0;
  std::vector<std::int64_t> steps_;  // ascending
  std::vector<LossPoint> training_;  // of each of steps_
  double begin_ = 0;
  std::vector<Evaluation> evaluations_;
  std::vector<std::int64_t> restarts_, skips_;
  RunFigures figures_;
};

}  // namespace trireme
