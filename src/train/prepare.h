#pragma once
// Everything that is fixed before any memory is taken: the config with its model, tokenizer, data
// and batch arithmetic, checked as a whole on rank 0, then the same on every rank.

#include <functional>

#include "comm/launch.h"
#include "plan/resolve.h"
#include "telemetry/console.h"
#include "train/inputs.h"
#include "train/run_prediction.h"

namespace trireme {

struct PreparedRun {
  RunConfig config;  ///< derived defaults written out
  ResolvedRun run;
  DataFacts data;
  std::vector<std::string> tokenizer_hashes;  ///< Tokenizer::hashes()
  Json data_fingerprints = Json::object();    ///< of a run (kTraining)
  std::int64_t end_token = -1;  ///< of the tokenizer: what ends a document in the data; -1: none
  std::optional<PredictedTime> predicted;  ///< on rank 0, with log.cluster
  bool global_batch_given = false;         ///< by the user, not derived
  /// Windows of each of evaluation.batches; 0: the largest of batch.global.
  std::int64_t evaluation_batch = 0;
};

/// What the config is read for.
enum class Needs : std::uint8_t {
  kTraining,    ///< a run, whose folder must hold nothing of others that it would overwrite
  kEvaluation,  ///< the same data; nothing is written
  kData,        ///< likewise; the tokenizer is not known to be that of the data
  kSynthetic,   ///< data are not opened
};

/// Another model in place of the config's. ConfigError where it has fewer layers than stages, or
/// other experts than parallel.expert_placement places.
void take_model(PreparedRun& prepared, const ModelConfig& model);

/// For readers; the windows of the data are left out.
BatchArithmetic arithmetic_of(const ResolvedRun& run, std::int64_t sequence_length);

/// What prepare_run does on rank 0 of `world` ranks, without the others: for commands that check
/// runs before they start any. What it would log goes to `notes`. `node_ranks` as in NodeFacts.
PreparedRun check_run(LoadedConfig loaded, Needs needs, std::int64_t world,
                      std::vector<std::string>& notes, std::int64_t node_ranks = 0);

/// Reads and checks on rank 0, all faults at once. Collective. Throws SharedError.
PreparedRun prepare_run(const ConfigInput& input, Needs needs, const Launch& launch);
/// The same with a config that `read`, called on rank 0, makes.
PreparedRun prepare_run(const std::function<LoadedConfig()>& read, Needs needs,
                        const Launch& launch);

}  // namespace trireme
