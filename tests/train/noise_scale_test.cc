#include "train/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace trireme {
namespace {

TEST(NoiseScale, values_by_hand) {
  // |G|^2 = (4 x 3 - 1 x 6) / 3 = 2, tr(Sigma) = (6 - 3) / (1 - 1/4) = 4.
  NoiseScale scale;
  EXPECT_EQ(scale.samples(), std::nullopt);
  scale.add({6, 3, 1, 4});
  EXPECT_DOUBLE_EQ(scale.samples().value(), 2);
  // The second: |G|^2 = (12 - 3) / 3 = 3, tr(Sigma) = 0; both are averaged by themselves.
  scale.add({3, 3, 1, 4});
  EXPECT_DOUBLE_EQ(scale.samples().value(), 4 * 0.99 / (2 * 0.99 + 3));
}

TEST(NoiseScale, of_gradients_with_a_known_covariance) {
  // Gradients of samples: G + sigma_i times a normal in each of 40 dims, so that B_simple is the
  // sum of sigma_i^2 / |G|^2.
  constexpr int kDims = 40, kSmall = 4, kLarge = 32, kSteps = 400;
  double trace = 0, square = 0;
  const auto sigma = [](int i) { return 0.5 + i / 20.0; };
  const auto gradient = [](int i) { return std::cos(i); };
  for (int i = 0; i < kDims; ++i) {
    trace += sigma(i) * sigma(i);
    square += gradient(i) * gradient(i);
  }
  NoiseScale scale;
  for (int step = 0; step < kSteps; ++step) {
    double small[kDims] = {}, large[kDims] = {};
    for (int sample = 0; sample < kLarge; ++sample) {
      for (int i = 0; i < kDims; ++i) {
        const auto index = static_cast<std::uint64_t>((step * kLarge + sample) * kDims + i);
        const double g = gradient(i) + sigma(i) * static_cast<double>(normal(5, index));
        large[i] += g / kLarge;
        if (sample < kSmall) small[i] += g / kSmall;
      }
    }
    NoiseSample of{0, 0, kSmall, kLarge};
    for (int i = 0; i < kDims; ++i) {
      of.small_square += small[i] * small[i];
      of.large_square += large[i] * large[i];
    }
    scale.add(of);
  }
  EXPECT_NEAR(scale.samples().value() / (trace / square), 1, 0.15);
}

TEST(NoiseScale, is_nothing_where_noise_hides_the_gradient_and_leaves_out_what_is_not_finite) {
  NoiseScale scale;
  scale.add({8, 1, 1, 4});  // |G|^2 = -4/3
  EXPECT_EQ(scale.samples(), std::nullopt);
  scale = NoiseScale();
  scale.add({6, 3, 1, 4});
  scale.add({HUGE_VAL, 3, 1, 4});
  scale.add({6, std::nan(""), 1, 4});
  EXPECT_DOUBLE_EQ(scale.samples().value(), 2);
}

TEST(NoiseScale, comes_back_from_a_checkpoint_to_the_bit) {
  EXPECT_TRUE(NoiseScale().json().is_null());
  NoiseScale scale;
  scale.add({6.1, 3.3, 1, 3});
  Json scalars = Json::object();
  scalars["noise"] = scale.json();
  NoiseScale again(parse_json(scalars.dump(), "scalars"));
  for (NoiseScale* each : {&scale, &again}) each->add({5.7, 3.1, 1, 3});
  EXPECT_EQ(again.json().dump(), scale.json().dump());
  for (const char* bad : {"{}", R"({"noise": 3})", R"({"noise": {"gradient": "x"}})"})
    EXPECT_TRUE(NoiseScale(parse_json(bad, "scalars")).json().is_null()) << bad;
}

}  // namespace
}  // namespace trireme
