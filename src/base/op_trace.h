#pragma once
// What each op cost, summed by (phase, op): a fixed table, filled by the one thread that calls ops,
// without allocation. Off means a null pointer, and then a span is one comparison.

#include <array>
#include <cstdint>
#include <numeric>
#include <span>

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

/// Times what a device does that works beside the caller. Spans nest.
class OpClock {
 public:
  virtual ~OpClock() = default;
  virtual void begin() = 0;
  /// Nanoseconds of the device since the last begin() without an end(), whose work it waits for.
  virtual std::int64_t end() = 0;
};

class OpTrace {
 public:
  /// A call is counted in the phase that `trace` is in. `clock` times a device; null: ops are done
  /// when they return. Both must live longer.
  explicit OpTrace(const Trace& trace, OpClock* clock = nullptr) : trace_(trace), clock_(clock) {}
  OpTrace(const OpTrace&) = delete;
  OpTrace& operator=(const OpTrace&) = delete;

  /// Rows beyond the table's end are added up in its last one, named "others".
  void record(const char* op, const OpWork& work, std::int64_t ns) noexcept;
  /// In order of first calls.
  [[nodiscard]] std::span<const OpTotal> totals() const { return {totals_.data(), count_}; }
  void clear() noexcept {
    count_ = 0;
    beyond_ns_ = {};
  }
  /// What the caller's time in a phase has beyond the device's: launches, and waiting for each op
  /// apart, which an untraced step does not.
  [[nodiscard]] std::int64_t beyond_ns(Phase phase) const {
    return beyond_ns_[static_cast<std::size_t>(phase)];
  }
  [[nodiscard]] std::int64_t beyond_ns() const {
    return std::accumulate(beyond_ns_.begin(), beyond_ns_.end(), std::int64_t{0});
  }

 private:
  friend class OpSpan;
  void add_beyond(std::int64_t ns) noexcept {
    beyond_ns_[static_cast<std::size_t>(trace_.current_phase())] += ns;
  }
  static constexpr std::size_t kRowsMax = 64;

  const Trace& trace_;
  OpClock* const clock_;
  std::array<OpTotal, kRowsMax> totals_;
  std::size_t count_ = 0;
  std::int64_t nested_ns_ = 0;  ///< of the spans that have closed inside the open one
  int open_ = 0;                ///< spans
  std::array<std::int64_t, static_cast<std::size_t>(Phase::kCount)> beyond_ns_ = {};
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
    ++trace->open_;
    begin_ns_ = steady_now_ns();
    if (trace->clock_ != nullptr) trace->clock_->begin();
  }
  ~OpSpan() {
    if (trace_ == nullptr) return;
    std::int64_t ns = 0;
    if (trace_->clock_ != nullptr) ns = trace_->clock_->end();
    const std::int64_t passed = steady_now_ns() - begin_ns_;
    if (trace_->clock_ == nullptr) ns = passed;
    trace_->record(op_, work_, ns - trace_->nested_ns_);
    trace_->nested_ns_ = outer_nested_ns_ + ns;
    if (--trace_->open_ == 0) trace_->add_beyond(passed - ns);
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
