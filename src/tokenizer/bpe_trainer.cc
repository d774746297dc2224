#include "tokenizer/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <queue>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "tokenizer/byte_level.h"

namespace trireme {

namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::int32_t kFirstByteId = 1;

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}
std::int32_t left_of(std::uint64_t pair) { return static_cast<std::int32_t>(pair >> 32); }
std::int32_t right_of(std::uint64_t pair) { return static_cast<std::int32_t>(pair & 0xFFFFFFFF); }

/// Bytes in the order of the characters that stand for them.
std::array<unsigned char, 256> bytes_in_order() {
  std::array<unsigned char, 256> bytes;
  for (std::size_t i = 0; i < 256; ++i) bytes[i] = static_cast<unsigned char>(i);
  std::sort(bytes.begin(), bytes.end(), [](unsigned char a, unsigned char b) {
    return byte_level_character(a) < byte_level_character(b);
  });
  return bytes;
}

struct Word {
  std::vector<std::int32_t> symbols;
  std::int64_t count;
};

class Learner {
 public:
  Learner() {
    tokens_.emplace_back(kEndOfText);
    const auto bytes = bytes_in_order();
    for (const unsigned char byte : bytes) {
      byte_ids_[byte] = static_cast<std::int32_t>(tokens_.size());
      tokens_.emplace_back(1, static_cast<char>(byte));
      ids_.emplace(tokens_.back(), byte_ids_[byte]);
    }
  }

  void add_word(std::string_view piece, std::int64_t count) {
    if (piece.size() < 2) return;  // no pair in it
    Word word{{}, count};
    for (const char c : piece) word.symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    words_.push_back(std::move(word));
  }

  void learn(std::size_t vocab_size, const std::function<void()>& on_merge) {
    count_pairs();
    while (tokens_.size() < vocab_size && !heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      const auto found = pairs_.find(top.pair);
      if (found == pairs_.end() || found->second.count <= 0) continue;
      if (found->second.count != top.count) {
        heap_.push({found->second.count, top.pair});
        continue;
      }
      merge(top.pair);
      if (on_merge) on_merge();
    }
  }

  [[nodiscard]] const std::vector<std::string>& tokens() const { return tokens_; }
  [[nodiscard]] const std::vector<std::uint64_t>& merges() const { return merges_; }

 private:
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // that may hold it
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t pair;
    bool operator<(const Candidate& other) const {  // the heap's top is the largest
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void change(std::uint64_t pair, std::int64_t amount, std::uint32_t word) {
    Pair& entry = pairs_[pair];
    entry.count += amount;
    if (amount <= 0) return;
    if (entry.words.empty() || entry.words.back() != word) entry.words.push_back(word);
    grown_.push_back(pair);
  }

  void push_grown() {
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const std::uint64_t pair : grown_) heap_.push({pairs_[pair].count, pair});
    grown_.clear();
  }

  void count_pairs() {
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      const auto& symbols = words_[w].symbols;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        change(key_of(symbols[i], symbols[i + 1]), words_[w].count, w);
      }
    }
    push_grown();
  }

  void merge(std::uint64_t pair) {
    const std::int32_t left = left_of(pair), right = right_of(pair);
    std::string text =
        tokens_[static_cast<std::size_t>(left)] + tokens_[static_cast<std::size_t>(right)];
    // Two different pairs can spell the same token, which then stays one.
    const auto [place, is_new] = ids_.emplace(text, static_cast<std::int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(std::move(text));
    merges_.push_back(pair);
    const std::vector<std::uint32_t> words = std::move(pairs_[pair].words);
    for (const std::uint32_t word : words) merge_in_word(word, pair, place->second);
    pairs_.erase(pair);
    push_grown();
  }

  void merge_in_word(std::uint32_t w, std::uint64_t pair, std::int32_t joined) {
    auto& symbols = words_[w].symbols;
    const std::int64_t count = words_[w].count;
    const std::int32_t left = left_of(pair), right = right_of(pair);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      if (symbols[i] != left || i + 1 >= symbols.size() || symbols[i + 1] != right) {
        symbols[kept++] = symbols[i];
        continue;
      }
      if (kept > 0) {
        change(key_of(symbols[kept - 1], left), -count, w);
        change(key_of(symbols[kept - 1], joined), count, w);
      }
      if (i + 2 < symbols.size()) {
        change(key_of(right, symbols[i + 2]), -count, w);
        change(key_of(joined, symbols[i + 2]), count, w);
      }
      symbols[kept++] = joined;
      ++i;
    }
    symbols.resize(kept);
  }

  std::int32_t byte_ids_[256];
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Pair> pairs_;
  std::priority_queue<Candidate> heap_;
  std::vector<std::uint64_t> grown_, merges_;
};

