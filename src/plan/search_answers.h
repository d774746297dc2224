#pragma once
// What else search answers, of the config's own layout and of the model: plain trials.

#include <optional>
#include <string>
#include <vector>

#include "plan/timed_layout.h"

namespace trireme {

/// A change of one key, and what comes of it: a layout, or why `train` refuses it.
struct Trial {
  std::string change;  ///< "parallel.zero_stage 3"
  std::optional<TimedLayout> layout = {};
  std::string refused = "";
};

/// Of the config as it stands: recomputation, each stage of ZeRO, and fp8 or bf16, each alone.
std::vector<Trial> trials_of(const LayoutTask& task);

/// The largest micro-batch with which the config's own layout fits, the global batch as it is;
/// nothing where none does.
std::optional<TimedLayout> largest_micro_batch(const LayoutTask& task);

/// A layout of the task's ranks that holds little, the first that fits where one does:
/// micro-batches of one sample, full recomputation, 1f1b or v-min. Nothing where none is legal.
std::optional<TimedLayout> frugal_layout(const LayoutTask& task);

/// That of the fewest ranks, up to `most`, on which one fits: any number within a node, then whole
/// nodes. Nothing where the memory is not known.
std::optional<TimedLayout> fewest_ranks(const LayoutTask& task, std::int64_t most);

}  // namespace trireme
