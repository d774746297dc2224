#include "base/trace.h"

#include <algorithm>
#include <utility>

namespace trireme {

std::string_view name_of(Phase phase) {
  static constexpr std::string_view kNames[] = {
      "start",         "data",      "forward",    "backward_input", "backward_weight",
      "communication", "optimizer", "evaluation", "checkpoint",     "idle"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Phase::kCount));
  return kNames[static_cast<int>(phase)];
}

std::uint64_t pack(const Standing& standing) noexcept {
  return static_cast<std::uint64_t>(standing.phase) |
         std::uint64_t{static_cast<unsigned char>(standing.action)} << 8U |
         std::uint64_t{static_cast<std::uint16_t>(standing.virtual_stage)} << 16U |
         std::uint64_t{static_cast<std::uint32_t>(standing.micro_batch)} << 32U;
}

Standing unpack_standing(std::uint64_t word) noexcept {
  return {static_cast<Phase>(word & 0xffU), static_cast<char>(word >> 8U & 0xffU),
          static_cast<std::int32_t>(word >> 16U & 0xffffU), static_cast<std::int32_t>(word >> 32U)};
}

void Trace::keep_standing_in(std::atomic<std::uint64_t>* word) noexcept {
  std::atomic<std::uint64_t>* const next = word == nullptr ? &own_word_ : word;
  next->store(word_->load(std::memory_order_relaxed), std::memory_order_relaxed);
  word_ = next;
}

Trace::Trace(std::size_t spans_max) : ring_(spans_max) {}

void Trace::record(const SpanRecord& span) noexcept {
  ring_[recorded_++ % ring_.size()] = span;
  totals_ns_[static_cast<int>(span.phase)] += span.end_ns - span.begin_ns;
}

std::int64_t Trace::take_total_ns(Phase phase) noexcept {
  return std::exchange(totals_ns_[static_cast<int>(phase)], 0);
}

std::vector<SpanRecord> Trace::take_spans() {
  std::vector<SpanRecord> spans;
  const std::size_t lost_before = recorded_ > ring_.size() ? recorded_ - ring_.size() : 0;
  for (std::size_t i = std::max(taken_, lost_before); i < recorded_; ++i) {
    spans.push_back(ring_[i % ring_.size()]);
  }
  taken_ = recorded_;
  return spans;
}

}  // namespace trireme
