#pragma once
// Text to token ids and back. Text is bytes: nothing requires UTF-8, and decode(encode(x)) == x for
// bytes and byte-level BPE (a `tokenizer.json` with a normalizer gives the normalized text back).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

enum class SpecialTokens { kKeep, kSkip };

/// Immutable after construction; every member may be called from several threads at once.
class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Appends the ids of `text`. Special tokens written out in the text become their ids, as in
  /// Hugging Face `tokenizers` with add_special_tokens=False: none is added at the begin or end.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;
  /// As encode(), and for each of the ascending byte positions `places`, all inside of the text,
  /// the index in `ids` of the token that holds that byte. A place must not be inside of a
  /// character that a normalizer composes. Throws DataError for text without tokens of its own.
  [[nodiscard]] virtual std::vector<std::size_t> encode_and_find(
      std::string_view text, std::span<const std::size_t> places,
      std::vector<std::int32_t>& ids) const = 0;

  /// Bytes, perhaps not UTF-8. Ids without text (a padded vocabulary has them) give nothing.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids,
                                           SpecialTokens special) const;
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const {
    return decode(ids, SpecialTokens::kKeep);
  }
  /// A following token's bytes; empty where the id has none. decode() may drop a first blank.
  [[nodiscard]] virtual std::string_view token_text(std::int32_t id) const = 0;
  [[nodiscard]] virtual bool is_special(std::int32_t id) const = 0;
  /// The id of a token named as in `tokenizer.json` (special tokens by their text).
  [[nodiscard]] virtual std::optional<std::int32_t> token_id(std::string_view name) const = 0;

  /// The largest id + 1.
  [[nodiscard]] virtual std::int32_t vocab_size() const = 0;
  /// The token that ends a document: 256 for bytes, else the first of <|endoftext|>,
  /// <|end_of_text|>, </s>, <eos> and a few more that the file has, special ones first.
  [[nodiscard]] virtual std::optional<std::int32_t> end_token() const = 0;

  /// "byte", or an XXH3-128 of all that decides about ids (vocabulary, merges, model options, added
  /// tokens, normalizer, pre-tokenizer): equal hashes mean equal ids.
  [[nodiscard]] virtual const std::string& hash() const = 0;
  /// "byte", or the XXH3-128 of the file's bytes, which earlier versions noted in its place.
  [[nodiscard]] virtual const std::string& file_hash() const = 0;
  /// Both: data and checkpoints that name either were made with this tokenizer.
  [[nodiscard]] std::vector<std::string> hashes() const { return {hash(), file_hash()}; }
  /// "byte", or the path of the file.
  [[nodiscard]] virtual const std::string& source() const = 0;

  /// A position p > `from` such that encode(text) is encode(text[0, p)) followed by encode(text[p,
  /// end)) whatever stands before or after `text`, npos where none is known.
  [[nodiscard]] virtual std::size_t split_position(std::string_view text,
                                                   std::size_t from) const = 0;
};

/// "byte", a `tokenizer.json`, or a folder that holds one. Throws DataError naming file and JSON
/// path for whatever the file contains that this program does not understand.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name);

}  // namespace trireme
