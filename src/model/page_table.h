#pragma once
// Which pages of a key/value cache belong to which sequence (Kwon et al. 2023, PagedAttention): a
// sequence takes a page when its tokens fill the last, and gives all back when it ends. Of layers
// that see a window each sequence has a few pages for good, which its tokens fill round and round.

#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

class PageTable {
 public:
  PageTable(std::int64_t sequences, std::int64_t pages_each, std::int64_t pages);
  /// Pages that so many tokens fill.
  [[nodiscard]] static std::int64_t pages_of(std::int64_t tokens);

  /// Room for so many tokens more. InternalError where pages or the sequence's length do not do.
  void extend(int sequence, std::int64_t tokens);
  void end(int sequence);
  [[nodiscard]] std::int64_t length(int sequence) const { return at(sequence).length; }
  [[nodiscard]] std::int64_t free_pages() const { return std::ssize(free_); }
  /// Of the cache, where a token of the sequence stands.
  [[nodiscard]] std::int32_t row_of(int sequence, std::int64_t position) const;
  /// Of the sequence's tokens, in order; what is behind them means nothing.
  [[nodiscard]] std::span<const std::int32_t> pages(int sequence) const;
  /// [sequences, pages_each]
  [[nodiscard]] std::span<const std::int32_t> table() const { return table_; }
  [[nodiscard]] std::int64_t pages_each() const { return pages_each_; }

 private:
  struct Sequence {
    std::int64_t length = 0, pages = 0;
  };
  [[nodiscard]] const Sequence& at(int sequence) const {
    return sequences_.at(static_cast<std::size_t>(sequence));
  }

  const std::int64_t pages_each_;
  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> table_, free_;  // free_: the next one last
};

/// A ring of pages for each sequence, with the names of PageTable.
class PageRing {
 public:
  /// Pages that hold `tokens` that come at once and what they see in a window: never two of one
  /// place at a time.
  [[nodiscard]] static std::int64_t pages_of(std::int64_t window, std::int64_t tokens);
  PageRing(std::int64_t sequences, std::int64_t pages_each, std::int64_t pages_of_ring);

  [[nodiscard]] std::int32_t row_of(int sequence, std::int64_t position) const;
  [[nodiscard]] std::span<const std::int32_t> pages(int sequence) const;
  [[nodiscard]] std::span<const std::int32_t> table() const { return table_; }

 private:
  const std::int64_t pages_each_;
  std::vector<std::int32_t> table_;  ///< [sequences, pages_each]
};

}  // namespace trireme
