#pragma once
// Runs side by side, by config.json and metrics.jsonl. They may be live, over, or not begun.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace trireme {

/// What a run has come to; empty where it has none of it yet.
struct RunSummary {
  std::string directory;              ///< as it was asked for
  std::optional<std::int64_t> steps;  ///< number of the last step
  std::optional<std::int64_t> tokens;
  std::optional<double> loss;             ///< of the last step that has a finite one
  std::optional<double> validation_loss;  ///< of the last evaluation; see summarize_run
  std::optional<double> tokens_per_second,
      mfu;  ///< over all steps, each with its seconds as weight
  /// A step's seconds of the last life that began with log.cluster, mean behind its first step, and
  /// what was predicted.
  std::optional<double> step_seconds, predicted_step_seconds;
  std::optional<double> joules;  ///< of all steps
  std::string end_reason;        ///< of its last life, "" while that lasts or where it was killed
  Json config;                   ///< as config.json has it; null where there is none
};

/// Reads a run's folder. Of several validation sets the mean of the last evaluation counts, or the
/// one that the config's evaluation.watch names. A torn last line is left out. Throws DataError
/// where the folder is missing, no run's (neither config.json nor metrics.jsonl) or unreadable.
RunSummary summarize_run(const std::filesystem::path& directory);

struct Comparison {
  std::vector<RunSummary> runs;
  /// Keys whose values are not the same in all runs, dotted, in the order of config.json; null for
  /// a run without the key. run.directory, which never is, is left out.
  std::vector<std::pair<std::string, std::vector<Json>>> config;
};

Comparison compare_runs(std::vector<RunSummary> runs);

/// {runs: [{directory, steps, tokens, loss, validation_loss, tokens_per_second, mfu,
/// step_seconds, predicted_step_seconds, joules}], config: {path: [values]}}
Json comparison_json(const Comparison& comparison);

/// The same as two tables for people; summaries_text is the first of them, of the runs.
std::string comparison_text(const Comparison& comparison);
std::string summaries_text(const Comparison& comparison);

/// The shortest names that tell folders apart: without the path that all of them share.
std::vector<std::string> short_names(const Comparison& comparison);

}  // namespace trireme
