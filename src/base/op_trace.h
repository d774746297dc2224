#pragma once
// What each op cost, summed by (phase, op): a fixed table, filled by the one thread that calls ops,
// without allocation. Off means a null pointer, and then a span is one comparison.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "base/dtype.h"
#include "base/trace.h"

namespace trireme {

/// The least that a call has to do: the arithmetic of its products (a multiplication and an
/// addition are two) and the bytes of each operand once, twice where it is read and written.
struct OpWork {
  std::int64_t flops = 0, bytes = 0;
  DType type = DType::kF32;  ///< what the products multiply
};

struct OpTotal {
  const char* op = "";  ///< a literal
  Phase phase = Phase::kStart;
  DType type = DType::kF32;
  std::int64_t calls = 0, ns = 0, flops = 0, bytes = 0;
};

class OpTrace {
 public:
  /// A call is counted in the phase that `trace`, which must live longer, is in. `wait`, where
  /// given, is called before a span ends: it waits for a device that works beside the caller.
  explicit OpTrace(const Trace& trace, std::function<void()> wait = {})
      : trace_(trace), wait_(std::move(wait)) {}
  OpTrace(const OpTrace&) = delete;
  OpTrace& operator=(const OpTrace&) = delete;

  /// Rows beyond the table's end are added up in its last one, named "others".
  void record(const char* op, const OpWork& work, std::int64_t ns) noexcept;
  /// In order of first calls.
  [[nodiscard]] std::span<const OpTotal> totals() const { return {totals_.data(), count_}; }
  void clear() noexcept { count_ = 0; }

 private:
  friend class OpSpan;
  static constexpr std::size_t kRowsMax = 64;

  const Trace& trace_;
  const std::function<void()> wait_;
  std::array<OpTotal, kRowsMax> totals_;
  std::size_t count_ = 0;
  std::int64_t nested_ns_ = 0;  ///< of the spans that have closed inside the open one
};

/// One call of an op, from construction to destruction. An inner op's time is its own: they add up.
class OpSpan {
 public:
  /// `trace` null: nothing is recorded.
  OpSpan(OpTrace* trace, const char* op, const OpWork& work) noexcept : trace_(trace) {
    if (trace == nullptr) return;
    op_ = op;
    work_ = work;
    outer_nested_ns_ = trace->nested_ns_;
    trace->nested_ns_ = 0;
    begin_ns_ = steady_now_ns();
  }
  ~OpSpan() {
    if (trace_ == nullptr) return;
    if (trace_->wait_) trace_->wait_();
    const std::int64_t ns = steady_now_ns() - begin_ns_;
    trace_->record(op_, work_, ns - trace_->nested_ns_);
    trace_->nested_ns_ = outer_nested_ns_ + ns;
  }
  OpSpan(const OpSpan&) = delete;
  OpSpan& operator=(const OpSpan&) = delete;

 private:
  OpTrace* trace_;
  const char* op_ = "";
  OpWork work_;
  std::int64_t begin_ns_ = 0, outer_nested_ns_ = 0;
};

}  // namespace trireme
