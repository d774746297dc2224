#include "dataset/megatron_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/math.h"
#include "base/progress.h"
#include "dataset/blend.h"

namespace trireme {
namespace {

constexpr std::int64_t kProgressItems = std::int64_t{1} << 20;

/// numpy's RandomState.shuffle of a one-dimensional array: Fisher-Yates from the back, each index a
/// masked 32-bit word drawn again until it is small enough.
template <class T>
void shuffle(std::span<T> values, std::mt19937& random, Progress& progress) {
  for (std::size_t i = values.size(); i-- > 1;) {
    if (i % kProgressItems == 0) progress.add(kProgressItems);
    const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << std::bit_width(i)) - 1);
    std::uint32_t j;
    do {
      j = static_cast<std::uint32_t>(random()) & mask;
    } while (j > i);
    std::swap(values[i], values[j]);
  }
}

struct EpochPlan {
  std::int64_t epochs = 1;
  std::int64_t samples = 0;  // of all epochs
  std::int64_t shuffled_first =
      0;  // samples shuffled before the rest, which the last epoch apart begins
  bool last_apart = false;
};

EpochPlan plan_epochs(std::int64_t tokens_per_epoch, const MegatronRequest& request) {
  std::int64_t wanted = 0, all_tokens = 0;
  if (!multiply_checked(request.samples, request.length, &wanted) ||
      wanted > std::numeric_limits<std::int64_t>::max() / 4) {
    throw ConfigError("data: {} samples of {} tokens are more than 2^61 tokens", request.samples,
                      request.length);
  }
  EpochPlan plan;
  plan.epochs = std::max<std::int64_t>(1, ceil_div(wanted + 1, tokens_per_epoch));
  expect(multiply_checked(plan.epochs, tokens_per_epoch, &all_tokens), "{} epochs", plan.epochs);
  plan.samples = (all_tokens - 1) / request.length;
  plan.shuffled_first = plan.samples;
  if (plan.epochs > 1) {
    const std::int64_t before_last = (all_tokens - tokens_per_epoch - 1) / request.length;
    const std::int64_t per_epoch = (tokens_per_epoch - 1) / request.length;
    const auto threshold = static_cast<std::int64_t>(0.80 * static_cast<double>(per_epoch));
    plan.last_apart = request.samples - before_last < threshold;
    if (plan.last_apart) plan.shuffled_first = before_last;
  }
  return plan;
}

/// Throws ConfigError where the index would be too large.
EpochPlan plan_index(const IndexedFile& file, const MegatronRequest& request) {
  const std::int64_t tokens =
      file.first_token(request.range.end) - file.first_token(request.range.begin);
  expect(tokens > 0 && request.samples > 0 && request.length > 0, "{} samples of {} tokens from {}",
         request.samples, request.length, tokens);
  const EpochPlan plan = plan_epochs(tokens, request);
  const std::int64_t count = request.range.end - request.range.begin;
  if (file.sequences() > std::numeric_limits<std::int32_t>::max() ||
      plan.epochs > (std::int64_t{1} << 40) / count ||
      plan.samples >= std::numeric_limits<std::uint32_t>::max() - 1) {
    throw ConfigError(
        "data.order: \"megatron\" for {} epochs of {} documents, {} samples: the index would be "
        "too large. Choose \"shuffled\", which needs none",
        plan.epochs, count, plan.samples);
  }
  return plan;
}

std::vector<std::int32_t> build_document_index(SequenceRange range, const EpochPlan& plan,
                                               std::mt19937& random, Progress& progress) {
  const std::int64_t count = range.end - range.begin;
  std::vector<std::int32_t> index(static_cast<std::size_t>(count * plan.epochs));
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<std::int32_t>(range.begin + static_cast<std::int64_t>(i) % count);
  }
  const std::span<std::int32_t> all(index);
  const std::size_t first =
      plan.last_apart ? index.size() - static_cast<std::size_t>(count) : index.size();
  shuffle(all.first(first), random, progress);
  shuffle(all.subspan(first), random, progress);
  return index;
}

