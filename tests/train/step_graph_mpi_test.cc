// Steps of several ranks recorded with their transfers, beside plain ones: for GPUs, executed on
// the host here.

#include <gtest/gtest.h>

#include "dataset/loader.h"
#include "device/gpu.h"
#include "support/gradient_norm.h"
#include "support/mpi_test.h"
#include "support/small_config.h"
#include "train/gpu_run.h"
#include "train/run_data.h"
#include "train/step.h"

namespace trireme {
namespace {

RunConfig recorded_config() {
  RunConfig config = small_config(parse_json(
      R"({"model_type":"qwen3","hidden_size":16,"head_dim":8,"vocab_size":61,
          "num_attention_heads":4,"num_key_value_heads":2,"num_hidden_layers":2,
          "intermediate_size":24,"tie_word_embeddings":true})",
      "model"));
  config.data.sequence_length = 16;
  config.batch.micro = 1;
  config.batch.accumulation = 2;
  config.precision.compute = ComputePrecision::kBf16;
  return config;
}

struct Steps {
  std::vector<double> losses, norms;
  std::vector<std::int64_t> bytes;  ///< sent in each step
  bool recorded = false;
};

Steps run_steps(const RunConfig& config, CudaGraph graph) {
  RunConfig with = config;
  with.run.cuda_graph = graph;
  const PreparedRun prepared = prepare_for_gpus(with);
  RuntimeOptions options;
  options.device = {DeviceKind::kCuda, 0};
  Runtime runtime(test_launch(), with, prepared.run, options);
  runtime.store.initialise(runtime.context, 1);
  runtime.weights_changed(Runtime::Copies::kStale);
  SourceRequest request;
  request.vocab_size = with.model.vocab_size;
  Loader loader(make_training_source(with, request), with.data, batch_shape(prepared, runtime), -1,
                with.model.vocab_size);
  Step step(runtime);
  const std::int64_t moves = runtime.context.memory_moves();
  Steps steps;
  std::int64_t sent = runtime.channels.sent_bytes().total();
  for (int i = 0; i < 5; ++i) {
    const StepBatch batch = loader.next();
    // Other counts of targets in each step, as documents and masks give: no reason to begin anew.
    step.forward_backward(batch.micro_batches, batch.target_count + i);
    steps.norms.push_back(gradient_norm(runtime.context, runtime.store, runtime.replica()));
    steps.losses.push_back(step.loss_sum());
    step.update(1e-3, steps.norms.back());
    const std::int64_t now = runtime.channels.sent_bytes().total();
    steps.bytes.push_back(now - std::exchange(sent, now));
  }
  steps.recorded = step.recorded();
  EXPECT_EQ(runtime.context.memory_moves(), moves) << "all memory was taken before the first step";
  return steps;
}

void expect_recorded_steps_equal_plain_ones(const RunConfig& config, const std::string& what) {
  const Steps recorded = run_steps(config, CudaGraph::kAuto),
              plain = run_steps(config, CudaGraph::kOff);
  EXPECT_TRUE(recorded.recorded) << what;
  EXPECT_FALSE(plain.recorded) << what;
  EXPECT_EQ(recorded.losses, plain.losses) << what;
  EXPECT_EQ(recorded.norms, plain.norms) << what;
  EXPECT_NE(plain.norms.front(), plain.norms.back()) << what;
  EXPECT_EQ(recorded.bytes, plain.bytes) << what;
  EXPECT_GT(plain.bytes.back(), 0) << what;
}

class StepGraphRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu::backend_name() == "none") GTEST_SKIP() << "the CPU records nothing";
  }
};

TEST_F(StepGraphRanks, transfers_of_each_axis_are_replayed_with_the_step) {
  const int ranks = test_world().size();
  RunConfig config = recorded_config();
  expect_recorded_steps_equal_plain_ones(config, "data");
  config.parallel.reduction_order = ReductionOrder::kRank;
  expect_recorded_steps_equal_plain_ones(config, "data, sums in rank order");
  config = recorded_config();
  config.parallel.tensor = ranks;
  expect_recorded_steps_equal_plain_ones(config, "tensor, sequence parallel");
  config.parallel.sequence_parallel = false;
  expect_recorded_steps_equal_plain_ones(config, "tensor");
  config = recorded_config();
  config.parallel.context = ranks;
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    config.parallel.context_method = method;
    expect_recorded_steps_equal_plain_ones(config, "context");
  }
}

TEST_F(StepGraphRanks, gathers_and_reductions_of_shards_are_replayed_with_the_step) {
  for (const int stage : {1, 2, 3}) {
    RunConfig config = recorded_config();
    config.parallel.zero_stage = stage;
    expect_recorded_steps_equal_plain_ones(config, "ZeRO " + std::to_string(stage));
    config.parallel.reduction_order = ReductionOrder::kRank;
    expect_recorded_steps_equal_plain_ones(config, "rank order, ZeRO " + std::to_string(stage));
  }
}

TEST_F(StepGraphRanks, transfers_between_stages_are_replayed_with_the_step) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "v-min"}) {
    RunConfig config = recorded_config();
    config.model.layers.resize(4, config.model.layer(0));
    config.parallel.pipeline = test_world().size();
    config.parallel.pipeline_schedule = schedule;
    config.batch.accumulation = 4;
    expect_recorded_steps_equal_plain_ones(config, schedule);
  }
}

TEST_F(StepGraphRanks, steps_that_are_checked_on_the_host_stay_plain) {
  RunConfig config = recorded_config();
  config.run.check_collectives = true;
  EXPECT_FALSE(run_steps(config, CudaGraph::kAuto).recorded);
}

}  // namespace
}  // namespace trireme
