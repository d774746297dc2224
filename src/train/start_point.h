#pragma once
// Where a run begins: its newest checkpoint that verifies, or fresh weights.

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "train/best_loss.h"
#include "train/model_source.h"
#include "train/noise_scale.h"
#include "train/prepare.h"
#include "train/runtime.h"
#include "train/spike_watch.h"

namespace trireme {

/// Where a run stands; saved and restored.
struct RunProgress {
  std::int64_t step = 0;  ///< updates done, skipped ones included
  std::int64_t consumed_samples = 0;
  std::int64_t skipped_in_a_row = 0;
  BestLoss best;
  SpikeWatch spikes;
  NoiseScale noise;
  Json base = nullptr;  ///< what adapters stand beside, as base_json() says it; null: nothing
};

struct StartPoint {
  std::filesystem::path checkpoint;  ///< empty: fresh
  RunProgress progress;
  std::vector<Rejected>
      rejected;  ///< newer checkpoints that were found to be no good, and reported
};

/// All steps are made, or evaluations say that it has been enough: there is nothing left to do.
bool is_over(const StartPoint& start, const PreparedRun& prepared);
/// The second of these.
bool stopped_early(const StartPoint& start, const PreparedRun& prepared);

/// By run.resume: chooses a checkpoint by manifests and sizes, compares what it was made with to
/// the config (model shape and tokenizer must be equal, any other changed key is printed) and to
/// the batch. Its tensors are read by load_start alone, except where the run is finished: then
/// every hash is verified here. Collective. Throws SharedError.
StartPoint choose_start(const PreparedRun& prepared, Communicator& replica);

/// Fills parameters and, from a checkpoint, moments and counters; fresh runs take init.weights. A
/// checkpoint whose hashes do not hold is reported, and the next older takes its place where
/// run.resume leaves the choice. Returns where the run begins. Collective. Throws SharedError.
StartPoint load_start(Runtime& runtime, const PreparedRun& prepared, StartPoint start);

/// Fills the base that adapters stand beside, in parts (BaseValues). Collective. Throws what
/// ModelSource does.
void load_base_values(Runtime& runtime, const ModelSource& source, std::int64_t bytes_at_once = 0);

/// What the trainer saves besides tensors, so that choose_start can compare.
Json saved_scalars(const PreparedRun& prepared, const RunProgress& progress,
                   const Optimizer& optimizer);

}  // namespace trireme
