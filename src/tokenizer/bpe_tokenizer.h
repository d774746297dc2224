#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

/// What a `tokenizer.json` says, checked.
struct BpeParts {
  std::string path, hash, file_hash;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;  ///< of a vocabulary over characters
  BpeVocabulary vocabulary;
  std::vector<AddedToken> added_tokens;
  /// By id: the bytes of a token; over characters, the token as the file writes it.
  std::vector<std::string> texts;
  std::unordered_map<std::string, std::int32_t> names;  ///< token as the file writes it -> id
};

/// BPE over bytes or characters. Text goes through: added tokens, normalization, added tokens that
/// are looked for in normalized text, pre-tokenizer, merges: the order of Hugging Face
/// `tokenizers`. What is not UTF-8 passes byte by byte, each a piece of its own, behind which no
/// word mark is added; the peer takes no such text.
class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts);
  ~BpeTokenizer() override;

  using Tokenizer::decode;
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::vector<std::size_t> encode_and_find(
      std::string_view text, std::span<const std::size_t> places,
      std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids,
                                   SpecialTokens special) const override;
  [[nodiscard]] std::string_view token_text(std::int32_t id) const override;
  [[nodiscard]] bool is_special(std::int32_t id) const override;
  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view name) const override;
  [[nodiscard]] std::int32_t vocab_size() const override;
  [[nodiscard]] std::optional<std::int32_t> end_token() const override;
  [[nodiscard]] const std::string& hash() const override { return hash_; }
  [[nodiscard]] const std::string& file_hash() const override { return file_hash_; }
  [[nodiscard]] const std::string& source() const override { return path_; }
  [[nodiscard]] std::size_t split_position(std::string_view text, std::size_t from) const override;

 private:
  struct Scratch;
  struct Search;
  class Lease;
  void encode_valid(std::string_view text, Before before, Scratch& scratch,
                    std::vector<std::int32_t>& ids) const;
  void encode_between_tokens(std::string_view text, Before before, Scratch& scratch,
                             std::vector<std::int32_t>& ids) const;
  // encode_and_find: places move from the text to what becomes of it, then to the tokens.
  void move_to_normal(std::string_view piece, std::string_view normal, Before before,
                      Scratch& scratch) const;
  void move_to_cut(std::string_view text, std::string_view cut, Before before,
                   Scratch& scratch) const;
  void find_in(PreTokenizer::Range range, std::span<const std::int32_t> ids, std::size_t first,
               Scratch& scratch) const;
  [[nodiscard]] std::size_t bytes_of(std::int32_t id) const;
  [[nodiscard]] bool blanks_divide(const std::vector<AddedToken>& added) const;

  std::string path_, hash_, file_hash_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  TokenDecoder decoder_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  BpeSymbols symbols_;
  bool whole_piece_first_;
  BpeModel model_;
  std::vector<std::string> texts_, tokens_;  // `tokens_`, as the file writes them: over characters
  std::vector<bool> special_;
  std::unordered_map<std::string, std::int32_t> names_;
  std::optional<std::int32_t> end_token_;
  bool tokens_stay_in_lines_ = true, blanks_divide_ = false;

  // Working space of threads that are not inside encode() now.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace trireme
