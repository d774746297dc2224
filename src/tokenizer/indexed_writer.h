#pragma once
// Megatron's indexed token files, written in one pass. PREFIX.bin holds the tokens back to back;
// PREFIX.idx (little endian, no padding) the magic "MMIDIDX\0\0", u64 version 1, u8 type (8 =
// uint16, 4 = int32), u64 sequences S, u64 documents + 1 = D, int32[S] lengths in tokens, int64[S]
// offsets in bytes, int64[D] documents in sequences. Source:
// megatron/core/datasets/indexed_dataset.py. Here a document is one sequence.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace trireme {

struct IndexedTotals {
  std::int64_t documents = 0, tokens = 0;
  std::int64_t empty_documents = 0;  ///< not written
  std::int32_t largest_id = -1;
};

/// Everything goes to temporary names beside the target; `finish` renames. Destroyed before that,
/// nothing is left. Memory: 4 bytes a document. Members throw DataError if refused.
class IndexedWriter {
 public:
  /// uint16 where vocab_size < 65500, as Megatron chooses, else int32.
  IndexedWriter(std::filesystem::path prefix, std::int32_t vocab_size);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// Tokens of the open document.
  void append(std::span<const std::int32_t> ids);
  /// A document without tokens is counted as empty and not written.
  void end_document();
  [[nodiscard]] std::int64_t open_document_tokens() const { return open_tokens_; }
  [[nodiscard]] const IndexedTotals& totals() const { return totals_; }

  /// Writes the index, then PREFIX.json: `about` and documents, tokens, largest_id, dtype.
  void finish(Json about);

 private:
  void flush();
  void write_index();
  [[nodiscard]] std::filesystem::path target(const char* suffix) const;
  [[nodiscard]] std::filesystem::path temporary(const char* suffix) const;

  std::filesystem::path prefix_;
  bool narrow_;  // uint16
  FileDescriptor bin_;
  std::string buffer_;
  std::vector<std::int32_t> lengths_;
  std::int64_t open_tokens_ = 0;
  IndexedTotals totals_;
};

}  // namespace trireme
