#pragma once
// Megatron's token files, mapped read-only: PREFIX.bin holds the tokens of all sequences back to
// back, PREFIX.idx their lengths (megatron/core/datasets/indexed_dataset.py).
//
// .idx, little-endian and unaligned: 9 bytes "MMIDIDX\0\0", u64 version 1, u8 dtype code (1 uint8,
// 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16; 6 and 7 are reals), u64 S sequences, u64 D document
// bounds, i32[S] lengths in tokens, i64[S] byte offsets into .bin, i64[D] document bounds as
// sequence numbers (0 ... S). Only files whose sequences follow each other without gaps are read
// (every writer's), so that a range of tokens "laid end to end" is a range of bytes.
//
// PREFIX.mask, where it is there: byte i says whether token i counts as a target, 1, or not, 0.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/file.h"

namespace trireme {

/// What `train tokenize` says of its output in PREFIX.json.
struct TokenizedFacts {
  std::string tokenizer_hash;
  std::int64_t documents = 0, tokens = 0;
  std::int64_t largest_id = -1;  ///< -1: no tokens
  std::int64_t packed = 0;       ///< `tokenize --pack`: the tokens of a document; 0: not packed
};

/// Immutable after construction; every member may be called from several threads at once.
class IndexedFile {
 public:
  /// Maps both files and checks the whole index; allocates nothing from a count in it. Throws
  /// DataError with file and place: missing, truncated, surplus bytes, no integer tokens, a count
  /// that the file cannot hold, lengths, offsets or document bounds out of order, a mask of another
  /// length.
  explicit IndexedFile(const std::string& prefix);

  [[nodiscard]] const std::string& prefix() const { return prefix_; }
  [[nodiscard]] std::string bin_path() const { return prefix_ + ".bin"; }
  [[nodiscard]] std::int64_t sequences() const { return sequences_; }
  [[nodiscard]] std::int64_t documents() const { return bounds_ - 1; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::int64_t bytes_per_token() const { return bytes_per_token_; }

  /// Tokens of a sequence; may be 0.
  [[nodiscard]] std::int32_t length(std::int64_t sequence) const;
  /// Tokens before a sequence; tokens() for sequences().
  [[nodiscard]] std::int64_t first_token(std::int64_t sequence) const;
  /// The sequence that holds a token: the last one that begins at or before it. O(log S).
  [[nodiscard]] std::int64_t sequence_of(std::int64_t token) const;

  /// Tokens [first, first + ids.size()) of the file. An id below 0 or beyond int32 becomes -1.
  void read(std::int64_t first, std::span<std::int32_t> ids) const;
  [[nodiscard]] bool has_mask() const { return mask_.has_value(); }
  /// 1 for those of the tokens [first, first + counted.size()) that count as targets, else 0; 1 for
  /// all without a mask. Throws DataError with file and place for another byte.
  void read_mask(std::int64_t first, std::span<std::uint8_t> counted) const;
  /// Throws as read_mask of tokens [first, first + count).
  void check_mask(std::int64_t first, std::int64_t count) const;
  /// One id as stored.
  [[nodiscard]] std::int64_t id_at(std::int64_t token) const;
  /// The first token of [first, first + count) whose id is not in [0, vocab_size).
  [[nodiscard]] std::optional<std::int64_t> find_outside(std::int64_t first, std::int64_t count,
                                                         std::int64_t vocab_size) const;
  /// "PREFIX.bin: document 3, position 17: token id 70000"
  [[nodiscard]] std::string describe(std::int64_t token) const;

  /// XXH3-128 of the index: equal where lengths and type are equal.
  [[nodiscard]] std::string index_hash() const;
  /// XXH3-128 of the index and of 64 blocks of 4 KiB of the tokens, evenly apart: of all tokens
  /// where they are no more. Tells other data under the same name, not a few changed tokens.
  [[nodiscard]] std::string sampled_hash() const;
  /// The same of the mask alone; "" without one.
  [[nodiscard]] std::string mask_hash() const;
  /// PREFIX.json, where it is there and of this very file; a stale one is warned of and left out.
  [[nodiscard]] const std::optional<TokenizedFacts>& facts() const { return facts_; }

 private:
  enum class TokenType : std::uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };
  template <class Visitor>
  auto visit_tokens(std::int64_t first, Visitor&& visitor) const;
  void read_header();
  void check_sequences() const;
  void check_document_bounds() const;
  void read_facts();
  void open_mask();

  std::string prefix_;
  MappedFile index_, bin_;
  std::optional<MappedFile> mask_;
  TokenType type_ = TokenType::kI32;
  std::int64_t bytes_per_token_ = 0, sequences_ = 0, bounds_ = 0, tokens_ = 0;
  const std::byte* lengths_ = nullptr;
  const std::byte* offsets_ = nullptr;
  const std::byte* document_bounds_ = nullptr;
  std::optional<TokenizedFacts> facts_;
};

}  // namespace trireme