Json byte_level_json() {
  Json json = Json::object();
  json["type"] = "ByteLevel";
  json["add_prefix_space"] = false;
  json["trim_offsets"] = true;
  json["use_regex"] = true;
  return json;
}

Json model_json(const Learner& learner) {
  const auto text_of = [&](std::int32_t id) {
    return to_byte_level(learner.tokens()[static_cast<std::size_t>(id)]);
  };
  Json::Object vocabulary;
  vocabulary.emplace_back(std::string(kEndOfText), Json(0));
  for (std::size_t id = kFirstByteId; id < learner.tokens().size(); ++id) {
    vocabulary.emplace_back(text_of(static_cast<std::int32_t>(id)),
                            Json(static_cast<std::int64_t>(id)));
  }
  Json::Array merges;
  for (const std::uint64_t pair : learner.merges()) {
    merges.emplace_back(text_of(left_of(pair)) + " " + text_of(right_of(pair)));
  }
  Json model = Json::object();
  model["type"] = "BPE";
  for (const char* key :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    model[key] = Json();
  for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) model[key] = false;
  model["vocab"] = Json(std::move(vocabulary));
  model["merges"] = Json(std::move(merges));
  return model;
}

Json end_token_json() {
  Json token = Json::object();
  token["id"] = 0;
  token["content"] = Json(kEndOfText);
  for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) token[key] = false;
  token["special"] = true;
  return token;
}

}  // namespace

BpeTrainer::BpeTrainer() {
  pre_tokenizer_.add_split(Regex(kGpt2Pattern, Regex::Kind::kPattern, "the pre-tokenizer"),
                           SplitBehavior::kIsolated, SplitMatches::kAreDelimiters);
}

void BpeTrainer::add(std::string_view text) {
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, utf8_valid_prefix(text));
    pre_tokenizer_.split(valid, Before::kNothing, scratch_);
    for (const PreTokenizer::Range& range : scratch_.ranges) {
      const std::string_view piece = valid.substr(range.begin, range.end - range.begin);
      const auto found = counts_.find(piece);
      if (found != counts_.end()) {
        ++found->second;
      } else {
        counts_.emplace(piece, 1);
      }
    }
    text.remove_prefix(std::min(valid.size() + 1, text.size()));
  }
}

std::string BpeTrainer::train(std::int32_t vocab_size,
                              const std::function<void()>& on_merge) const {
  if (vocab_size < kVocabSizeMin) {
    throw ConfigError("a vocabulary of {} is too small (256 bytes and {} need {} tokens)",
                      vocab_size, kEndOfText, kVocabSizeMin);
  }
  Learner learner;
  for (const auto& [piece, count] : counts_) learner.add_word(piece, count);
  learner.learn(static_cast<std::size_t>(vocab_size), on_merge);
  if (learner.tokens().size() < static_cast<std::size_t>(vocab_size)) {
    throw ConfigError(
        "a vocabulary of {} is too large for this text (every word of it is one token after {}). "
        "Ask for at most {} or give more text",
        vocab_size, learner.tokens().size(), learner.tokens().size());
  }
  Json root = Json::object();
  root["version"] = "1.0";
  root["truncation"] = Json();
  root["padding"] = Json();
  root["added_tokens"].push_back(end_token_json());
  root["normalizer"] = Json();
  for (const char* key : {"pre_tokenizer", "post_processor", "decoder"})
    root[key] = byte_level_json();
  root["model"] = model_json(learner);
  return root.dump(2) + "\n";
}

}  // namespace trireme
