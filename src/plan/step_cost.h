#pragma once
// Where a step's time goes, beside what the machine could do: pure arithmetic on ranks' records.

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/op_trace.h"
#include "plan/machine_rates.h"

namespace trireme {

/// The parts of a step as a reader knows them, in order; both halves of backward are one.
enum class StepPhase : std::uint8_t {
  kData,
  kForward,
  kBackward,
  kCommunication,
  kOptimizer,
  kWaiting,  ///< for other ranks
  kOther,    ///< what no phase covers
  kCount
};
std::string_view name_of(StepPhase phase);
StepPhase step_phase_of(Phase phase);

/// An op in a phase of one rank, over all steps.
struct OpRecord {
  StepPhase phase = StepPhase::kOther;
  std::string op;
  DType type = DType::kF32;
  std::int64_t calls = 0, ns = 0, flops = 0, bytes = 0;
};

/// What one rank has recorded, over all steps.
struct RankTimes {
  std::array<std::int64_t, static_cast<std::size_t>(StepPhase::kCount)> phase_ns = {};
  std::vector<OpRecord> ops;
};
/// Phases without what tracing a device's ops has added to them.
RankTimes rank_times(
    std::span<const std::int64_t, static_cast<std::size_t>(Phase::kCount)> phase_ns,
    const OpTrace& ops);

/// For the way to rank 0, and there.
std::string text_of(const RankTimes& times, const MachineRates& rates);
void parse_rank(std::string_view text, RankTimes& times, MachineRates& rates);

/// Seconds in a step: mean over ranks, and the least and the most of a rank.
struct Range {
  double mean = 0, minimum = 0, maximum = 0;
};

/// Which rate bounds an op: that of products, or that of a copy of as many bytes.
enum class Bound : std::uint8_t { kCompute, kMemory };

/// An op in a phase, in one step.
struct OpCost {
  StepPhase phase = StepPhase::kOther;
  std::string op;
  DType type = DType::kF32;
  std::int64_t calls = 0;  ///< of rank 0
  Range seconds;
  double flops = 0, bytes = 0;  ///< of all ranks
  double bound_seconds = 0;     ///< at the machine's rates, all ranks at once; 0 where not known
  Bound bound = Bound::kCompute;
};

struct PhaseCost {
  Range seconds;
  double not_in_ops = 0;  ///< mean over ranks
};

/// A part of the step across phases: "products", "attention", "memory-bound ops", the rest.
struct PartCost {
  std::string part;
  double seconds = 0, bound_seconds = 0;
};

struct StepCost {
  double seconds = 0;  ///< of a step, mean
  std::array<PhaseCost, static_cast<std::size_t>(StepPhase::kCount)> phases;
  std::vector<OpCost> ops;      ///< by phase, the longest first
  std::vector<PartCost> parts;  ///< ops first, the longest first; their seconds are the step's
  double bound_seconds = 0;     ///< the step at the machine's rates with nothing but ops in it
};

/// `ranks` in order, at least one; `rates` of all ranks together, empty where not measured.
StepCost cost_of_step(std::span<const RankTimes> ranks, std::int64_t steps, double step_seconds,
                      const MachineRates& rates);

}  // namespace trireme
