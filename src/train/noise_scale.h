#pragma once
// The gradient noise scale (stability.noise_scale): the batch size, in samples, beyond which a
// larger one saves few steps (B_simple of McCandlish et al. 2018, "An Empirical Model of
// Large-Batch Training", appendix A.1). Saved with the run's progress.

#include <optional>

#include "base/json.h"

namespace trireme {

/// Squared lengths of mean gradients over `small` and over `large` samples, small < large.
struct NoiseSample {
  double small_square = 0, large_square = 0;
  double small = 1, large = 2;
};

/// Of one step, without bias:
///
///   |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b)       tr(Sigma) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)
///
/// Both are averaged over steps with a decay of kDecay, each by itself; the scale is their ratio.
class NoiseScale {
 public:
  static constexpr double kDecay = 0.99;

  NoiseScale() = default;
  /// As a checkpoint's scalars have it; nothing measured where they have none.
  explicit NoiseScale(const Json& scalars);

  /// A step; what is not finite is left out.
  void add(const NoiseSample& sample);
  /// tr(Sigma) / |G|^2; nothing as long as noise hides the gradient, so that it is not positive.
  [[nodiscard]] std::optional<double> samples() const;
  /// What a checkpoint has; null before a step was measured.
  [[nodiscard]] Json json() const;

 private:
  double gradient_ = 0, noise_ = 0;  // sums over steps, the last one with weight 1
};

}  // namespace trireme
