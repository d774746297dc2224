#pragma once
// How many samples an update takes: the same from the first step to the last, or more in later
// phases of a run (batch.global). lr and what else counts steps know nothing of it.

#include <cstdint>
#include <utility>
#include <vector>

namespace trireme {

/// From the first step on before which `from_token` tokens or more are consumed.
struct BatchPhase {
  std::int64_t from_token = 0, size = 1;
  friend bool operator==(const BatchPhase&, const BatchPhase&) = default;
};

/// batch.global as it is written: a number is one phase.
struct GlobalBatch {
  std::vector<BatchPhase> phases = {{}};  ///< the first from 0, each from more than the one before

  GlobalBatch() = default;
  GlobalBatch(std::int64_t size) : phases{{0, size}} {}  // NOLINT(google-explicit-constructor)
  explicit GlobalBatch(std::vector<BatchPhase> of) : phases(std::move(of)) {}
  [[nodiscard]] bool is_ramp() const { return phases.size() > 1; }
  [[nodiscard]] std::int64_t largest() const;
  friend bool operator==(const GlobalBatch&, const GlobalBatch&) = default;
};

/// The same of samples, for a run's position is one number of those. All arithmetic of steps and
/// samples asks it; a run of one size is a ramp of one phase.
class BatchRamp {
 public:
  /// The same size for ever.
  BatchRamp(std::int64_t size = 1)  // NOLINT(google-explicit-constructor)
      : BatchRamp(size, 1) {}
  BatchRamp(const GlobalBatch& batch, std::int64_t sequence_length);

  /// Of the step that begins there.
  [[nodiscard]] std::int64_t size_at(std::int64_t consumed_samples) const;
  [[nodiscard]] std::int64_t largest() const { return sizes().front(); }
  /// Each size once, the largest first.
  [[nodiscard]] std::vector<std::int64_t> sizes() const;
  /// Steps of one size in a row.
  struct Stretch {
    std::int64_t steps = 0, size = 1;
    friend bool operator==(const Stretch&, const Stretch&) = default;
  };
  /// So many steps from there on. A phase that no step meets is in none.
  [[nodiscard]] std::vector<Stretch> stretches(std::int64_t consumed_samples,
                                               std::int64_t steps) const;
  /// Consumed behind so many steps from there on. Sums are the caller's to bound.
  [[nodiscard]] std::int64_t advance(std::int64_t consumed_samples, std::int64_t steps) const;
  /// The fewest steps of a run, from its beginning, that consume so many samples.
  [[nodiscard]] std::int64_t steps_to(std::int64_t samples) const;
  /// The most that consume no more.
  [[nodiscard]] std::int64_t steps_within(std::int64_t samples) const;

 private:
  struct Phase {
    std::int64_t from_sample, size;
  };
  /// Of the step that begins there, its index.
  [[nodiscard]] std::size_t phase_at(std::int64_t consumed_samples) const;
  /// Steps from there to the next phase; endless in the last.
  [[nodiscard]] std::int64_t steps_left(std::size_t phase, std::int64_t consumed_samples) const;

  std::vector<Phase> phases_;
};

}  // namespace trireme
