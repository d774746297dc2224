#include "train/run_prediction.h"

#include <gtest/gtest.h>

#include "plan/step_time.h"
#include "support/small_config.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

constexpr const char* kCluster = R"({"name": "here", "devices_per_node": 2,
    "device": {"kind": "KIND", "tflops": {"fp32": 0.1}, "memory_bytes": 1000000000,
               "bytes_per_second": 1e10},
    "node": {"bytes_per_second": 1e9, "latency_seconds": 1e-5}, "network": {"bytes_per_second": 1e9},
    "power": {"node_idle_watts": 100, "device_watts": 50}})";

class RunPrediction : public testing::Test {
 protected:
  RunPrediction() {
    config_ = small_config(parse_json(R"({"model_type":"llama","hidden_size":64,
        "num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":4,
        "intermediate_size":128,"vocab_size":256})",
                                      "model"));
    config_.run.device = DeviceChoice::kCpu;
  }
  std::string file(const std::string& kind) {
    std::string text = kCluster;
    text.replace(text.find("KIND"), 4, kind);
    return folder_.write(kind + ".json", text).string();
  }
  [[nodiscard]] std::vector<Problem> problems() const {
    std::vector<Problem> problems;
    std::vector<std::string> notes;
    EXPECT_FALSE(cluster_of(config_, problems, notes));
    EXPECT_TRUE(notes.empty());
    return problems;
  }
  TemporaryDirectory folder_;
  RunConfig config_;
};

TEST_F(RunPrediction, is_the_plans_step_by_the_parts_of_the_metrics) {
  config_.log.cluster = file("cpu");
  config_.parallel.pipeline = 2;
  config_.batch.accumulation = 4;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const std::optional<Cluster> cluster = cluster_of(config_, problems, notes);
  ASSERT_TRUE(cluster) << format_problems(problems);
  ResolveInput input;
  input.world = 4;
  const ResolvedRun run = resolve_run(config_, input, problems, notes);
  ASSERT_TRUE(problems.empty()) << format_problems(problems);
  const PredictedStep step = predict_step(config_.model, step_layout(config_, run), *cluster);
  const PredictedTime predicted = predict_time(config_, run, *cluster);
  EXPECT_EQ(predicted.cluster, "here");
  EXPECT_EQ(predicted.step_seconds, step.seconds);
  double all = predicted.time.forward_backward + predicted.time.optimizer;
  for (const auto& [axis, seconds] : predicted.time.communication_exposed) all += seconds;
  EXPECT_NEAR(all, step.seconds, 1e-9 * step.seconds);
  EXPECT_EQ(predicted.time.communication_exposed.size(), 2U);  // data, and pipeline with its bubble
  ASSERT_TRUE(predicted.watts);  // two nodes, four devices that wait in the bubble
  EXPECT_GT(*predicted.watts, 2 * 100);
  EXPECT_LT(*predicted.watts, 2 * 100 + 4 * 50);
}

TEST_F(RunPrediction, nothing_is_predicted_without_a_cluster) { EXPECT_TRUE(problems().empty()); }

TEST_F(RunPrediction, faults_of_the_file_are_the_configs) {
  config_.log.cluster = file("cuda");
  EXPECT_EQ(problems().at(0).path, "log.cluster");
  EXPECT_NE(problems().at(0).message.find("other devices"), std::string::npos);
  config_.log.cluster = "h1000";
  EXPECT_EQ(problems().at(0).path, "log.cluster");
  EXPECT_EQ(problems().at(0).nearest, "h100");
  config_.log.cluster = (folder_ / "missing.json").string();
  EXPECT_EQ(problems().at(0).path, "log.cluster");
  config_.log.cluster = folder_.write("faulty.json", R"({"name": 3})").string();
  EXPECT_EQ(problems().at(0).path, "cluster.name");
}

TEST_F(RunPrediction, a_config_that_leaves_the_device_open_is_looked_at_anywhere) {
  config_.log.cluster = file("cuda");
  config_.run.device = DeviceChoice::kAuto;  // a machine without GPUs
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  EXPECT_FALSE(cluster_of(config_, problems, notes));
  EXPECT_TRUE(problems.empty());
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("nothing is predicted"), std::string::npos);
}

}  // namespace
}  // namespace trireme
