#pragma once

#include <memory>
#include <span>

#include "dataset/indexed_file.h"
#include "dataset/split.h"

namespace trireme {

/// Where a window's T + 1 tokens are written.
struct Window {
  std::span<std::int32_t> tokens;
  /// For each token the index within the window at which its document begins (0 where it began
  /// before the window); empty: not wanted. Each stored sequence counts as a document.
  std::span<std::int32_t> document_begin;
  /// For each token 1 where it counts as a target, 0 where PREFIX.mask says that it does not;
  /// empty: not wanted.
  std::span<std::uint8_t> counted = {};
};

/// The sequences of one file that one part of the data uses, laid end to end.
class Corpus {
 public:
  Corpus(std::shared_ptr<const IndexedFile> file, SequenceRange range);
  /// The whole file.
  explicit Corpus(std::shared_ptr<const IndexedFile> file) : Corpus(file, {0, file->sequences()}) {}

  [[nodiscard]] const IndexedFile& file() const { return *file_; }
  [[nodiscard]] SequenceRange range() const { return range_; }
  [[nodiscard]] std::int64_t tokens() const { return end_ - begin_; }
  /// Documents, or sequences where the range cuts a file whose documents hold several.
  [[nodiscard]] std::int64_t documents() const;
  /// floor((tokens - 1) / length), 0 for an empty corpus.
  [[nodiscard]] std::int64_t windows(std::int64_t length) const {
    return tokens() < 1 ? 0 : (tokens() - 1) / length;
  }
  /// The token of the file with which window `index` of T = `length` begins.
  [[nodiscard]] std::int64_t window_begin(std::int64_t index, std::int64_t length) const {
    return begin_ + index * length;
  }
  /// The tokens of the file from `first` on.
  void read(std::int64_t first, const Window& window) const;

 private:
  std::shared_ptr<const IndexedFile> file_;
  SequenceRange range_;
  std::int64_t begin_ = 0, end_ = 0;
};

}  // namespace trireme
