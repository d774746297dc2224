#include "dataset/sample_order.h"

#include <algorithm>

#include "base/error.h"
#include "base/human_format.h"
#include "base/random.h"
#include "dataset/permutation.h"

namespace trireme {

WindowSource::WindowSource(Corpus corpus, std::int64_t length, Order order, Shuffle shuffle)
    : corpus_(std::move(corpus)),
      length_(length),
      windows_(corpus_.windows(length)),
      order_(order),
      key_(stream_key(static_cast<std::uint64_t>(shuffle.seed), "data.shuffled")),
      source_(shuffle.source) {
  if (windows_ < 1) {
    throw ConfigError(
        "{}: holds {} in the documents [{}, {}), fewer than one window of data.sequence_length + 1 "
        "= {} (there would be no sample). Give more text or a shorter data.sequence_length",
        corpus_.file().bin_path(), counted(corpus_.tokens(), "token"), corpus_.range().begin,
        corpus_.range().end, length + 1);
  }
}

std::int64_t WindowSource::window_of(std::int64_t sample) const {
  const std::int64_t epoch = sample / windows_, index = sample % windows_;
  if (order_ == Order::kSequential) return index;
  const auto stream =
      (static_cast<std::uint64_t>(source_) << 40) | static_cast<std::uint64_t>(epoch);
  return RandomPermutation(key_, stream, windows_)(index);
}

void WindowSource::read(std::int64_t sample, const Window& window) const {
  corpus_.read(corpus_.window_begin(window_of(sample), length_), window);
}

std::string WindowSource::describe(std::int64_t sample, std::int64_t index) const {
  return corpus_.file().describe(corpus_.window_begin(window_of(sample), length_) + index);
}

SyntheticSource::SyntheticSource(std::int64_t length, std::int64_t vocab_size, std::int64_t seed,
                                 const std::string& purpose)
    : length_(length),
      vocab_size_(vocab_size),
      key_(stream_key(static_cast<std::uint64_t>(seed), "data.synthetic." + purpose)) {
  expect(vocab_size >= 1 && vocab_size <= std::numeric_limits<std::int32_t>::max(),
         "a vocabulary of {}", vocab_size);
}

void SyntheticSource::read(std::int64_t sample, const Window& window) const {
  const std::span<std::int32_t> tokens = window.tokens;
  for (std::size_t at = 0; at < tokens.size(); at += 4) {
    const auto words = philox(key_, at / 4, static_cast<std::uint64_t>(sample));
    for (std::size_t i = 0; i < std::min<std::size_t>(4, tokens.size() - at); ++i) {
      tokens[at + i] = static_cast<std::int32_t>((std::uint64_t{words[i]} * vocab_size_) >> 32);
    }
  }
  std::fill(window.document_begin.begin(), window.document_begin.end(), 0);
  std::fill(window.counted.begin(), window.counted.end(), std::uint8_t{1});
}

std::string SyntheticSource::describe(std::int64_t sample, std::int64_t index) const {
  return fmt::format("synthetic: sample {}, position {}", sample, index);
}

}  // namespace trireme
