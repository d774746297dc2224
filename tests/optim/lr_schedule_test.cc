#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/golden.h"

namespace trireme {
namespace {

TEST(LearningRate, warm_up_is_linear_from_the_first_update) {
  RunConfig::LrSchedule schedule;
  schedule.warmup_steps = 4;
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1e-3, 100, 1), 0.25e-3);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1e-3, 100, 4), 1e-3);
}

TEST(LearningRate, cosine_falls_from_lr_to_min_lr_and_stays) {
  RunConfig::LrSchedule schedule;
  schedule.min_lr = 1e-4;
  schedule.warmup_steps = 10;
  schedule.decay_end_step = 110;
  EXPECT_NEAR(learning_rate(schedule, 1e-3, 200, 60), (1e-3 + 1e-4) / 2, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 1e-3, 200, 110), 1e-4, 1e-18);
  EXPECT_NEAR(learning_rate(schedule, 1e-3, 200, 200), 1e-4, 1e-18);
}

TEST(LearningRate, linear_and_constant) {
  RunConfig::LrSchedule schedule;
  schedule.kind = LrScheduleKind::kLinear;
  EXPECT_NEAR(learning_rate(schedule, 1.0, 10, 5), 0.5, 1e-15);
  schedule.kind = LrScheduleKind::kConstant;
  EXPECT_EQ(learning_rate(schedule, 1.0, 10, 10), 1.0);
}

TEST(LearningRate, wsd_holds_then_falls_in_its_shape) {
  RunConfig::LrSchedule schedule;
  schedule.kind = LrScheduleKind::kWsd;
  schedule.decay_steps = 20;
  EXPECT_EQ(learning_rate(schedule, 1.0, 100, 80), 1.0);
  EXPECT_NEAR(learning_rate(schedule, 1.0, 100, 90), 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 1.0, 100, 100), 0.0, 1e-15);
  schedule.decay_shape = DecayShape::kSqrt;
  EXPECT_NEAR(learning_rate(schedule, 1.0, 100, 85), 0.5, 1e-15);
  schedule.decay_shape = DecayShape::kCosine;
  EXPECT_NEAR(learning_rate(schedule, 1.0, 100, 90), 0.5, 1e-15);
  schedule.decay_steps.reset();  // a tenth of the steps
  EXPECT_EQ(learning_rate(schedule, 1.0, 100, 90), 1.0);
  EXPECT_LT(learning_rate(schedule, 1.0, 100, 91), 1.0);
}

TEST(LearningRate, equals_the_rates_of_the_golden_run) {
  const Json golden = read_golden_json("training/llama_gqa/expected.json");
  RunConfig::LrSchedule schedule;
  schedule.warmup_steps = golden.find("warmup_steps")->as_integer();
  schedule.min_lr = golden.find("min_lr")->as_double();
  const auto expected = flat_reals(*golden.find("learning_rates"));
  ASSERT_EQ(expected.size(), 20U);
  for (std::size_t k = 1; k <= 20; ++k) {
    EXPECT_NEAR(
        learning_rate(schedule, golden.find("lr")->as_double(), 20, static_cast<std::int64_t>(k)),
        expected[k - 1], 1e-15);
  }
}

}  // namespace
}  // namespace trireme
