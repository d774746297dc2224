#include "train/standalone_evaluation.h"

#include <algorithm>

#include "base/log.h"

namespace trireme {

namespace {

constexpr std::int64_t kLengthMax = 4096;            // of a sample, where nobody says
constexpr std::int64_t kPassTokens = 4096;           // that a rank computes at once
constexpr std::int64_t kEveryBatch = 1'000'000'000;  // evaluation.batches has no word for all

LoadedConfig config_of(const StandaloneEvaluation& wanted, const ModelSource& source) {
  const std::int64_t length = sequence_length_for(wanted, source);
  Json json = Json::object();
  json["run"]["directory"] = "evaluation";  // nothing is written
  json["run"]["steps"] = 1;
  json["run"]["hang_timeout_seconds"] = wanted.hang_timeout_seconds;
  json["model"] = source.model().source;
  if (!source.tokenizer().empty()) json["tokenizer"] = source.tokenizer();
  json["data"]["train"] = "synthetic";  // not read
  json["data"]["validation"] = wanted.data;
  json["data"]["order"] = "sequential";
  json["data"]["sequence_length"] = length;
  json["data"]["document_mask"] = wanted.document_mask;
  json["batch"]["micro"] = std::clamp<std::int64_t>(kPassTokens / length, 1, 64);
  json["optimizer"]["lr"] = 0.0;
  json["evaluation"]["batches"] = wanted.batches.value_or(kEveryBatch);
  json["parallel"]["tensor"] = wanted.tensor;
  json["parallel"]["pipeline"] = wanted.pipeline;
  if (!wanted.precision.empty()) json["precision"]["compute"] = wanted.precision;
  LoadedConfig loaded = parse_run_config(json);
  loaded.notes.clear();  // of the model, reported when it was read
  return loaded;
}

}  // namespace

std::int64_t sequence_length_for(const StandaloneEvaluation& wanted, const ModelSource& source) {
  if (wanted.sequence_length) return *wanted.sequence_length;
  if (source.sequence_length() > 0) return source.sequence_length();
  const std::int64_t positions = source.model().max_positions;
  return positions > 0 ? std::min(positions, kLengthMax) : kLengthMax;
}

PreparedRun prepare_evaluation(const StandaloneEvaluation& wanted, const ModelSource& source,
                               const Launch& launch) {
  const bool known = !source.tokenizer().empty();
  if (!known) {
    log_info("{} has no tokenizer.json: whether {} was made with its tokenizer is not known",
             source.path().string(), wanted.data);
  }
  PreparedRun prepared = prepare_run([&] { return config_of(wanted, source); },
                                     known ? Needs::kEvaluation : Needs::kData, launch);
  prepared.evaluation_batch = 1;
  return prepared;
}

}  // namespace trireme
