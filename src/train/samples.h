#pragma once
// evaluation.samples: prompts that a run continues where it evaluates, to see what it writes.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "telemetry/metrics_lines.h"
#include "tokenizer/tokenizer.h"
#include "train/prepare.h"
#include "train/runtime.h"

namespace trireme {

class Watchdog;

/// The ids of evaluation.samples[index]. ConfigError for a prompt that is empty or does not fit.
std::vector<std::int32_t> ids_of_prompt(const RunConfig& config, std::size_t index,
                                        const Tokenizer& tokenizer);

/// Continues the prompts with the weights as they stand, in the run's own precision: the decoder
/// reads the run's store, gathered as ZeRO has it, and runs on the run's tensor-parallel ranks and
/// pipeline stages. Ranks that have other data or another part of a sequence do the same beside
/// them. Training has the same bits with and without.
class Samples {
 public:
  /// Tokens of a continuation, where the end token does not come before.
  static constexpr std::int64_t kNewTokens = 64;

  /// Takes the memory. Collective. Throws SharedError, as ids_of_prompt.
  Samples(Runtime& runtime, const PreparedRun& prepared);
  /// A line for each prompt, on rank 0; the likeliest token each time. Collective.
  std::vector<SampleLine> continue_prompts(std::int64_t step, Watchdog* watchdog);

 private:
  Runtime& runtime_;
  const std::vector<std::string> prompts_;
  const int sampler_;                     // the rank whose logits count
  std::unique_ptr<Tokenizer> tokenizer_;  // on rank 0
  std::vector<std::vector<std::int32_t>> ids_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace trireme