std::vector<std::uint32_t> build_shuffle_index(const EpochPlan& plan, std::mt19937& random,
                                               Progress& progress) {
  std::vector<std::uint32_t> index(static_cast<std::size_t>(plan.samples));
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::uint32_t>(i);
  const std::span<std::uint32_t> all(index);
  const auto first = static_cast<std::size_t>(plan.shuffled_first);
  shuffle(all.first(first), random, progress);
  shuffle(all.subspan(first), random, progress);
  return index;
}

}  // namespace

MegatronIndex MegatronIndex::build(const IndexedFile& file, const MegatronRequest& request) {
  const EpochPlan plan = plan_index(file, request);
  const std::int64_t count = request.range.end - request.range.begin;
  MegatronIndex index;
  std::mt19937 random(request.seed);
  Progress progress("ordering " + file.prefix(), count * plan.epochs + 2 * plan.samples,
                    ProgressUnit::kItems);
  index.own_documents_ = build_document_index(request.range, plan, random, progress);
  index.own_positions_.reserve(static_cast<std::size_t>(plan.samples) + 1);
  index.own_offsets_.reserve(static_cast<std::size_t>(plan.samples) + 1);
  std::int64_t position = 0, offset = 0;
  index.own_positions_.push_back(0);
  index.own_offsets_.push_back(0);
  for (std::int64_t sample = 0; sample < plan.samples; ++sample) {
    std::int64_t missing = request.length + 1;  // the extra token is the next sample's first
    for (;;) {
      const std::int64_t left =
          file.length(index.own_documents_[static_cast<std::size_t>(position)]) - offset;
      if (left >= missing) break;
      missing -= left;
      ++position;
      offset = 0;
    }
    offset += missing - 1;
    index.own_positions_.push_back(position);
    index.own_offsets_.push_back(static_cast<std::int32_t>(offset));
    if ((sample + 1) % kProgressItems == 0) progress.add(kProgressItems);
  }
  index.own_shuffle_ = build_shuffle_index(plan, random, progress);
  index.document_index = index.own_documents_;
  index.sample_position = index.own_positions_;
  index.sample_offset = index.own_offsets_;
  index.shuffle_index = index.own_shuffle_;
  return index;
}

MegatronSource::MegatronSource(Corpus corpus, std::int64_t length,
                               std::unique_ptr<MegatronIndex> index)
    : corpus_(std::move(corpus)), length_(length), index_(std::move(index)) {}

/// visitor(token of the file, tokens, place in the window) for each part of a document in a sample.
template <class Visitor>
void MegatronSource::visit_pieces(std::int64_t sample, Visitor&& visitor) const {
  expect(sample >= 0 && sample < count(), "sample {} of an order of {}", sample, count());
  const IndexedFile& file = corpus_.file();
  const std::uint32_t j = index_->shuffle_index[static_cast<std::size_t>(sample)];
  auto position = static_cast<std::size_t>(index_->sample_position[j]);
  std::int64_t offset = index_->sample_offset[j];
  for (std::int64_t at = 0; at < length_ + 1; ++position, offset = 0) {
    const std::int32_t sequence = index_->document_index[position];
    const std::int64_t count = std::min(file.length(sequence) - offset, length_ + 1 - at);
    visitor(file.first_token(sequence) + offset, count, at);
    at += count;
  }
}

void MegatronSource::read(std::int64_t sample, const Window& window) const {
  visit_pieces(sample, [&](std::int64_t token, std::int64_t count, std::int64_t at) {
    corpus_.file().read(token, window.tokens.subspan(at, count));
    if (!window.counted.empty()) corpus_.file().read_mask(token, window.counted.subspan(at, count));
    if (window.document_begin.empty()) return;
    const auto piece = window.document_begin.subspan(at, count);
    std::fill(piece.begin(), piece.end(), static_cast<std::int32_t>(at));
  });
}

std::string MegatronSource::describe(std::int64_t sample, std::int64_t index) const {
  std::string text;
  visit_pieces(sample, [&](std::int64_t token, std::int64_t count, std::int64_t at) {
    if (at <= index && index < at + count) text = corpus_.file().describe(token + index - at);
  });
  return text;
}

MegatronShares megatron_shares(std::span<const double> weights, std::int64_t samples) {
  const std::vector<double> once = normalized(weights);
  MegatronShares shares;
  for (const double weight : once) {
    const double target = std::ceil(static_cast<double>(samples) * weight);
    shares.size += static_cast<std::int64_t>(target);
    shares.requested.push_back(static_cast<std::int64_t>(std::ceil(target * (1 + 0.005))));
  }
  shares.weights = normalized(once);
  return shares;
}

