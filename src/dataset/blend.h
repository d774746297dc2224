#pragma once
// Several sources by weight: the greedy rule of megatron-core's build_blending_indices, on demand.

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "dataset/sample_order.h"

namespace trireme {

/// Weights divided by their sum, added up as numpy adds (pairwise), so that they have numpy's bits.
std::vector<double> normalized(std::span<const double> weights);

/// Sample `draw.sample` of source `draw.source`.
struct Draw {
  std::int64_t source = 0, sample = 0;
  friend bool operator==(const Draw&, const Draw&) = default;
};

/// Sample i comes from the source d with the largest w_d max(i, 1) - taken_d, the first of equals;
/// taken_d counts what came from d before. It never depends on how many samples there are. Any
/// sample is found by replay from a stored state at most 4096 samples before it; the first look far
/// ahead takes about 1 ns x sources for each sample on the way. Thread-safe.
class GreedyBlend {
 public:
  /// `weights` as they are. `limits`: source d ends with limits[d] samples; empty: none.
  explicit GreedyBlend(std::vector<double> weights, std::vector<std::int64_t> limits = {});
  [[nodiscard]] Draw at(std::int64_t sample) const;
  /// How many of the samples [0, count) come from each source.
  [[nodiscard]] std::vector<std::int64_t> taken(std::int64_t count) const;

 private:
  void move_to(std::int64_t sample) const;
  [[nodiscard]] std::size_t choose() const;

  std::vector<double> weights_;
  std::vector<std::int64_t> limits_;
  mutable std::mutex mutex_;
  mutable std::int64_t cursor_ = 0;
  mutable std::vector<std::int64_t> taken_;   // before sample `cursor_`
  mutable std::vector<std::int64_t> states_;  // taken_ at every 4096th sample
};

/// A blend of sources.
class BlendSource final : public SampleSource {
 public:
  enum class Repeat : std::uint8_t {
    kEndless,  ///< each source goes on as it can
    kOnce,     ///< no source gives more than its count(); count() is their sum
  };
  /// Sources of one length, `weights` as GreedyBlend's. `size`: a fixed number of samples.
  BlendSource(std::vector<std::shared_ptr<const SampleSource>> sources, std::vector<double> weights,
              Repeat repeat, std::int64_t size = kEndless);

  [[nodiscard]] std::int64_t length() const override { return sources_.front()->length(); }
  [[nodiscard]] std::int64_t count() const override { return count_; }
  void read(std::int64_t sample, const Window& window) const override;
  [[nodiscard]] const std::string& source_name(std::int64_t sample) const override;
  [[nodiscard]] std::string describe(std::int64_t sample, std::int64_t index) const override;
  [[nodiscard]] Draw draw(std::int64_t sample) const { return blend_.at(sample); }

 private:
  std::vector<std::shared_ptr<const SampleSource>> sources_;
  std::int64_t count_;
  GreedyBlend blend_;
};

}  // namespace trireme
