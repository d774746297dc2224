#include "dataset/corpus.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

Corpus::Corpus(std::shared_ptr<const IndexedFile> file, SequenceRange range)
    : file_(std::move(file)), range_(range) {
  expect(range.begin >= 0 && range.begin <= range.end && range.end <= file_->sequences(),
         "sequences [{}, {}) of {}", range.begin, range.end, file_->sequences());
  begin_ = file_->first_token(range.begin);
  end_ = file_->first_token(range.end);
}

std::int64_t Corpus::documents() const {
  const bool whole = range_ == SequenceRange{0, file_->sequences()};
  return whole ? file_->documents() : range_.end - range_.begin;
}

void Corpus::read(std::int64_t first, const Window& window) const {
  const auto count = static_cast<std::int64_t>(window.tokens.size());
  expect(first >= begin_ && count <= end_ - first, "tokens {}+{} of [{}, {})", first, count, begin_,
         end_);
  file_->read(first, window.tokens);
  file_->read_mask(first, window.counted);
  if (window.document_begin.empty()) return;
  std::int64_t sequence = file_->sequence_of(first);
  std::int64_t begin = 0;
  for (std::int64_t at = 0; at < count; ++sequence) {
    const std::int64_t end = std::min(count, file_->first_token(sequence + 1) - first);
    std::fill(window.document_begin.begin() + at, window.document_begin.begin() + end,
              static_cast<std::int32_t>(begin));
    at = begin = end;
  }
}

}  // namespace trireme
