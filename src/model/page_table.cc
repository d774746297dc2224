#include "model/page_table.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "kernels/attention/attention.h"

namespace trireme {

PageTable::PageTable(std::int64_t sequences, std::int64_t pages_each, std::int64_t pages)
    : pages_each_(pages_each),
      sequences_(static_cast<std::size_t>(sequences)),
      table_(static_cast<std::size_t>(sequences * pages_each)),
      free_(static_cast<std::size_t>(pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

std::int64_t PageTable::pages_of(std::int64_t tokens) { return ceil_div(tokens, kAttentionPage); }

void PageTable::extend(int sequence, std::int64_t tokens) {
  Sequence& of = sequences_.at(static_cast<std::size_t>(sequence));
  const std::int64_t wanted = pages_of(of.length + tokens);
  expect(wanted <= pages_each_ && wanted - of.pages <= free_pages(),
         "sequence {} of {} tokens gets {} more: {} pages each, {} free", sequence, of.length,
         tokens, pages_each_, free_pages());
  for (; of.pages < wanted; ++of.pages) {
    table_[static_cast<std::size_t>(sequence * pages_each_ + of.pages)] = free_.back();
    free_.pop_back();
  }
  of.length += tokens;
}

void PageTable::end(int sequence) {
  const std::span<const std::int32_t> own = pages(sequence);
  free_.insert(free_.end(), own.rbegin(), own.rend());
  sequences_.at(static_cast<std::size_t>(sequence)) = {};
}

namespace {

std::int32_t row_in(std::span<const std::int32_t> pages, std::int64_t position) {
  const std::int32_t page = pages[static_cast<std::size_t>(position / kAttentionPage)];
  return static_cast<std::int32_t>(page * kAttentionPage + position % kAttentionPage);
}

}  // namespace

std::int32_t PageTable::row_of(int sequence, std::int64_t position) const {
  return row_in(pages(sequence), position);
}

std::span<const std::int32_t> PageTable::pages(int sequence) const {
  return std::span(table_).subspan(static_cast<std::size_t>(sequence * pages_each_),
                                   static_cast<std::size_t>(at(sequence).pages));
}

std::int64_t PageRing::pages_of(std::int64_t window, std::int64_t tokens) {
  const std::int64_t span = window - 1 + tokens;  // it may begin at a page's last token
  return ceil_div(span - 1, kAttentionPage) + 1;
}

PageRing::PageRing(std::int64_t sequences, std::int64_t pages_each, std::int64_t pages_of_ring)
    : pages_each_(pages_each) {
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (std::int64_t page = 0; page < pages_each; ++page)
      table_.push_back(static_cast<std::int32_t>(sequence * pages_of_ring + page % pages_of_ring));
  }
}

std::int32_t PageRing::row_of(int sequence, std::int64_t position) const {
  return row_in(pages(sequence), position);
}

std::span<const std::int32_t> PageRing::pages(int sequence) const {
  return std::span(table_).subspan(static_cast<std::size_t>(sequence * pages_each_),
                                   static_cast<std::size_t>(pages_each_));
}

}  // namespace trireme
