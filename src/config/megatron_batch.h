#pragma once
// Megatron-LM's counts of samples: its ramp of the batch, and lengths that are steps here.

#include <optional>

#include "config/megatron_arguments.h"

namespace trireme {

class MegatronBatch {
 public:
  /// Writes batch.global of --rampup-batch-size; --global-batch-size and --seq-length are written.
  MegatronBatch(const MegatronArguments& arguments, ConversionDraft& draft);

  /// The most steps with no more samples than `name` says, by the run's batch; nothing where the
  /// argument is absent or the batch is not known.
  [[nodiscard]] std::optional<std::int64_t> steps_of(const char* name);

 private:
  void take_ramp();
  /// START INCREMENT SAMPLES as phases of equal length; nothing where they are no ramp to `global`.
  [[nodiscard]] std::optional<GlobalBatch> ramp_to(std::int64_t global, std::int64_t length) const;

  const MegatronArguments& a_;
  ConversionDraft& draft_;
  std::optional<BatchRamp> ramp_;
};

}  // namespace trireme
