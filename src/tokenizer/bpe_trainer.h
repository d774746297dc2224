#pragma once
// Learns a byte-level BPE (Sennrich et al. 2016, bytes and pre-tokenizer of GPT-2): again and again
// the most frequent adjacent pair of symbols becomes a token.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tokenizer/pre_tokenizer.h"

namespace trireme {

/// Ids: <|endoftext|> is 0, the 256 bytes follow in order of their characters in the byte alphabet,
/// then the merges. Of equally frequent pairs the one of smaller ids is taken, left before right;
/// so the result depends on the text alone and is that of Hugging Face's BpeTrainer with that
/// special token and ByteLevel's alphabet.
class BpeTrainer {
 public:
  static constexpr std::int32_t kVocabSizeMin = 257;

  BpeTrainer();

  /// Counts the pieces of a text; what is not UTF-8 passes byte by byte.
  void add(std::string_view text);
  /// Where a text may be cut without changing the counts.
  [[nodiscard]] std::size_t split_position(std::string_view text, std::size_t from) const {
    return pre_tokenizer_.split_position(text, from);
  }
  [[nodiscard]] bool empty() const { return counts_.empty(); }

  /// A `tokenizer.json`. `on_merge`: after each merge. ConfigError for a wrong vocab_size.
  [[nodiscard]] std::string train(std::int32_t vocab_size,
                                  const std::function<void()>& on_merge = {}) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  PreTokenizer pre_tokenizer_;
  PreTokenizer::Scratch scratch_;
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> counts_;
};

}  // namespace trireme
