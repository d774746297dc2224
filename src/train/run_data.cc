#include "train/run_data.h"

namespace trireme {

RunSources open_sources(const PreparedRun& prepared, Communicator& job) {
  SourceRequest request;
  request.total_samples = prepared.run.samples();
  request.vocab_size = prepared.config.model.vocab_size;
  request.tokenizer_hashes = prepared.tokenizer_hashes;
  RunSources sources;
  for (const bool leader : {true, false}) {
    request.check = leader ? TokenCheck::kBeforeStart : TokenCheck::kOnRead;
    run_together(job, [&] {
      if ((job.rank() == 0) != leader) return;
      sources.training = make_training_source(prepared.config, request);
      sources.validation = make_validation_sources(prepared.config, request);
    });
    if (job.size() == 1) break;
  }
  return sources;
}

void require_evaluation(const RunConfig& config, const RunSources& sources) {
  if (!sources.validation.empty()) return;
  if (!config.checkpoint.keep_best && config.evaluation.stop_after == 0) return;
  throw SharedError(
      ExitCode::kConfig,
      fmt::format("data.split: gives validation no share, so that {} has nothing to "
                  "go by. Give it one, or leave that out",
                  config.checkpoint.keep_best ? "checkpoint.keep_best" : "evaluation.stop_after"));
}

BatchShape batch_shape(const PreparedRun& prepared, const Runtime& runtime) {
  BatchShape shape;
  shape.global = prepared.run.ramp;
  shape.micro = prepared.run.passes.micro;
  shape.accumulation = prepared.run.passes.accumulation;
  shape.data_rank = runtime.data_rank();
  shape.data_ranks = static_cast<int>(prepared.run.batch.data_ranks);
  shape.tokens = prepared.config.data.sequence_length;
  shape.context = runtime.part.cut.context;
  // A step that runs ahead may be computed again, and its successor's targets are counted by then.
  shape.lookahead = prepared.config.parallel.speculative_step ? 2 : 1;
  shape.numbered = prepared.config.model.numbers_tokens();
  return shape;
}

std::vector<ValidationSet> validation_sets(const RunSources& sources, const PreparedRun& prepared,
                                           const Runtime& runtime) {
  const RunConfig& config = prepared.config;
  BatchShape shape = batch_shape(prepared, runtime);
  if (prepared.evaluation_batch > 0) shape.global = prepared.evaluation_batch;
  std::vector<ValidationSet> sets;
  for (const NamedSource& set : sources.validation) {
    sets.push_back({set.name, std::make_unique<EvaluationBatches>(
                                  set.source, config.data, shape, config.evaluation.batches,
                                  prepared.end_token, config.model.vocab_size)});
  }
  return sets;
}

std::vector<ValidationSet> open_validation(const PreparedRun& prepared, const Runtime& runtime) {
  const RunSources sources = open_sources(prepared, runtime.launch.job());
  if (sources.validation.empty()) {
    throw SharedError(
        ExitCode::kConfig,
        "data.validation: the config names no validation data (nor data.split). Add it.");
  }
  return validation_sets(sources, prepared, runtime);
}

}  // namespace trireme
