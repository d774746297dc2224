#pragma once
// The data of a run: training and validation samples, and how they fall to this rank.

#include <memory>
#include <vector>

#include "dataset/loader.h"
#include "dataset/sources.h"
#include "train/evaluator.h"
#include "train/prepare.h"

namespace trireme {

struct RunSources {
  std::shared_ptr<const SampleSource> training;
  std::vector<NamedSource> validation;
};

/// Rank 0 checks the files and builds index caches, then the others open what is there. Collective.
RunSources open_sources(const PreparedRun& prepared, Communicator& job);

/// ConfigError where the run goes by an evaluation's loss and a split leaves validation nothing.
void require_evaluation(const RunConfig& config, const RunSources& sources);

/// How the samples of a batch fall to this rank.
BatchShape batch_shape(const PreparedRun& prepared, const Runtime& runtime);

std::vector<ValidationSet> validation_sets(const RunSources& sources, const PreparedRun& prepared,
                                           const Runtime& runtime);

/// The validation sets of a run; ConfigError where the config names no validation data. Collective.
std::vector<ValidationSet> open_validation(const PreparedRun& prepared, const Runtime& runtime);

}  // namespace trireme
