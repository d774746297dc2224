#pragma once
// The proof of a schedule before it runs: every rule by name, and the first place where it breaks.
//
//   placement     each rank holds as many virtual stages as the others, at least one
//   place         an action stands on the rank that holds its stage
//   complete      each (stage, micro-batch) has one F and either one BW or one B and one W, at most
//                 one R, and nothing twice
//   order         on a rank F stands before R, R before B or BW, B before W
//   group         one F and one B or BW of another stage or micro-batch, side by side
//   reproducible  F of a stage take the micro-batches in ascending order, and so do W or BW, unless
//                 the schedule says that it is not reproducible
//   progress      program order of all ranks and the edges between stages have no cycle
//   memory        no rank holds more activations than the limit, as simulate.h counts them
//
// All take time and memory in proportion to the actions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "pipeline/schedule.h"

namespace trireme {

struct ScheduleFault {
  std::string_view rule;       ///< as above
  std::int32_t rank = -1;      ///< -1: of no rank
  std::int64_t position = -1;  ///< in the rank's list; -1: of none
  std::string message;         ///< what is wrong there, and what would be legal
  /// "rank 1, position 4 (B3.7), rule order: ..."
  [[nodiscard]] std::string text(const Schedule& schedule) const;
};

struct CheckLimits {
  std::optional<double> memory;  ///< full-stage activations that a rank may hold
  double w_memory = 1;           ///< kept from B to W, in activations
  double r_memory = 0;           ///< made by R until B, beside the activation
};

/// Nothing where the schedule is valid. Any may be asked about, also with numbers out of range.
std::optional<ScheduleFault> check_schedule(const Schedule& schedule,
                                            const CheckLimits& limits = {});

/// ConfigError "SOURCE: text" where check_schedule finds a fault.
void require_valid(const Schedule& schedule, std::string_view source,
                   const CheckLimits& limits = {});

}  // namespace trireme