namespace {

std::vector<std::filesystem::path> cache_folders(const RunConfig& config,
                                                 const std::string& prefix) {
  if (config.data.cache_directory) return {*config.data.cache_directory};
  const std::filesystem::path beside = std::filesystem::path(prefix).parent_path();
  return {beside.empty() ? "." : beside, std::filesystem::path(config.run.directory) / "cache"};
}

std::uint32_t megatron_seed(const RunConfig& config) {
  const std::int64_t seed = config.data_seed();
  if (!std::in_range<std::uint32_t>(seed)) {
    throw ConfigError(
        "{}: {} is not in [0, 2^32) (data.order \"megatron\" uses numpy's RandomState). Choose a "
        "smaller one",
        config.data.seed ? "data.seed" : "run.seed", seed);
  }
  return static_cast<std::uint32_t>(seed);
}

/// How corpora are drawn from: one directly; several, or one weighted and split, as a blend.
bool is_blend(const RunConfig& config, std::span<const Corpus> corpora) {
  return corpora.size() > 1 || (config.data.train.weighted && config.data.split);
}

MegatronShares shares_of(const RunConfig& config, std::int64_t samples) {
  std::vector<double> weights;
  for (const auto& [weight, prefix] : config.data.train.blend) weights.push_back(weight);
  return megatron_shares(weights, samples);
}

}  // namespace

void check_megatron_order(const RunConfig& config, std::span<const Corpus> corpora,
                          std::int64_t total_samples) {
  const std::uint32_t seed = megatron_seed(config);
  const std::int64_t samples = std::max<std::int64_t>(total_samples, 1);
  const auto held = [&](const Corpus& corpus, std::int64_t requested) {
    const MegatronRequest request{corpus.range(), config.data.sequence_length, requested, seed};
    return plan_index(corpus.file(), request).samples;
  };
  if (!is_blend(config, corpora)) {
    held(corpora.front(), samples);
    return;
  }
  if (samples > std::int64_t{std::numeric_limits<std::uint32_t>::max()}) {
    throw ConfigError(
        "data.order: \"megatron\" for a blend of {} samples: the index would be too large. Choose "
        "\"shuffled\", which needs none",
        samples);
  }
  const MegatronShares shares = shares_of(config, samples);
  const std::vector<std::int64_t> taken = GreedyBlend(shares.weights).taken(shares.size);
  for (std::size_t d = 0; d < corpora.size(); ++d) {
    const std::int64_t count = held(corpora[d], shares.requested[d]);
    if (taken[d] <= count) continue;
    throw ConfigError(
        "data.train: the blend draws {} samples from {}, whose order holds {} (megatron-core "
        "refuses this too). Change the weights or the number of steps a little",
        taken[d], corpora[d].file().prefix(), count);
  }
}

std::shared_ptr<const SampleSource> make_megatron_source(const RunConfig& config,
                                                         std::vector<Corpus> corpora,
                                                         std::int64_t total_samples) {
  check_megatron_order(config, corpora, total_samples);
  const std::uint32_t seed = megatron_seed(config);
  const std::int64_t samples = std::max<std::int64_t>(total_samples, 1),
                     length = config.data.sequence_length;
  const auto make = [&](Corpus& corpus, std::int64_t requested) {
    const auto folders = cache_folders(config, corpus.file().prefix());
    auto index =
        cached_megatron_index(corpus.file(), {corpus.range(), length, requested, seed}, folders);
    return std::make_shared<const MegatronSource>(std::move(corpus), length, std::move(index));
  };
  if (!is_blend(config, corpora)) return make(corpora.front(), samples);
  const MegatronShares shares = shares_of(config, samples);
  std::vector<std::shared_ptr<const SampleSource>> sources;
  for (std::size_t d = 0; d < corpora.size(); ++d)
    sources.push_back(make(corpora[d], shares.requested[d]));
  return std::make_shared<BlendSource>(std::move(sources), shares.weights,
                                       BlendSource::Repeat::kEndless, shares.size);
}

}  // namespace trireme
