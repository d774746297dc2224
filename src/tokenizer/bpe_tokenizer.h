#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

enum class Normalization { kNone, kNfc };

/// What a `tokenizer.json` says, checked.
struct BpeParts {
  std::string path, hash;
  Normalization normalization = Normalization::kNone;
  PreTokenizer pre_tokenizer;
  BpeVocabulary vocabulary;
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> texts;                       ///< by id: the bytes of a token
  std::unordered_map<std::string, std::int32_t> names;  ///< token as the file writes it -> id
};

/// Byte-level BPE. Text goes through: added tokens, normalization, added tokens that are looked for
/// in normalized text, pre-tokenizer, merges: the order of Hugging Face `tokenizers`. What is not
/// UTF-8 passes byte by byte, each a piece of its own; the peer takes no such text.
class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts);
  ~BpeTokenizer() override;

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::string_view token_text(std::int32_t id) const override;
  [[nodiscard]] bool is_special(std::int32_t id) const override;
  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view name) const override;
  [[nodiscard]] std::int32_t vocab_size() const override;
  [[nodiscard]] std::optional<std::int32_t> end_token() const override;
  [[nodiscard]] const std::string& hash() const override { return hash_; }
  [[nodiscard]] const std::string& source() const override { return path_; }
  [[nodiscard]] std::size_t split_position(std::string_view text, std::size_t from) const override;

 private:
  struct Scratch;
  class Lease;
  void encode_valid(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void encode_between_tokens(std::string_view text, Scratch& scratch,
                             std::vector<std::int32_t>& ids) const;

  std::string path_, hash_;
  Normalization normalization_;
  PreTokenizer pre_tokenizer_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  BpeModel model_;
  std::vector<std::string> texts_;
  std::vector<bool> special_;
  std::unordered_map<std::string, std::int32_t> names_;
  bool tokens_stay_in_lines_ = true;

  // Working space of threads that are not inside encode() now.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace trireme
