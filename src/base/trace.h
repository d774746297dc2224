#pragma once
// Where the time goes: spans in a ring of fixed size, without locks on the recording thread, I/O or
// allocation after start. telemetry/ drains it, the watchdog reads the open span.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme {

enum class Phase : std::uint8_t {
  kStart,
  kData,
  kForward,
  kBackwardInput,
  kBackwardWeight,
  kCommunication,
  kOptimizer,
  kEvaluation,
  kCheckpoint,
  kIdle,
  kCount
};
std::string_view name_of(Phase phase);

struct SpanRecord {
  std::int64_t begin_ns, end_ns;  ///< steady clock
  std::int32_t detail;            ///< layer, micro-batch or bucket; -1 where none
  Phase phase;
};

/// Where a recording thread stands, as one word, so that another process may read it whole.
struct Standing {
  Phase phase = Phase::kStart;
  char action = 0;  ///< F, B, W, ... of a pipeline; 0: none under way
  std::int32_t virtual_stage = 0, micro_batch = 0;
};
std::uint64_t pack(const Standing& standing) noexcept;
Standing unpack_standing(std::uint64_t word) noexcept;

/// One recording thread (the training loop); any thread may read `current_phase`.
class Trace {
 public:
  explicit Trace(std::size_t spans_max = 1 << 16);
  void record(const SpanRecord& span) noexcept;
  /// Nanoseconds spent in each phase since the last call; then set to zero.
  std::int64_t take_total_ns(Phase phase) noexcept;
  /// Spans recorded since the last call, oldest first; the oldest are lost where the ring wrapped.
  std::vector<SpanRecord> take_spans();
  [[nodiscard]] Phase current_phase() const noexcept {
    return unpack_standing(word_->load(std::memory_order_relaxed)).phase;
  }
  Phase exchange_phase(Phase phase) noexcept {
    const std::uint64_t before = word_->load(std::memory_order_relaxed);
    word_->store((before & ~kPhaseBits) | static_cast<std::uint64_t>(phase),
                 std::memory_order_relaxed);
    return static_cast<Phase>(before & kPhaseBits);
  }
  /// The action of a pipeline that the recording thread is in from now on; 0: none.
  void set_action(char action, std::int32_t virtual_stage, std::int32_t micro_batch) noexcept {
    word_->store(pack({current_phase(), action, virtual_stage, micro_batch}),
                 std::memory_order_relaxed);
  }
  /// Keeps the Standing in `word`, which others may see; null: in the trace, as at first. By the
  /// recording thread, while no other reads `current_phase`.
  void keep_standing_in(std::atomic<std::uint64_t>* word) noexcept;

  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  std::vector<SpanRecord> ring_;
  std::size_t recorded_ = 0, taken_ = 0;
  std::int64_t totals_ns_[static_cast<int>(Phase::kCount)] = {};
  static constexpr std::uint64_t kPhaseBits = 0xff;
  std::atomic<std::uint64_t> own_word_{0};  // pack(Standing())
  std::atomic<std::uint64_t>* word_ = &own_word_;
};

inline std::int64_t steady_now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Records from construction to destruction. A nested span's time counts for both phases.
class Span {
 public:
  Span(Trace& trace, Phase phase, std::int32_t detail = -1) noexcept
      : trace_(trace),
        begin_ns_(steady_now_ns()),
        detail_(detail),
        phase_(phase),
        outer_(trace.exchange_phase(phase)) {}
  ~Span() {
    trace_.record({begin_ns_, steady_now_ns(), detail_, phase_});
    trace_.exchange_phase(outer_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Trace& trace_;
  std::int64_t begin_ns_;
  std::int32_t detail_;
  Phase phase_, outer_;
};

}  // namespace trireme
