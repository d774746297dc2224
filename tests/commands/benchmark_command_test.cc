#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "base/error.h"
#include "base/human_format.h"
#include "base/json.h"
#include "commands/benchmark_report.h"
#include "commands/commands.h"
#include "config/model_parse.h"
#include "model/flops.h"
#include "model/param_table.h"
#include "plan/cluster_file.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

constexpr std::int64_t kTokens = 2 * 3 * 24;  // micro-batch x accumulation x sequence

std::string printed_by(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  const int code = benchmark_command(arguments);
  std::fflush(stdout);
  EXPECT_EQ(code, 0);
  return testing::internal::GetCapturedStdout();
}

class BenchmarkCommand : public testing::TestWithParam<const char*> {
 protected:
  BenchmarkCommand() {
    model_ = parse_json(GetParam(), "model");
    Json config;
    config["run"] = Json::Object{
        {"directory", (folder_ / "run").string()}, {"steps", 20}, {"threads_per_rank", 1}};
    config["model"] = model_;
    config["data"] = Json::Object{{"train", "synthetic"}, {"sequence_length", 24}};
    config["batch"] = Json::Object{{"global", 6}, {"micro", 2}};
    config["optimizer"] = Json::Object{{"lr", 0.001}};
    config_ = folder_.write("config.json", config.dump()).string();
  }
  [[nodiscard]] ModelConfig model() const {
    std::vector<Problem> problems;
    std::vector<std::string> notes;
    return read_model(model_, problems, notes);
  }
  [[nodiscard]] Json result(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {config_, "--json", "--steps", "3", "--no-rates"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parse_json(printed_by(arguments), "standard output");
  }

  TemporaryDirectory folder_;
  std::string config_;
  Json model_;
};

INSTANTIATE_TEST_SUITE_P(
    models, BenchmarkCommand,
    testing::Values(
        R"({"model_type": "llama", "vocab_size": 251, "hidden_size": 32, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40})",
        R"({"model_type": "gpt2", "vocab_size": 131, "n_embd": 24, "n_layer": 2, "n_head": 3,
            "n_positions": 64})"),
    [](const auto& each) { return std::string(each.index == 0 ? "llama" : "gpt2"); });

double number(const Json& object, std::string_view key) { return object.find(key)->as_double(); }
const std::string& text(const Json& object, std::string_view key) {
  return object.find(key)->as_string();
}

double flops_of(const Json& result, const std::set<std::string>& prefixes) {
  double sum = 0;
  for (const Json& op : result.find("ops")->as_array()) {
    const bool meant =
        std::any_of(prefixes.begin(), prefixes.end(),
                    [&](const std::string& prefix) { return text(op, "op").starts_with(prefix); });
    if (meant) sum += number(op, "flops");
  }
  return sum;
}

TEST_P(BenchmarkCommand, products_of_a_step_are_six_operations_a_weight_and_token) {
  const Json json = result();
  // The head's product takes the rows of zeros behind the vocabulary too.
  const std::int64_t vocabulary = model().vocab_size;
  const double weights = static_cast<double>(
      count_parameters(model()).multiplying +
      (round_up(vocabulary, kVocabularyRowAlignment) - vocabulary) * model().hidden);
  EXPECT_EQ(flops_of(json, {"linear_", "head_"}), 6 * weights * kTokens);
  for (const char* use : {"_forward", "_input_gradient", "_weight_gradient"}) {
    EXPECT_EQ(flops_of(json, {std::string("linear") + use, std::string("head") + use}),
              2 * weights * kTokens)
        << use;
  }
}

TEST_P(BenchmarkCommand, attention_of_a_step_counts_the_visible_pairs) {
  const Json json = result();
  const double pairs = 6.0 * 24 * 25 / 2;
  const double per_pair =
      static_cast<double>(model().layer_count() * model().layer(0).attention.q_size());
  EXPECT_EQ(flops_of(json, {"attention_forward"}), 4 * per_pair * pairs);
  EXPECT_EQ(flops_of(json, {"attention_backward"}), 10 * per_pair * pairs);
}

