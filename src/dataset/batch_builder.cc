#include "dataset/batch_builder.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

BatchRules make_batch_rules(const RunConfig::Data& data, std::int64_t end_token,
                            std::int64_t vocab_size) {
  if (data.mask_eod_loss && end_token < 0) {
    throw ConfigError(
        "data.mask_eod_loss: true, but the tokenizer has no end token (no input could be masked). "
        "Set it to false or name a tokenizer with an end token");
  }
  return {end_token, vocab_size, data.document_mask, data.mask_eod_loss};
}

void check_token_ids(const SampleSource& source, std::int64_t sample,
                     std::span<const std::int32_t> tokens, std::int64_t vocab_size) {
  std::uint32_t largest = 0;  // as unsigned, so that a negative id is the largest
  for (const std::int32_t id : tokens) largest = std::max(largest, static_cast<std::uint32_t>(id));
  if (largest < static_cast<std::uint64_t>(vocab_size)) return;
  const auto outside = [&](std::int32_t id) { return id < 0 || id >= vocab_size; };
  const auto index = std::find_if(tokens.begin(), tokens.end(), outside) - tokens.begin();
  throw DataError(
      "{} is outside the vocabulary of {} (the data were made with another tokenizer than the "
      "model's). Tokenize them again, or set the model's vocab_size",
      source.describe(sample, index), vocab_size);
}

BatchBuilder::BatchBuilder(std::shared_ptr<const SampleSource> source, const BatchRules& rules,
                           std::int64_t sequences, AxisRank context)
    : source_(std::move(source)),
      rules_(rules),
      ranges_(context_ranges(source_->length(), context)),
      sequences_(sequences),
      length_(div_exact(source_->length(), context.extent)),
      input_ids_(DType::kI32, Shape{sequences * length_}),
      targets_(DType::kI32, Shape{sequences * length_}),
      positions_(DType::kI32, Shape{sequences * length_}),
      tokens_(source_->length() + 1),
      counted_(source_->length() + 1) {
  if (rules.document_mask) {
    first_key_ = Buffer(DType::kI32, Shape{sequences * length_});
    document_begin_.resize(source_->length() + 1);
    micro_batch_.first_key = first_key_.view();
  }
  if (rules.numbered) {
    numbers_ = Buffer(DType::kI32, Shape{sequences * length_, 2});
    micro_batch_.numbers = numbers_.view();
  }
  micro_batch_.sequences = sequences;
  micro_batch_.tokens = length_;
  micro_batch_.input_ids = input_ids_.view();
  micro_batch_.targets = targets_.view();
  micro_batch_.positions = positions_.view();
  for (std::int64_t row = 0; row < sequences; ++row) {
    auto* position = positions_.view().as<std::int32_t>() + row * length_;
    for (const PositionRange& range : ranges_) {
      for (std::int64_t i = 0; i < range.count; ++i)
        *position++ = static_cast<std::int32_t>(range.first + i);
    }
  }
}

void BatchBuilder::build(std::span<const std::int64_t> samples) {
  expect(static_cast<std::int64_t>(samples.size()) == sequences_, "{} samples for {} rows",
         samples.size(), sequences_);
  micro_batch_.target_count = 0;
  for (std::int64_t row = 0; row < sequences_; ++row) build_row(row, samples[row]);
}

void BatchBuilder::build_row(std::int64_t row, std::int64_t sample) {
  const std::int64_t begin = row * length_;
  auto* input_ids = input_ids_.view().as<std::int32_t>() + begin;
  auto* targets = targets_.view().as<std::int32_t>() + begin;
  if (sample < 0) {
    std::fill(tokens_.begin(), tokens_.end(), 0);
    std::fill(document_begin_.begin(), document_begin_.end(), 0);
    std::fill(counted_.begin(), counted_.end(), std::uint8_t{0});
  } else {
    source_->read(sample, {tokens_, document_begin_, counted_});
    check_token_ids(*source_, sample, tokens_, rules_.vocab_size);
  }
  std::int64_t at = 0;
  for (const PositionRange& range : ranges_) {
    std::copy_n(tokens_.begin() + range.first, range.count, input_ids + at);
    for (std::int64_t i = range.first; i < range.first + range.count; ++i, ++at)
      targets[at] = counted_[i + 1] == 0 ? -1 : tokens_[i + 1];
  }
  if (rules_.mask_eod_loss) {
    for (std::int64_t i = 0; i < length_; ++i) {
      if (input_ids[i] == rules_.end_token) targets[i] = -1;
    }
  }
  micro_batch_.target_count += length_ - std::count(targets, targets + length_, -1);
  if (rules_.numbered) {
    auto* number = numbers_.view().as<std::int32_t>() + 2 * begin;
    for (const PositionRange& range : ranges_) {
      for (std::int64_t i = range.first; i < range.first + range.count; ++i) {
        *number++ = static_cast<std::int32_t>(sample);
        *number++ = static_cast<std::int32_t>(i);
      }
    }
  }
  if (!rules_.document_mask) return;
  auto* first_key = first_key_.view().as<std::int32_t>() + begin;
  auto* positions = positions_.view().as<std::int32_t>() + begin;
  at = 0;
  for (const PositionRange& range : ranges_) {
    for (std::int64_t i = range.first; i < range.first + range.count; ++i, ++at) {
      first_key[at] = document_begin_[i];
      positions[at] = static_cast<std::int32_t>(i) - document_begin_[i];
    }
  }
}

}  // namespace trireme
