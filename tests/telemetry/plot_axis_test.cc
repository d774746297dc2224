#include "telemetry/plot_axis.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace trireme {
namespace {

std::string labels(const PlotAxis& axis, int count, TickLabels style) {
  std::string text;
  for (const Tick& tick : axis.ticks(count, style)) text += tick.label + " ";
  return text;
}

TEST(PlotAxis, linear_ticks_are_round) {
  const PlotAxis axis(0, 2'400'000, AxisScale::kLinear, 0, 100);
  EXPECT_EQ(labels(axis, 6, TickLabels::kCount), "0 0.5M 1.0M 1.5M 2.0M ");
  EXPECT_EQ(labels(PlotAxis(-0.05, 1.05, AxisScale::kLinear, 0, 1), 6, TickLabels::kDecimal),
            "0.0 0.2 0.4 0.6 0.8 1.0 ");
  EXPECT_EQ(labels(PlotAxis(2.99, 3.01, AxisScale::kLinear, 0, 1), 5, TickLabels::kDecimal),
            "2.990 2.995 3.000 3.005 3.010 ");
  EXPECT_EQ(labels(PlotAxis(0, 900, AxisScale::kLinear, 0, 1), 4, TickLabels::kCount),
            "0 250 500 750 ");
}

TEST(PlotAxis, logarithmic_ticks_are_powers_of_ten) {
  EXPECT_EQ(labels(PlotAxis(3e5, 2.6e10, AxisScale::kLog, 0, 1), 7, TickLabels::kCount),
            "1M 10M 100M 1B 10B ");
  EXPECT_EQ(labels(PlotAxis(0.9, 110, AxisScale::kLog, 0, 1), 7, TickLabels::kDecimal),
            "1 2 5 10 20 50 100 ");
  EXPECT_EQ(labels(PlotAxis(1e-14, 10, AxisScale::kLog, 0, 1), 6, TickLabels::kDecimal),
            "1e-14 1e-11 1e-08 1e-05 0.01 10 ");
}

TEST(PlotAxis, values_outside_fall_on_the_ends) {
  const PlotAxis axis(1, 100, AxisScale::kLog, 10, 110);
  EXPECT_DOUBLE_EQ(axis.pixel(10), 60);
  EXPECT_DOUBLE_EQ(axis.pixel(0), 10);
  EXPECT_DOUBLE_EQ(axis.pixel(1e300), 110);
  EXPECT_DOUBLE_EQ(PlotAxis(0, 1, AxisScale::kLinear, 100, 0).pixel(0.25), 75);
}

TEST(PlotAxis, an_empty_range_is_widened) {
  for (const double value : {0.0, 10.8, -3.0, 1e300, 1e-300}) {
    const PlotAxis axis(value, value, AxisScale::kLinear, 0, 100);
    EXPECT_LT(axis.low(), axis.high()) << value;
    EXPECT_DOUBLE_EQ(axis.pixel(value), 50) << value;
    EXPECT_FALSE(axis.ticks(5, TickLabels::kDecimal).empty()) << value;
  }
}

TEST(PlotAxis, any_range_gets_a_few_ascending_ticks_inside_it) {
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const double low = std::exp(10.0 * normal(1, i)),
                 high = low * (1.001 + std::exp(4.0 * normal(2, i)));
    for (const AxisScale scale : {AxisScale::kLinear, AxisScale::kLog}) {
      const PlotAxis axis(low, high, scale, 0, 100);
      const auto ticks = axis.ticks(6, TickLabels::kDecimal);
      ASSERT_GE(ticks.size(), 2U) << low << " " << high;
      ASSERT_LE(ticks.size(), 12U) << low << " " << high;
      for (std::size_t t = 0; t < ticks.size(); ++t) {
        ASSERT_GE(ticks[t].value, low * (1 - 1e-6));
        ASSERT_LE(ticks[t].value, high * (1 + 1e-6));
        if (t > 0) {
          ASSERT_GT(ticks[t].value, ticks[t - 1].value);
          ASSERT_NE(ticks[t].label, ticks[t - 1].label) << low << " " << high;
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme
