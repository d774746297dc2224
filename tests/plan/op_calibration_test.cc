#include "plan/op_calibration.h"

#include <gtest/gtest.h>

#include "plan/step_time.h"
#include "support/small_config.h"

namespace trireme {
namespace {

RunConfig config_of() {
  RunConfig config = small_config(parse_json(
      R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,"num_hidden_layers":2,
          "num_key_value_heads":4,"intermediate_size":96,"vocab_size":128,
          "max_position_embeddings":64})",
      "model"));
  config.run.threads_per_rank = 1;
  config.data.sequence_length = 64;
  config.batch.micro = 2;
  return config;
}

ResolvedRun resolved_run(const RunConfig& config, std::int64_t world) {
  ResolveInput input;
  input.world = world;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ResolvedRun run = resolve_run(config, input, problems, notes);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  return run;
}

Cluster measured_cluster() {
  Cluster cluster;
  cluster.device.kind = DeviceKind::kCpu;
  cluster.device.tflops.fp32 = 0.01;
  cluster.device.bytes_per_second = 1e10;
  cluster.node = {1e10, 1e-5};
  cluster.network = cluster.node;
  cluster.efficiency = {1, 1, 0.5, 1, 1};
  for (const std::int64_t m : {64, 128})
    cluster.gemm.push_back({m, 64, 64, DType::kF32, 1e-6 * static_cast<double>(m)});
  for (double bytes = 1 << 16; bytes < 1 << 30; bytes *= 4)
    cluster.memory.push_back({bytes, bytes / 1e10});
  return cluster;
}

TEST(OpCalibration, ops_are_known_by_what_they_do) {
  OpTotal product, attention, norm, update, sent;
  product = {"linear_forward", Phase::kForward, DType::kF32, 2, 3'000'000'000, 10, 10};
  attention = {"attention_backward", Phase::kBackwardInput, DType::kF32, 1, 500'000'000, 10, 10};
  norm = {"norm_forward", Phase::kForward, DType::kF32, 4, 250'000'000, 0, 4000};
  update = {"adamw_update", Phase::kOptimizer, DType::kF32, 1, 125'000'000, 0, 10};
  sent = {"pack_shards", Phase::kCommunication, DType::kF32, 1, 1, 0, 10};
  const OpTotal all[] = {product, attention, norm, update, sent};
  const OpSeconds seconds = op_seconds(all);
  EXPECT_EQ(seconds.products, 3);
  EXPECT_EQ(seconds.attention, 0.5);
  EXPECT_EQ(seconds.passes, 0.25);
  EXPECT_EQ(seconds.update, 0.125);
  EXPECT_EQ(seconds.pass_bytes, 1000);
}

TEST(OpCalibration, kinds_are_predicted_apart_and_make_up_the_step) {
  const RunConfig config = config_of();
  const ResolvedRun run = resolved_run(config, 1);
  const StepLayout layout = step_layout(config, run);
  const Cluster cluster = measured_cluster();
  const OpSeconds seconds = predicted_op_seconds(config.model, layout, cluster);
  const PredictedStep step = predict_step(config.model, layout, cluster);
  EXPECT_NEAR(seconds.products + seconds.attention + seconds.passes, step.compute,
              1e-6 * step.compute);
  EXPECT_NEAR(seconds.update, step.optimizer, 1e-6 * step.optimizer);
  for (const double each : {seconds.products, seconds.attention, seconds.passes, seconds.update})
    EXPECT_GT(each, 0);
}

TEST(OpCalibration, a_prediction_of_the_measured_step_is_the_measurement) {
  const RunConfig config = config_of();
  const ResolvedRun run = resolved_run(config, 1);
  const StepLayout layout = step_layout(config, run);
  Cluster cluster = measured_cluster();
  const OpSeconds alone = predicted_op_seconds(config.model, layout, cluster);
  OpSeconds in_step = alone;
  in_step.products *= 1.5;
  in_step.attention *= 0.75;
  in_step.passes *= 2;
  in_step.update *= 3;
  in_step.pass_bytes = 1 << 20;  // larger than any here: all passes take twice as long
  ASSERT_GT(alone.update_bytes, in_step.pass_bytes);
  calibrate(cluster, alone, in_step);
  const OpSeconds after = predicted_op_seconds(config.model, layout, cluster);
  EXPECT_NEAR(after.products, in_step.products, 1e-6 * in_step.products);
  EXPECT_NEAR(after.attention, in_step.attention, 1e-6 * in_step.attention);
  EXPECT_NEAR(after.passes, in_step.passes, 1e-6 * in_step.passes);
  EXPECT_NEAR(after.update, in_step.update, 0.1 * in_step.update);  // between two entries
}

TEST(OpCalibration, longer_products_are_longer_by_their_bytes) {
  RunConfig config = config_of();
  const ResolvedRun run = resolved_run(config, 1);
  Cluster cluster = measured_cluster();
  const OpSeconds alone = predicted_op_seconds(config.model, step_layout(config, run), cluster);
  OpSeconds in_step = alone;
  in_step.products *= 1.5;
  calibrate(cluster, alone, in_step);
  EXPECT_EQ(cluster.gemm[0].seconds, measured_cluster().gemm[0].seconds);
  config.batch.micro = 1;  // the same weights for half of the tokens
  const ResolvedRun halves = resolved_run(config, 1);
  const OpSeconds half = predicted_op_seconds(config.model, step_layout(config, halves), cluster);
  EXPECT_GT(half.products, 0.51 * in_step.products);
  EXPECT_LT(half.products, in_step.products);
  in_step.products = alone.products / 2;
  cluster = measured_cluster();
  calibrate(cluster, alone, in_step);
  EXPECT_DOUBLE_EQ(cluster.gemm[0].seconds, measured_cluster().gemm[0].seconds / 2);
}

TEST(OpCalibration, what_sharers_of_a_core_wait_is_theirs_within_bounds) {
  const OpSeconds measured{4, 1, 2, 1};
  EXPECT_EQ(among_sharers(measured, 2, 4).products, 6);
  EXPECT_EQ(among_sharers(measured, 2, 4).total(), 12);
  EXPECT_EQ(among_sharers(measured, 2, 100).total(), 16);
  EXPECT_EQ(among_sharers(measured, 1, 4).total(), 8);
  EXPECT_EQ(among_sharers({}, 2, 4).total(), 0);
}

TEST(OpCalibration, what_was_not_measured_stays) {
  const RunConfig config = config_of();
  const ResolvedRun run = resolved_run(config, 1);
  Cluster cluster = measured_cluster();
  const Cluster before = cluster;
  calibrate(cluster, predicted_op_seconds(config.model, step_layout(config, run), cluster), {});
  EXPECT_EQ(cluster.gemm[0].seconds, before.gemm[0].seconds);
  EXPECT_EQ(cluster.memory[3].seconds, before.memory[3].seconds);
  EXPECT_EQ(cluster.efficiency.attention, before.efficiency.attention);
}

}  // namespace
}  // namespace trireme
