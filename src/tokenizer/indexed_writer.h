#pragma once
// Megatron's indexed token files, written in one pass. PREFIX.bin holds the tokens back to back;
// PREFIX.idx (little endian, no padding) the magic "MMIDIDX\0\0", u64 version 1, u8 type (8 =
// uint16, 4 = int32), u64 sequences S, u64 documents + 1 = D, int32[S] lengths in tokens, int64[S]
// offsets in bytes, int64[D] documents in sequences. Source:
// megatron/core/datasets/indexed_dataset.py. Here a document is one sequence, unless it is packed.
// PREFIX.mask, where asked for: a byte for each token, 1 where it counts as a target, else 0.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace trireme {

enum class TargetMask { kNone, kWritten };

/// Of a packed document that is longer than a window.
enum class Overflow {
  kTruncate,  ///< its end is left out
  kSplit,     ///< its parts are documents of their own
  kRefuse,
};

struct Packing {
  std::int64_t length = 0;  ///< tokens of a window, below 2^31 - 1
  Overflow overflow = Overflow::kTruncate;
  std::int32_t pad = 0;  ///< fills windows; never counted
};

struct IndexedTotals {
  std::int64_t documents = 0, tokens = 0;
  std::int64_t empty_documents = 0;  ///< not written
  std::int32_t largest_id = -1;
  std::int64_t counted = 0;          ///< tokens that the mask counts
  std::int64_t without_targets = 0;  ///< documents with none of them
  // Of packing:
  std::int64_t packed_documents = 0;  ///< in `documents` windows
  std::int64_t too_long = 0;          ///< truncated or split
  std::int64_t dropped = 0;           ///< tokens
};

/// Everything goes to temporary names beside the target; `finish` renames. Destroyed before that,
/// nothing is left. Memory: 4 bytes a document, packed about 60. Members throw DataError if
/// refused.
class IndexedWriter {
 public:
  /// uint16 where vocab_size < 65500, as Megatron chooses, else int32.
  IndexedWriter(std::filesystem::path prefix, std::int32_t vocab_size,
                TargetMask mask = TargetMask::kNone);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// Tokens of the open document; `counted`, a byte for each, is for the mask: 1 for all where it
  /// is empty.
  void append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> counted = {});
  /// A document without tokens is counted as empty and not written.
  void end_document();
  [[nodiscard]] std::int64_t open_document_tokens() const { return open_tokens_; }
  [[nodiscard]] const IndexedTotals& totals() const { return totals_; }

  /// Lays the documents out anew, once all are there: those of a bin of pack_best_fit(), then
  /// padding to packing.length tokens, are the sequences of one document; the last has one token
  /// more, so that window i of that length is document i. No first token of a sequence is counted.
  /// Needs a mask.
  void pack(const Packing& packing);

  /// Writes the index, then PREFIX.json: `about` and documents, tokens, largest_id, dtype,
  /// of a mask targets.
  void finish(Json about);

 private:
  struct Piece {
    std::int64_t first = 0;  // token
    std::int32_t length = 0;
  };
  void flush();
  void write_index();
  [[nodiscard]] std::vector<Piece> pieces_for(const Packing& packing);
  void end_sequence(std::int64_t tokens);
  void copy(const MappedFile& bin, const MappedFile& mask, const Piece& piece);
  [[nodiscard]] std::filesystem::path target(const char* suffix) const;
  [[nodiscard]] std::filesystem::path temporary(const char* suffix) const;

  std::filesystem::path prefix_;
  bool narrow_;  // uint16
  bool has_mask_;
  FileDescriptor bin_, mask_;
  std::string buffer_, mask_buffer_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> bounds_;  // of packed documents, in sequences
  std::int64_t open_tokens_ = 0, open_counted_ = 0;
  IndexedTotals totals_;
};

}  // namespace trireme
