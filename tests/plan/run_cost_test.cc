#include "plan/run_cost.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

Cluster with_prices(std::optional<double> device_hour) {
  Cluster cluster;
  cluster.devices_per_node = 8;
  cluster.price.device_hour = device_hour;
  return cluster;
}

TEST(RunCost, a_hundred_runs_of_two_days_at_98_an_hour) {
  const Cluster cluster = with_prices(98.0 / 8);  // a node of 8 at 98 an hour
  RunLength run;
  run.seconds = 48 * 3600;
  run.devices = 8;
  run.tokens = 2e9;
  const RunCost cost = cost_of(run, cluster);
  EXPECT_DOUBLE_EQ(cost.device_hours, 384);
  EXPECT_DOUBLE_EQ(100 * cost.cost.value(), 470400);
  EXPECT_DOUBLE_EQ(cost.cost_per_1e9_tokens.value(), 2352);
  EXPECT_DOUBLE_EQ(cost.device_hours_per_1e9_tokens, 192);
}

TEST(RunCost, thirty_checkpoints_of_420_gb) {
  constexpr std::int64_t kBytes = std::int64_t{30} * 420'000'000'000;
  EXPECT_EQ(kBytes, 12'600'000'000'000);
  EXPECT_DOUBLE_EQ(storage_cost(kBytes, 0.02), 252);
  Cluster cluster = with_prices({});
  cluster.price.storage_gb_month = 0.02;
  RunLength run;
  run.storage_bytes = kBytes;
  EXPECT_DOUBLE_EQ(cost_of(run, cluster).storage_month.value(), 252);
}

TEST(RunCost, states_of_405b_at_two_bytes) {
  constexpr std::int64_t kParameters = 405'000'000'000;
  // bf16 weights, bf16 gradients, two moments of 8 bits.
  EXPECT_EQ(state_bytes(kParameters, 2), 810'000'000'000);
  EXPECT_EQ(
      state_bytes(kParameters, 2) + state_bytes(kParameters, 2) + state_bytes(kParameters, 1 + 1),
      2'430'000'000'000);
}

TEST(RunCost, nothing_is_invented) {
  const RunCost cost = cost_of({1e9, 3600, 8}, with_prices({}));
  EXPECT_FALSE(cost.cost || cost.kwh || cost.storage_month || cost.cost_per_1e9_tokens);
  EXPECT_DOUBLE_EQ(cost.device_hours, 8);
}

TEST(RunCost, of_watts_and_a_price_of_energy) {
  Cluster cluster = with_prices({});
  cluster.power = {1000.0, 500.0, 1.5};
  cluster.price.kwh = 0.1;
  RunLength run;
  run.seconds = 7200;
  run.devices = 12;  // two nodes
  run.busy = 0.5;
  const RunCost cost = cost_of(run, cluster);
  EXPECT_DOUBLE_EQ(cost.kwh.value(), 1.5 * (2000 + 12 * 250) * 2 / 1000);
  EXPECT_DOUBLE_EQ(cost.cost.value(), 1.5);
  cluster.price.device_hour = 2;
  EXPECT_DOUBLE_EQ(cost_of(run, cluster).cost.value(), 49.5);
}

TEST(RunCost, checkpoints_that_are_kept) {
  RunConfig::Checkpoint config;
  config.interval_steps = 100;
  config.keep_last = 3;
  EXPECT_EQ(checkpoints_kept(config, 1000), 3);
  EXPECT_EQ(checkpoints_kept(config, 150), 2);
  config.keep_every_steps = 500;
  EXPECT_EQ(checkpoints_kept(config, 1000), 5);
  config.keep_last = 0;
  EXPECT_EQ(checkpoints_kept(config, 1000), 10);
}

}  // namespace
}  // namespace trireme
