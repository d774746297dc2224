#include "dataset/sources.h"

#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "dataset/blend.h"
#include "dataset/megatron_order.h"
#include "dataset/split.h"
#include "dataset/token_check.h"

namespace trireme {
namespace {

using Sources = std::vector<std::shared_ptr<const SampleSource>>;

std::vector<double> weights_of(const DataSource& data) {
  std::vector<double> weights;
  for (const auto& [weight, prefix] : data.blend) weights.push_back(weight);
  // Twice, as megatron-core's builder and its blend both do it: the second can change the last bit.
  return normalized(normalized(weights));
}

/// A source that would never be drawn, or weights that leave the numbers.
void check_weights(const DataSource& data, std::string_view key) {
  const std::vector<double> shares = weights_of(data);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] > 0 && shares[i] <= 1) continue;
    throw ConfigError(
        "{}: the weight {} of {} makes a share of {} beside the others. Choose weights nearer to "
        "each other",
        key, data.blend[i].first, data.blend[i].second, shares[i]);
  }
}

std::int64_t packed_length(const IndexedFile& file) {
  return file.facts() ? file.facts()->packed : 0;
}

/// Windows of another length would cut what `tokenize --pack` put together.
void check_packing(const IndexedFile& file, const RunConfig& config) {
  const std::int64_t packed = packed_length(file);
  if (packed == 0 || packed == config.data.sequence_length) return;
  throw ConfigError(
      "data.sequence_length: {}, and {} is packed in windows of {} (others would cut its "
      "documents). Set it to {}, or tokenize with --pack {}",
      config.data.sequence_length, file.prefix(), packed, packed, config.data.sequence_length);
}

/// The part of a file that data.split gives. Of a packed one whole windows, and the sequence behind
/// them, with which their last target stands.
SequenceRange range_of(const IndexedFile& file, const std::optional<std::string>& split,
                       DataPart part) {
  if (!split) return {0, file.sequences()};
  const auto place = static_cast<std::size_t>(part);
  const std::int64_t packed = packed_length(file);
  if (packed == 0) return split_sequences(*split, file.sequences())[place];
  const SequenceRange windows = split_sequences(*split, file.documents())[place];
  const std::int64_t begin = file.sequence_of(windows.begin * packed);
  if (windows.begin == windows.end) return {begin, begin};
  return {begin, windows.end == file.documents() ? file.sequences()
                                                 : file.sequence_of(windows.end * packed) + 1};
}

std::vector<Corpus> open_corpora(const RunConfig& config, const DataSource& data, DataPart part,
                                 std::string_view key) {
  check_weights(data, key);
  std::vector<Corpus> corpora;
  for (const auto& [weight, prefix] : data.blend) {
    auto file = std::make_shared<const IndexedFile>(prefix);
    check_packing(*file, config);
    const SequenceRange range = range_of(*file, config.data.split, part);
    corpora.emplace_back(std::move(file), range);
    if (corpora.back().tokens() > 0) continue;
    throw ConfigError(
        "{}.bin: {} (there would be no sample). Give it text{}", prefix,
        config.data.split ? "holds no token in its share of data.split" : "holds no token",
        config.data.split ? " or change data.split" : "");
  }
  return corpora;
}

/// The part of data.train that data.split leaves for training, or all of it.
std::vector<Corpus> open_training_corpora(const RunConfig& config) {
  std::vector<Corpus> corpora =
      open_corpora(config, config.data.train, DataPart::kTrain, "data.train");
  if (config.data.order != SampleOrderKind::kMegatron) return corpora;
  for (const Corpus& corpus : corpora) {
    if (packed_length(corpus.file()) == 0) continue;
    throw ConfigError(
        "data.order: \"megatron\" shuffles documents, and {} is packed in windows, which that "
        "would "
        "take apart. Choose \"shuffled\" or \"sequential\", or tokenize without --pack",
        corpus.file().prefix());
  }
  return corpora;
}

Sources window_sources(const RunConfig& config, std::vector<Corpus> corpora,
                       WindowSource::Order order) {
  Sources sources;
  for (Corpus& corpus : corpora) {
    const WindowSource::Shuffle shuffle{config.data_seed(),
                                        static_cast<std::int64_t>(sources.size())};
    sources.push_back(std::make_shared<WindowSource>(std::move(corpus), config.data.sequence_length,
                                                     order, shuffle));
  }
  return sources;
}

void check_all(const std::vector<Corpus>& corpora, const RunConfig& config,
               const SourceRequest& request) {
  if (request.check == TokenCheck::kOnRead) return;
  for (const Corpus& corpus : corpora) {
    if (packed_length(corpus.file()) > 0 && !config.data.document_mask) {
      log_warning(
          "{}: is packed, and attention sees from one document of a window into the next: set "
          "data.document_mask to true",
          corpus.file().prefix());
    }
    check_tokens(corpus, {request.vocab_size, config.data.scan_bytes, request.tokenizer_hashes});
  }
}

