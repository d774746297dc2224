#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/common/dispatch.h"
#include "kernels/support/op_test.h"
#include "kernels/support/simd_probe_table.h"

namespace trireme {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Simd : public OpTest {
 protected:
  const SimdProbe& probe() const { return choose_by_isa(test_context(GetParam()), simd_probe); }
};
TRIREME_FOR_ALL_ISAS(Simd);

/// |found - exact| in units of the last place of the exact value; subnormals share one unit.
double ulps(float found, double exact) {
  const float rounded = static_cast<float>(exact);
  const double unit =
      std::max(std::ldexp(1.0, std::ilogb(rounded == 0 ? 1e-45F : rounded) - 23), 0x1p-149);
  return std::abs(found - exact) / unit;
}

std::vector<float> steps(float from, float to, int count) {
  std::vector<float> x;
  for (int i = 0; i < count; ++i)
    x.push_back(from + (to - from) * (static_cast<float>(i) + 0.37F) / static_cast<float>(count));
  return x;
}

TEST_P(Simd, exp_is_within_one_and_a_half_ulp_over_the_whole_range) {
  const std::vector<float> x = steps(-103.9F, 88.7F, 200003);
  std::vector<float> y(x.size());
  probe().exp(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, ulps(y[i], std::exp(static_cast<double>(x[i]))));
  EXPECT_LT(worst, 1.5);
}

TEST_P(Simd, exp_keeps_the_limits) {
  const std::vector<float> x = {0,    -0.0F,   kInfinity, -kInfinity, kNan,  88.73F,
                                1000, -104.5F, -1e30F,    1e30F,      88.72F};
  std::vector<float> y(x.size());
  probe().exp(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 1);
  EXPECT_EQ(y[2], kInfinity);
  EXPECT_EQ(y[3], 0);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_EQ(y[5], kInfinity);
  EXPECT_EQ(y[6], kInfinity);
  EXPECT_EQ(y[7], 0);
  EXPECT_EQ(y[8], 0);
  EXPECT_EQ(y[9], kInfinity);
  EXPECT_TRUE(std::isfinite(y[10]));
}

TEST_P(Simd, exp2_is_within_its_bound_and_keeps_the_limits) {
  const std::vector<float> x = steps(-125.9F, 126.9F, 200003);
  std::vector<float> y(x.size());
  probe().exp2(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, ulps(y[i], std::exp2(static_cast<double>(x[i]))));
  EXPECT_LT(worst, 1.3);
  const std::vector<float> special = {0, -0.0F, 1, -1, -kInfinity, -1e30F, -151, kNan};
  probe().exp2(y.data(), special.data(), static_cast<std::int64_t>(special.size()));
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 1);
  EXPECT_EQ(y[2], 2);
  EXPECT_EQ(y[3], 0.5F);
  for (const int i : {4, 5, 6}) EXPECT_EQ(y[static_cast<std::size_t>(i)], 0) << i;
  EXPECT_TRUE(std::isnan(y[7]));
}

TEST_P(Simd, log_is_within_one_and_a_half_ulp) {
  std::vector<float> x = steps(0.5F, 2.5F, 100003);
  for (int e = -125; e < 128; ++e) {
    for (const float m : {1.0F, 1.1F, 1.41F, 1.42F, 1.7F, 1.9999999F})
      x.push_back(std::ldexp(m, e));
  }
  std::vector<float> y(x.size());
  probe().log(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, ulps(y[i], std::log(static_cast<double>(x[i]))));
  EXPECT_LT(worst, 1.5);
}

TEST_P(Simd, log_keeps_the_limits) {
  const std::vector<float> x = {1, 0, -0.0F, kInfinity, -1, kNan, -kInfinity};
  std::vector<float> y(x.size());
  probe().log(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], -kInfinity);
  EXPECT_EQ(y[2], -kInfinity);
  EXPECT_EQ(y[3], kInfinity);
  for (const int i : {4, 5, 6}) EXPECT_TRUE(std::isnan(y[static_cast<std::size_t>(i)])) << i;
}

TEST_P(Simd, sigmoid_equals_its_formula_and_keeps_the_limits) {
  std::vector<float> x = steps(-80, 80, 20003);
  std::vector<float> y(x.size());
  probe().sigmoid(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i)
    ASSERT_LT(ulps(y[i], 1 / (1 + std::exp(-static_cast<double>(x[i])))), 3);
  const float limits[] = {kInfinity, -kInfinity, kNan};
  probe().sigmoid(y.data(), limits, 3);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 0);
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST_P(Simd, a_value_has_the_same_bits_at_any_place_in_a_vector_or_tail) {
  const std::vector<float> x = steps(-30, 30, 67);
  std::vector<float> whole(x.size());
  probe().exp(whole.data(), x.data(), 67);
  for (std::int64_t begin = 0; begin < 67; ++begin) {
    for (std::int64_t count = 1; begin + count <= 67; ++count) {
      std::vector<float> part(static_cast<std::size_t>(count));
      probe().exp(part.data(), x.data() + begin, count);
      ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin, part.size() * 4), 0)
          << begin << "+" << count;
    }
  }
}

TEST_P(Simd, bf16_conversion_equals_the_scalar_one_for_all_upper_halves_and_ties) {
  std::vector<float> x;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0x0U, 0x1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  x.pop_back();  // a tail
  std::vector<BFloat16> y(x.size());
  probe().narrow(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool flushed = probe().flushes && std::fpclassify(x[i]) == FP_SUBNORMAL;
    ASSERT_EQ(y[i].bits, to_bfloat16(flushed ? std::copysign(0.0F, x[i]) : x[i]).bits) << i;
  }
  std::vector<float> back(x.size());
  probe().widen(back.data(), y.data(), static_cast<std::int64_t>(y.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), static_cast<std::uint32_t>(y[i].bits) << 16);
  }
}

TEST_P(Simd, reductions_cover_every_lane_and_no_other) {
  for (std::int64_t count = 1; count <= probe().width; ++count) {
    std::vector<float> x(static_cast<std::size_t>(count));
    float sum = 0;
    for (std::int64_t i = 0; i < count; ++i)
      sum += x[static_cast<std::size_t>(i)] = static_cast<float>(1 << i);
    EXPECT_EQ(probe().sum(x.data(), count), sum);
    for (auto& value : x) value = -value;
    EXPECT_EQ(probe().maximum(x.data(), count), -1);
  }
}

}  // namespace
}  // namespace trireme
