#pragma once
// The lines of metrics.jsonl as plain data: member names are the JSON names, "kind" is the name of
// the struct. A NaN or infinity becomes null, and so does an empty optional.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace trireme {

/// Seconds of one step on rank 0.
struct StepTime {
  double forward_backward = 0;
  std::vector<std::pair<std::string, double>> communication_exposed;  ///< by axis
  double data_wait = 0;
  double optimizer = 0;
};

/// A step of the run as log.cluster foretells it, of the rank that ends last.
struct PredictedTime {
  std::string cluster;  ///< its name
  double step_seconds = 0;
  StepTime time;                ///< nobody waits for data; "pipeline" has the bubble
  std::optional<double> watts;  ///< of all nodes, at the site's meter; empty where none are given
  /// Of a device's hour and of energy; empty where the cluster has none.
  std::optional<double> device_hour_price, kwh_price;
};

/// Once for each start of the program.
struct StartLine {
  std::string version;
  std::int64_t world = 1;
  Json mesh;  ///< {axis: extent}
  std::int64_t parameters = 0;
  std::int64_t model_flops_per_token = 0;
  std::optional<double> peak_tflops;       ///< of one device; empty where unknown
  Json config;                             ///< resolved
  std::optional<PredictedTime> predicted;  ///< no key without log.cluster
};

/// Of a model with experts.
struct ExpertFigures {
  double aux_loss = 0, z_loss = 0;
  std::vector<double> load;  ///< of each layer: most tokens of an expert / the mean; 0: no experts
};

/// Once for each update, skipped ones included.
struct StepLine {
  std::int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;  ///< before clipping
  double lr = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t consumed_tokens = 0;
  double step_seconds = 0;  ///< without evaluation and the stall of a save
  double tokens_per_second = 0;
  double tflops_per_second = 0;   ///< all ranks
  std::optional<double> mfu;      ///< 0 to 1
  std::int64_t memory_bytes = 0;  ///< largest rank
  std::optional<ExpertFigures> experts;
  StepTime time;
  /// Of all machines that tell, since the last line that has it; no key elsewhere.
  std::optional<double> joules = {};
  std::optional<double> logit_z_loss = {};  ///< beside `loss`; no key without stability.z_loss
  std::optional<double> noise_scale = {};   ///< samples; no key without stability.noise_scale
};

struct EvaluationLine {
  std::int64_t step = 0;
  double loss = 0;
  double perplexity = 0;
  std::int64_t tokens = 0;  ///< that the loss is the mean of
  std::string name = {};    ///< of the set; empty, and no key, where the only one has none
};

/// Of evaluation.samples.
struct SampleLine {
  std::int64_t step = 0;
  std::string prompt;
  std::string text;  ///< its continuation
};

struct CheckpointLine {
  std::int64_t step = 0;
  std::string path;
  std::int64_t bytes = 0;
  double stall_seconds = 0;  ///< that training waited
  double save_seconds = 0;
  std::optional<std::string> error;  ///< empty when saved
};

/// Reasons of skipped steps besides what is not finite: no target of the global batch counts; the
/// config says so (stability.skip_steps); the loss or the norm is a spike (stability.skip_spikes).
inline constexpr std::string_view kNoTargets = "no_targets", kPassedOver = "skip_steps",
                                  kLossSpike = "loss_spike", kNormSpike = "grad_norm_spike";

struct SkipLine {
  std::int64_t step = 0;
  std::string reason;
  // Of the first non-finite value, where that is the reason; else empty.
  std::int64_t rank = 0;
  std::string tensor;

  [[nodiscard]] bool not_finite() const { return !tensor.empty(); }
};

/// Norms of the trained parameters of a block; see BlockMeter.
struct BlockNorms {
  std::string name;  ///< "embedding", "layer 0", ..., "head"
  double grad_norm = 0, weight_norm = 0, update_norm = 0;
};

/// Of log.blocks: a step whose update was looked at.
struct BlocksLine {
  std::int64_t step = 0;
  std::vector<BlockNorms> blocks;
};

struct ResumeLine {
  std::int64_t step = 0;
  std::string path;
};

enum class EndReason : std::uint8_t {
  kSteps,
  kExitAtStep,
  kTime,
  kSignal,
  kStopFile,
  kEarlyStop,
  kDiverged,
  kError
};
/// "steps", "exit_at_step", "time", "signal", "stop_file", "early_stop", "diverged", "error"
std::string_view name_of(EndReason reason);

struct EndLine {
  std::int64_t step = 0;
  EndReason reason = EndReason::kSteps;
  std::int64_t failed_saves = 0;
  std::optional<double> bubble_measured, bubble_simulated;  ///< empty without a pipeline
  /// Updates that the norm took back; empty, and no key, without parallel.speculative_step.
  std::optional<std::int64_t> undone_steps;
  /// Means over the steps behind the first of this start, and what was predicted; no keys without.
  std::optional<double> step_seconds = {}, predicted_step_seconds = {};
  std::optional<double> joules = {};  ///< of this start's steps; no key where nobody tells
};

Json to_json(const StartLine& line);
Json to_json(const StepLine& line);
Json to_json(const EvaluationLine& line);
Json to_json(const SampleLine& line);
Json to_json(const CheckpointLine& line);
Json to_json(const SkipLine& line);
Json to_json(const BlocksLine& line);
Json to_json(const ResumeLine& line);
Json to_json(const EndLine& line);

}  // namespace trireme
