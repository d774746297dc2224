#pragma once
// `train evaluate` without a config: a model's weights and tokens to try them on are enough.

#include <optional>
#include <string>

#include "train/model_source.h"
#include "train/prepare.h"

namespace trireme {

struct StandaloneEvaluation {
  std::string data;  ///< PREFIX
  std::optional<std::int64_t> sequence_length;
  std::optional<std::int64_t> batches;  ///< of one window each; all windows of the data
  bool document_mask = false;
  std::string precision;  ///< "": by device
  std::int64_t tensor = 1, pipeline = 1;
  double hang_timeout_seconds = 0;
};

/// A sample's tokens: as asked for, else the checkpoint's run's, else the positions up to 4,096.
std::int64_t sequence_length_for(const StandaloneEvaluation& wanted, const ModelSource& source);

/// As a run on these ranks whose validation data is the wanted one, in order and each window once.
/// Ranks that tensor and pipeline leave over share the windows out. Collective. Throws SharedError.
PreparedRun prepare_evaluation(const StandaloneEvaluation& wanted, const ModelSource& source,
                               const Launch& launch);

}  // namespace trireme