std::shared_ptr<const SampleSource> synthetic_source(const RunConfig& config,
                                                     const SourceRequest& request,
                                                     const std::string& purpose) {
  return std::make_shared<SyntheticSource>(config.data.sequence_length, request.vocab_size,
                                           config.data_seed(), purpose);
}

/// What is evaluated: without "data.validation" the split of the training data.
std::vector<std::pair<std::string, DataSource>> validation_sets(const RunConfig& config) {
  if (config.data.validation) return config.data.validation->sets;
  if (config.data.split && split_gives(*config.data.split, DataPart::kValidation))
    return {{"", config.data.train}};
  return {};
}

/// Where the config has a set: "data.validation.web".
std::string key_of_set(const RunConfig& config, const std::string& name) {
  if (!config.data.validation) return "data.train";
  return name.empty() ? "data.validation" : "data.validation." + name;
}

Sources validation_windows(const RunConfig& config, std::vector<Corpus> corpora) {
  return window_sources(config, std::move(corpora), WindowSource::Order::kSequential);
}

}  // namespace

DataFacts training_facts(const RunConfig& config) {
  if (config.data.train.synthetic) return {.synthetic = true};
  DataFacts facts;
  for (const Corpus& corpus : open_training_corpora(config)) {
    facts.documents += corpus.documents();
    facts.tokens += corpus.tokens();
    facts.windows += config.data.order == SampleOrderKind::kMegatron
                         ? corpus.windows(config.data.sequence_length)
                         : WindowSource(corpus, config.data.sequence_length,
                                        WindowSource::Order::kSequential, {})
                               .count();
  }
  return facts;
}

void check_training_source(const RunConfig& config, std::int64_t total_samples) {
  if (config.data.train.synthetic) return;
  std::vector<Corpus> corpora = open_training_corpora(config);
  if (config.data.order == SampleOrderKind::kMegatron) {
    check_megatron_order(config, corpora, total_samples);
  } else {
    window_sources(config, std::move(corpora), WindowSource::Order::kSequential);
  }
}

void check_validation_sources(const RunConfig& config) {
  for (const auto& [name, data] : validation_sets(config)) {
    if (data.synthetic) continue;
    validation_windows(config,
                       open_corpora(config, data, DataPart::kValidation, key_of_set(config, name)));
  }
}

void check_training_tokens(const RunConfig& config, const SourceRequest& request) {
  if (config.data.train.synthetic) return;
  check_all(open_training_corpora(config), config, request);
}

void check_validation_tokens(const RunConfig& config, const SourceRequest& request) {
  for (const auto& [name, data] : validation_sets(config)) {
    if (data.synthetic) continue;
    check_all(open_corpora(config, data, DataPart::kValidation, key_of_set(config, name)), config,
              request);
  }
}

std::shared_ptr<const SampleSource> make_training_source(const RunConfig& config,
                                                         const SourceRequest& request) {
  if (config.data.train.synthetic) return synthetic_source(config, request, "train");
  std::vector<Corpus> corpora = open_training_corpora(config);
  check_all(corpora, config, request);
  if (config.data.order == SampleOrderKind::kMegatron) {
    return make_megatron_source(config, std::move(corpora), request.total_samples);
  }
  const auto order = config.data.order == SampleOrderKind::kSequential
                         ? WindowSource::Order::kSequential
                         : WindowSource::Order::kShuffled;
  Sources sources = window_sources(config, std::move(corpora), order);
  if (sources.size() == 1) return sources.front();
  return std::make_shared<BlendSource>(std::move(sources), weights_of(config.data.train),
                                       BlendSource::Repeat::kEndless);
}

std::vector<NamedSource> make_validation_sources(const RunConfig& config,
                                                 const SourceRequest& request) {
  std::vector<NamedSource> sets;
  for (const auto& [name, data] : validation_sets(config)) {
    if (data.synthetic) {
      const std::string purpose = name.empty() ? "validation" : "validation " + name;
      sets.push_back({name, synthetic_source(config, request, purpose)});
      continue;
    }
    std::vector<Corpus> corpora =
        open_corpora(config, data, DataPart::kValidation, key_of_set(config, name));
    check_all(corpora, config, request);
    sets.push_back(
        {name, std::make_shared<BlendSource>(validation_windows(config, std::move(corpora)),
                                             weights_of(data), BlendSource::Repeat::kOnce)});
  }
  return sets;
}

}  // namespace trireme
