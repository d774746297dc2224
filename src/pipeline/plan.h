#pragma once
// A pipeline schedule as a value: for each rank the order of its actions.

#include <cstdint>
#include <vector>

namespace trireme {

enum class ActionKind : std::uint8_t {
  kForward,         ///< F
  kBackwardInput,   ///< B: gradient of the input
  kBackwardWeight,  ///< W: gradient of the weights, any time after B
  kBackward,        ///< BW: both, the same bits
};

struct Action {
  ActionKind kind;
  std::int32_t virtual_stage;  ///< 0 ... in order of the model
  std::int32_t micro_batch;
  friend bool operator==(const Action&, const Action&) = default;
};

struct Plan {
  std::vector<std::vector<Action>> ranks;
};

/// 1F1B (PipeDream-flush; Narayanan et al. 2021): rank i runs min(p-1-i, m) forwards ahead, then
/// forward and backward in turns, then the remaining backwards. p = 1 gives F0 BW0 F1 BW1 ...: one
/// micro-batch in flight.
Plan make_1f1b(int stages, int micro_batches);

}  // namespace trireme
