#include "telemetry/prediction.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

StepLine step_of(double seconds, double joules = -1) {
  StepLine line;
  line.step_seconds = seconds;
  line.time.forward_backward = 0.75 * seconds;
  line.time.communication_exposed = {{"data", 0.1 * seconds}, {"tensor", 0.001 * seconds}};
  line.time.optimizer = 0.15 * seconds;
  if (joules >= 0) line.joules = joules;
  return line;
}

PredictedTime predicted() {
  PredictedTime time;
  time.cluster = "here";
  time.step_seconds = 2.2;
  time.time.forward_backward = 1.8;
  time.time.communication_exposed = {{"data", 0.1}, {"pipeline", 0.2}};
  time.time.optimizer = 0.1;
  return time;
}

TEST(Prediction, means_are_of_the_steps_behind_the_first) {
  StepMeans means;
  EXPECT_EQ(prediction_text(predicted(), means), "");
  means.add(step_of(50, 7));
  EXPECT_EQ(means.steps(), 0);
  means.add(step_of(1));
  means.add(step_of(3, 5));
  EXPECT_EQ(means.steps(), 2);
  EXPECT_DOUBLE_EQ(means.step_seconds(), 2);
  EXPECT_DOUBLE_EQ(means.time().forward_backward, 1.5);
  EXPECT_DOUBLE_EQ(means.time().communication_exposed[0].second, 0.2);
  EXPECT_DOUBLE_EQ(means.time().optimizer, 0.3);
  EXPECT_EQ(means.joules(), 12) << "of all steps";
}

TEST(Prediction, stands_beside_what_was_measured_part_by_part) {
  StepMeans means;
  means.add(step_of(50));
  means.add(step_of(2));
  EXPECT_EQ(prediction_text(predicted(), means),
            "a step took 2 s, 2.2 s were predicted (here: +10.0 %)\n"
            "  forward and backward 1.5 s, predicted 1.8 s\n"
            "  waiting, data        0.2 s, predicted 0.1 s\n"
            "  waiting, pipeline    0 s, predicted 0.2 s\n"
            "  optimizer            0.3 s, predicted 0.1 s");
}

TEST(Prediction, energy_is_told_where_it_is_known) {
  StepMeans means;
  means.add(step_of(50));
  EXPECT_EQ(energy_text(std::nullopt, means), "");
  means.add(step_of(2, 3.6e6));
  EXPECT_EQ(energy_text(std::nullopt, means), "energy: 1 kWh measured");
  PredictedTime with_watts = predicted();
  EXPECT_EQ(energy_text(with_watts, means), "energy: 1 kWh measured");
  with_watts.watts = 3.6e6 / 4.4;  // 1 kWh in two steps
  EXPECT_EQ(energy_text(with_watts, means), "energy: 1 kWh measured, 1 kWh predicted");
}

}  // namespace
}  // namespace trireme
