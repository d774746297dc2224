#include "config/megatron_batch.h"

#include <algorithm>

#include "base/math.h"

namespace trireme {

namespace {
constexpr const char* kRamp = "--rampup-batch-size";
// Counts that every JSON reader has.
constexpr std::int64_t kTokensMost = (std::int64_t{1} << 53) - 1;
}  // namespace

MegatronBatch::MegatronBatch(const MegatronArguments& arguments, ConversionDraft& draft)
    : a_(arguments), draft_(draft) {
  if (const auto global = draft_.integer("batch.global"); global && *global > 0) ramp_ = *global;
  if (a_.has(kRamp)) take_ramp();
}

void MegatronBatch::take_ramp() {
  const auto global = draft_.integer("batch.global"),
             length = draft_.integer("data.sequence_length");
  const auto leave_out = [&](const char* why) {
    draft_.remark("{} is left out ({}): the global batch is {} from the first step", kRamp, why,
                  global ? std::to_string(*global) : "the same");
  };
  if (!ramp_) return leave_out("it ends at --global-batch-size, which is not known");
  if (!length || *length < 1) return leave_out("its samples are no tokens without --seq-length");
  const std::optional<GlobalBatch> batch = ramp_to(*global, *length);
  if (!batch) {
    return leave_out(
        "START INCREMENT SAMPLES that come to --global-batch-size by whole increments");
  }
  ramp_ = BatchRamp(*batch, *length);
  if (!batch->is_ramp()) return;
  Json phases = Json::array();
  for (const auto& [from_token, size] : batch->phases)
    phases.push_back(Json::Array{from_token, size});
  draft_.erase("batch.global");
  draft_.set("batch.global", std::move(phases), kRamp);
}

std::optional<GlobalBatch> MegatronBatch::ramp_to(std::int64_t global, std::int64_t length) const {
  constexpr std::int64_t kSamplesMost = std::int64_t{1} << 40;
  constexpr std::int64_t kPhasesMost = 10'000;
  const std::optional<std::vector<std::int64_t>> words = a_.wholes(kRamp);
  if (!words || words->size() != 3) return std::nullopt;
  const std::int64_t start = words->at(0), increment = words->at(1), samples = words->at(2);
  if (start < 1 || start > global || increment < 1 || samples < 0 ||
      samples > std::min(kSamplesMost, kTokensMost / length))
    return std::nullopt;
  const std::int64_t increments = (global - start) / increment;
  if (start + increments * increment != global || increments > kPhasesMost) return std::nullopt;
  std::vector<BatchPhase> phases{{0, start}};
  for (std::int64_t i = 1; i <= increments; ++i) {
    // The first whole number of samples that has come so far.
    const std::int64_t from = ceil_div(i * samples, increments) * length;
    if (from > phases.back().from_token) phases.push_back({from, 0});
    phases.back().size = start + i * increment;
  }
  return GlobalBatch(std::move(phases));
}

std::optional<std::int64_t> MegatronBatch::steps_of(const char* name) {
  const auto samples = a_.whole(name);
  if (!samples) return std::nullopt;
  if (!ramp_) {
    draft_.remark("{} counts samples, and without --global-batch-size they are no steps: left out",
                  name);
    return std::nullopt;
  }
  const std::int64_t steps =
      ramp_->steps_within(std::clamp(*samples, std::int64_t{0}, kTokensMost));
  if (ramp_->advance(0, steps) == *samples) return steps;
  const bool constant = ramp_->sizes().size() == 1;
  draft_.remark("{} {} is no {}: {} steps", name, *samples,
                constant ? fmt::format("multiple of the global batch of {}", ramp_->largest())
                         : "sum of whole steps of the ramp",
                steps);
  return steps;
}

}  // namespace trireme