TEST_P(BenchmarkCommand, every_op_stands_in_its_phase_once) {
  const Json json = result();
  std::set<std::string> rows;
  for (const Json& op : json.find("ops")->as_array()) {
    EXPECT_TRUE(rows.insert(text(op, "phase") + " " + text(op, "op")).second) << text(op, "op");
    EXPECT_GE(op.find("calls")->as_integer(), 1) << text(op, "op");
    EXPECT_GT(number(op, "bytes"), 0) << text(op, "op");
  }
  const std::string activation =
      model().layer(0).mlp.activation == Activation::kSwiGlu ? "swiglu" : "gelu";
  for (const std::string& row : {std::string("forward embedding_forward"),
                                 std::string("forward norm_forward"),
                                 std::string("forward linear_forward"),
                                 std::string("forward attention_forward"),
                                 "forward " + activation + "_forward",
                                 std::string("forward head_forward"),
                                 std::string("forward cross_entropy_statistics"),
                                 std::string("forward cross_entropy_finish"),
                                 std::string("forward head_input_gradient"),
                                 std::string("forward head_weight_gradient"),
                                 std::string("backward linear_input_gradient"),
                                 std::string("backward linear_weight_gradient"),
                                 std::string("backward attention_delta"),
                                 std::string("backward attention_backward"),
                                 "backward " + activation + "_backward",
                                 std::string("backward norm_backward"),
                                 std::string("backward embedding_backward"),
                                 std::string("optimizer clear"),
                                 std::string("optimizer grad_norm"),
                                 std::string("optimizer adamw_update")}) {
    EXPECT_TRUE(rows.contains(row)) << row;
  }
  EXPECT_EQ(rows.contains("forward rope_forward"), model().layer(0).attention.rope.has_value());
}

TEST_P(BenchmarkCommand, times_of_ops_and_phases_add_up) {
  const Json json = result();
  const double step = number(*json.find("step_seconds"), "mean");
  double ops = 0, phases = 0, outside = 0, parts = 0;
  for (const Json& op : json.find("ops")->as_array()) {
    EXPECT_GE(number(op, "seconds"), 0);
    EXPECT_NEAR(number(op, "share"), number(op, "seconds") / step, 1e-9);
    ops += number(op, "seconds");
  }
  for (const Json& phase : json.find("phases")->as_array()) {
    phases += number(phase, "seconds");
    outside += number(phase, "not_in_ops");
    EXPECT_GE(number(phase, "not_in_ops"), -1e-12) << text(phase, "phase");
  }
  for (const Json& part : json.find("bounds")->as_array()) parts += number(part, "seconds");
  EXPECT_GT(ops, 0);
  EXPECT_LE(ops, step);
  EXPECT_NEAR(phases, step, 1e-9 + 1e-6 * step);
  EXPECT_NEAR(ops + outside, step, 1e-9 + 1e-6 * step);
  EXPECT_NEAR(parts, step, 1e-9 + 1e-6 * step);
}

/// No embedding here has its gradient in rows, whose number differs from step to step.
TEST_P(BenchmarkCommand, steps_counts_the_timed_ones_alone) {
  const Json one = result({"--warmup", "4"}), other = result({"--warmup", "0"});
  ASSERT_EQ(one.find("steps")->as_integer(), 3);
  const auto& a = one.find("ops")->as_array();
  const auto& b = other.find("ops")->as_array();
  ASSERT_EQ(a.size(), b.size());
  for (const Json& op : a) {
    const auto same = std::find_if(b.begin(), b.end(), [&](const Json& each) {
      return text(each, "op") == text(op, "op") && text(each, "phase") == text(op, "phase");
    });
    ASSERT_NE(same, b.end()) << text(op, "op");
    EXPECT_EQ(op.find("calls")->as_integer(), same->find("calls")->as_integer());
    EXPECT_EQ(number(op, "flops"), number(*same, "flops"));
    EXPECT_EQ(number(op, "bytes"), number(*same, "bytes"));
  }
}

