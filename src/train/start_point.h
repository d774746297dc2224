#pragma once
// Where a run begins: its newest checkpoint that verifies, or fresh weights.

#include <filesystem>
#include <string>

#include "train/prepare.h"
#include "train/runtime.h"
#include "train/trainer.h"

namespace trireme {

struct StartPoint {
  std::filesystem::path checkpoint;  ///< empty: fresh
  Progress progress;
};

/// By run.resume: chooses and verifies a checkpoint, compares what it was made with to the config
/// (model shape and tokenizer must be equal, any other changed key is printed) and to the batch.
/// Reads no tensors. Collective. Throws SharedError.
StartPoint choose_start(const PreparedRun& prepared, Communicator& world);

/// Fills parameters and, from a checkpoint, moments and counters; fresh runs take init.weights.
/// Collective.
void load_start(Runtime& runtime, const PreparedRun& prepared, const StartPoint& start);

/// What the trainer saves besides tensors, so that choose_start can compare.
Json saved_scalars(const PreparedRun& prepared, const Progress& progress,
                   std::int64_t applied_updates);

}  // namespace trireme
