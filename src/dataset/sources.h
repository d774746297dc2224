#pragma once
// From the config's "data" to sources of samples.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/run_config.h"
#include "dataset/sample_order.h"

namespace trireme {

/// What one epoch of the training data holds, all sources added.
struct DataFacts {
  bool synthetic = false;  ///< the rest is then 0: synthetic data have no epochs
  std::int64_t documents = 0, tokens = 0, windows = 0;
};

/// Who searches the data for ids outside the vocabulary: one rank is enough, the others follow once
/// it is done. Whoever does not still finds such an id when the sample is read.
enum class TokenCheck : std::uint8_t { kBeforeStart, kOnRead };

struct SourceRequest {
  std::int64_t total_samples =
      0;  ///< of the whole run, steps x global; only the "megatron" order depends on it
  std::int64_t vocab_size = 0;
  /// Of the run's tokenizer; data that name none of them are warned of. Empty: not compared.
  std::vector<std::string> tokenizer_hashes;
  TokenCheck check = TokenCheck::kBeforeStart;
};

/// Opens the training data and counts. Throws ConfigError for a corpus that is empty or shorter
/// than one window ("megatron" goes around a short one), DataError for what the files contain.
DataFacts training_facts(const RunConfig& config);

/// Throws what make_training_source and make_validation_sources would for what the config asks of
/// the data, without building an index or reading the tokens.
void check_training_source(const RunConfig& config, std::int64_t total_samples);
void check_validation_sources(const RunConfig& config);

/// Throws DataError where one of these would for an id outside of request.vocab_size; reads the
/// tokens where nothing else says their largest id. Without an index.
void check_training_tokens(const RunConfig& config, const SourceRequest& request);
void check_validation_tokens(const RunConfig& config, const SourceRequest& request);

/// {PREFIX: {documents, tokens, hash}} of every file that the config names: what a checkpoint
/// keeps, so that a resumed run knows replaced data. Throws DataError.
Json data_fingerprints(const RunConfig& config);

/// "PREFIX.bin: other data than at the checkpoint (documents 240 -> 100, ...)", for names in both.
std::vector<std::string> replaced_data(const Json& saved, const Json& now);

/// The training samples in order. The "megatron" order's index is read from its cache or built and
/// kept there (see megatron_order.h): let one rank call first. Throws as training_facts, and
/// DataError for an id outside the vocabulary.
std::shared_ptr<const SampleSource> make_training_source(const RunConfig& config,
                                                         const SourceRequest& request);

/// What is evaluated by itself; the only one may have no name.
struct NamedSource {
  std::string name;
  std::shared_ptr<const SampleSource> source;
};

/// The windows of the validation data (of each set of data.validation, or the second share of
/// data.split) in order, each once; a blend takes them by weight until a source is used up. None
/// where the config names neither, or gives it 0. request.total_samples is not used.
std::vector<NamedSource> make_validation_sources(const RunConfig& config,
                                                 const SourceRequest& request);

}  // namespace trireme