TEST_P(BenchmarkCommand, without_rates_says_nothing_of_the_machines) {
  const Json json = result();
  EXPECT_TRUE(json.find("of_product_rate")->is_null());
  EXPECT_TRUE(json.find("roofline_seconds")->is_null());
  EXPECT_EQ(json.find("machine")->find("sgemm_gflops"), nullptr);
  for (const Json& op : json.find("ops")->as_array()) EXPECT_TRUE(op.find("of_rate")->is_null());
}

TEST_P(BenchmarkCommand, mfu_is_of_the_peak_that_the_config_names) {
  EXPECT_TRUE(result().find("mfu")->is_null());
  const Json json = result({"--set", "run.peak_tflops=0.5"});
  EXPECT_NEAR(number(json, "mfu"), number(json, "tflops_per_second") / 0.5, 1e-9);
}

/// Not for each model: the rates take a second.
TEST(BenchmarkReport, shows_the_machine_beside_the_ops) {
  TemporaryDirectory folder;
  Json config;
  config["run"] =
      Json::Object{{"directory", (folder / "run").string()}, {"steps", 1}, {"threads_per_rank", 2}};
  config["model"] = parse_json(
      R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1,
          "num_attention_heads": 1, "intermediate_size": 16})",
      "model");
  config["data"] = Json::Object{{"train", "synthetic"}, {"sequence_length", 16}};
  config["batch"] = Json::Object{{"global", 1}};
  config["optimizer"] = Json::Object{{"lr", 0.001}};
  const std::string path = folder.write("config.json", config.dump()).string();
  const Json json = parse_json(printed_by({path, "--json", "--steps", "2"}), "standard output");
  const Json& machine = *json.find("machine");
  EXPECT_FALSE(text(machine, "cpu").empty());
  EXPECT_FALSE(text(machine, "isa").empty());
  EXPECT_EQ(machine.find("threads")->as_integer(), 2);
  EXPECT_GT(number(machine, "sgemm_gflops"), 0);
  EXPECT_TRUE(machine.find("bf16_gflops")->is_null());
  EXPECT_GT(number(machine, "copy_gb_per_second"), 0);
  EXPECT_NEAR(number(json, "of_product_rate"),
              number(json, "tflops_per_second") * 1e3 / number(machine, "sgemm_gflops"), 1e-9);
  double bounds = 0;
  for (const Json& op : json.find("ops")->as_array()) {
    bounds += number(op, "of_rate") * number(op, "seconds");
    const std::string& bound = text(op, "bound");
    EXPECT_TRUE(bound == "compute" || bound == "memory");
    if (number(op, "flops") == 0) {
      EXPECT_EQ(bound, "memory") << text(op, "op");
    }
  }
  EXPECT_NEAR(number(json, "roofline_seconds"), bounds, 1e-9);
}

/// The last rank is in forward for `later_ns` more.
BenchmarkResult sample_result(int world, std::int64_t later_ns = 0) {
  BenchmarkResult result;
  result.precision = "fp32";
  result.model = "llama, 134M parameters";
  result.cpu = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz";
  result.isa = "AVX-512";
  result.world = world;
  result.threads = 2;
  result.step_seconds = {9.9, 10, 10.1};
  result.tokens = 2048;
  result.model_flops = 1000e9;
  result.memory_bytes = std::int64_t{3} << 30;
  RankTimes times;
  times.phase_ns[static_cast<std::size_t>(StepPhase::kForward)] = 18'000'000'000;
  times.phase_ns[static_cast<std::size_t>(StepPhase::kBackward)] = 2'000'000'000;
  times.phase_ns[static_cast<std::size_t>(StepPhase::kOptimizer)] = 9'000'000'000;
  times.ops = {
      {StepPhase::kBackward, "an_op_whose_name_is_long_a", DType::kF32, 3, 600'000'000, 0, 1},
      {StepPhase::kBackward, "an_op_whose_name_is_long_b", DType::kF32, 3, 500'000'000, 0, 1},
      {StepPhase::kForward, "linear_forward", DType::kF32, 300, 18'000'000'000, 1'800'000'000'000,
       1000},
      {StepPhase::kOptimizer, "cross_entropy_statistics", DType::kF32, 3, 9'000'000'000, 0,
       30'000'000'000}};
  std::vector<RankTimes> ranks(static_cast<std::size_t>(world), times);
  ranks.back().phase_ns[static_cast<std::size_t>(StepPhase::kForward)] += later_ns;
  MachineRates rates;
  rates.sgemm_flops_per_second = 150e9;
  rates.copies = {{1 << 16, 100e9}, {1 << 28, 20e9}};
  for (int rank = 0; rank < world; ++rank) result.rates.add(rates);
  result.cost = cost_of_step(ranks, 3, 10, result.rates);
  return result;
}

TEST(BenchmarkReport, is_a_table_of_a_hundred_columns) {
  for (const int world : {1, 2}) {
    const std::string report = benchmark_text(sample_result(world));
    for (std::size_t begin = 0; begin < report.size();) {
      const std::size_t end = report.find('\n', begin);
      ASSERT_NE(end, std::string::npos);
      EXPECT_LE(end - begin, 100U) << report.substr(begin, end - begin);
      if (end > begin) {
        EXPECT_NE(report[end - 1], ' ') << "a space ends a line";
      }
      begin = end + 1;
    }
  }
}

/// The words of the line that begins with this.
std::vector<std::string> words_of_line(const std::string& report, const std::string& name) {
  const std::size_t begin = report.find("\n  " + name + " ");
  if (begin == std::string::npos) return {};
  std::vector<std::string> words;
  std::string word;
  for (std::size_t i = begin + 1; report[i] != '\n'; ++i) {
    if (report[i] != ' ') word += report[i];
    if ((report[i] == ' ' || report[i + 1] == '\n') && !word.empty()) {
      words.push_back(std::exchange(word, ""));
    }
  }
  return words;
}

TEST(BenchmarkReport, tells_of_each_op_its_time_rate_and_what_it_is_of_the_machines) {
  const std::string report = benchmark_text(sample_result(1));
  // 600 GFLOP in 6 s of 10, on a machine of 150 GFLOP/s.
  EXPECT_EQ(words_of_line(report, "linear_forward"),
            (std::vector<std::string>{"linear_forward", "100", "6000.00", "60.0", "%", "100.0",
                                      "67", "%", "############"}));
  // 10 GB in 3 s, beside 20 GB/s from memory.
  EXPECT_EQ(words_of_line(report, "cross_entropy_statistics"),
            (std::vector<std::string>{"cross_entropy_statistics", "1", "3000.00", "30.0", "%",
                                      "3.3", "17", "%", "######"}));
  EXPECT_NE(report.find("66.7 % of the machine's product rate"), std::string::npos) << report;
  EXPECT_NE(report.find("the step would take 4500.00 ms: 45.0 % of that is reached"),
            std::string::npos)
      << report;
  EXPECT_NE(report.find("most to gain, of the step: cross_entropy_statistics 25.0 %, "
                        "linear_forward 20.0 %, not in ops 6.3 %\n"),
            std::string::npos)
      << report;
}

TEST(BenchmarkReport, tells_of_every_axis_what_a_rank_sends_and_waits_for) {
  BenchmarkResult result = sample_result(2);
  RankFigures figures;
  for (const Axis axis : kAxes) {
    figures.sent_bytes[axis] = 1024 * (1 + static_cast<int>(axis));
    figures.planned_sent_bytes[axis] = 2 * figures.sent_bytes[axis];
    figures.exposed_ns[axis] = 1'000'000 * (1 + static_cast<int>(axis));
  }
  result.ranks = {figures, RankFigures()};
  const std::string report = benchmark_text(result);
  const Json json = benchmark_json(result);
  const Json& rank = json.find("ranks")->as_array().at(0);
  for (const Axis axis : kAxes) {
    const std::string name(name_of(axis));
    const int number = 1 + static_cast<int>(axis);
    const std::string line =
        fmt::format("  {:<8} {} in a step (planned {}), waited for {:.2f} ms\n", name,
                    format_bytes(1024 * number), format_bytes(2048 * number), 0.5 * number);
    EXPECT_NE(report.find(line), std::string::npos) << line << report;
    EXPECT_EQ(rank.find("sent_bytes")->find(name)->as_integer(), 1024 * number);
    EXPECT_EQ(rank.find("planned_sent_bytes")->find(name)->as_integer(), 2048 * number);
    EXPECT_NEAR(rank.find("communication_exposed")->find(name)->as_double(), 1e-3 * number, 1e-12);
  }
}

TEST(BenchmarkReport, of_two_ranks_rates_are_those_of_both) {
  const BenchmarkResult result = sample_result(2);
  const Json json = benchmark_json(result);
  EXPECT_DOUBLE_EQ(number(*json.find("machine"), "sgemm_gflops"), 300);
  const Json& op = json.find("ops")->as_array().at(0);
  EXPECT_EQ(text(op, "op"), "linear_forward");
  EXPECT_DOUBLE_EQ(number(op, "gflops"), 200);
  EXPECT_DOUBLE_EQ(number(op, "of_rate"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(number(op, "seconds_minimum"), 6);
  EXPECT_DOUBLE_EQ(number(op, "seconds_maximum"), 6);
  EXPECT_NE(benchmark_text(result).find("no phase differs by 2 %"), std::string::npos);
  const std::string report = benchmark_text(sample_result(2, 1'500'000'000));
  EXPECT_NE(report.find("between ranks\n  forward 6000.00 to 6500.00 ms\n"), std::string::npos)
      << report;
}

TEST(WriteCluster, what_is_measured_is_what_a_plan_reads) {
  const TemporaryDirectory folder;
  const std::string config = folder
                                 .write("config.json", R"({
    "run": {"directory": "unused", "steps": 20, "threads_per_rank": 1},
    "model": {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64},
    "data": {"train": "synthetic", "sequence_length": 32}, "batch": {"global": 2, "micro": 1},
    "optimizer": {"lr": 0.001}})")
                                 .string();
  const std::string file = (folder / "here.json").string();
  printed_by({config, "--steps", "2", "--no-rates", "--write-cluster", file});
  std::vector<Problem> problems;
  const Cluster cluster = read_cluster(file, problems);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  EXPECT_EQ(cluster.device.kind, DeviceKind::kCpu);
  EXPECT_EQ(cluster.device.threads, 1);
  EXPECT_GE(cluster.cores_per_node, 1);
  EXPECT_GT(cluster.gemm.size(), 20U);
  EXPECT_GT(cluster.memory.size(), 5U);
  EXPECT_GT(cluster.efficiency.attention, 0);
  EXPECT_GT(cluster.host.layer_forward_seconds, 0);
  for (const char* path :
       {"gemm", "memory", "efficiency.attention", "host", "calibration", "node", "network"}) {
    const auto source = std::find_if(cluster.sources.begin(), cluster.sources.end(),
                                     [&](const auto& each) { return each.first == path; });
    ASSERT_NE(source, cluster.sources.end()) << path;
    const bool link = std::string_view(path).starts_with("n");  // of one rank
    EXPECT_TRUE(source->second.starts_with(link ? "not measured: " : "measured: ")) << path;
  }
  testing::internal::CaptureStdout();
  EXPECT_EQ(
      plan_command(std::vector<std::string>{config, "--cluster", file, "--json", "--no-data"}), 0);
  const Json plan = parse_json(testing::internal::GetCapturedStdout(), "plan");
  EXPECT_GT(number(*plan.find("time"), "step_seconds"), 1e-5);
  try {
    benchmark_command(std::vector<std::string>{config, "--write-cluster", file});
    FAIL() << "overwrote a file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("exists"), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme
