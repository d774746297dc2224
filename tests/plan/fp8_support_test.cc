#include "plan/fp8_support.h"

#include <gtest/gtest.h>

#include "config/parse.h"

namespace trireme {
namespace {

RunConfig config_of(std::string_view model, std::string_view precision) {
  Json json = parse_json(R"({"run": {"directory": "r", "steps": 1},
      "data": {"train": "synthetic", "sequence_length": 32}, "batch": {"micro": 1},
      "optimizer": {"lr": 0.001}})",
                         "test");
  json["model"] = parse_json(model, "test");
  json["precision"] = parse_json(precision, "test");
  const LoadedConfig loaded = parse_run_config(json);
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  return loaded.config;
}
constexpr std::string_view kDense = R"({"model_type": "llama", "hidden_size": 64,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 257, "num_hidden_layers": 3})";
/// Experts in its last layer alone.
constexpr std::string_view kExperts =
    R"({"model_type": "qwen3_moe", "hidden_size": 64, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128,
    "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 257,
    "num_hidden_layers": 3, "mlp_only_layers": [0, 1]})";
constexpr std::string_view kTensor = R"({"compute": "fp8"})";
constexpr std::string_view kBlock = R"({"compute": "fp8", "fp8": {"recipe": "block"}})";

/// Of GPUs of this name; "" where the config is taken.
std::string fault_of(const RunConfig& config, std::string_view gpu) {
  Cluster cluster;
  cluster.device.name = gpu;
  const std::optional<Problem> fault = fp8_fault(config, cluster);
  if (!fault) return "";
  EXPECT_EQ(fault->path, "precision.compute");
  EXPECT_EQ(fault->code, ExitCode::kEnvironment);
  return fault->message;
}

TEST(Fp8Support, gpus_have_what_the_table_of_the_page_says) {
  const RunConfig tensor = config_of(kDense, kTensor), block = config_of(kDense, kBlock),
                  experts = config_of(kExperts, kTensor);
  struct Case {
    const char* gpu;
    bool tensor, block, experts;
  };
  const Case cases[] = {
      {"H100 SXM", true, true, true},
      {"NVIDIA H200", true, true, true},
      {"NVIDIA L4", true, false, false},
      {"NVIDIA L40S", true, false, false},
      {"NVIDIA GeForce RTX 4090", true, false, false},
      {"B200 SXM", true, false, false},
      {"NVIDIA GB200", true, false, false},
      {"NVIDIA GeForce RTX 5090", true, false, false},
      {"A100 SXM 80GB", false, false, false},
      {"NVIDIA A10", false, false, false},
      {"NVIDIA GeForce RTX 3090", false, false, false},
      {"a GPU of no known name", true, true, true},
      {"", true, true, true},
  };
  for (const Case& gpu : cases) {
    EXPECT_EQ(fault_of(tensor, gpu.gpu).empty(), gpu.tensor) << gpu.gpu;
    EXPECT_EQ(fault_of(block, gpu.gpu).empty(), gpu.block) << gpu.gpu;
    EXPECT_EQ(fault_of(experts, gpu.gpu).empty(), gpu.experts) << gpu.gpu;
    EXPECT_EQ(fault_of(config_of(kExperts, R"({"compute": "bf16"})"), gpu.gpu), "") << gpu.gpu;
    EXPECT_EQ(fault_of(config_of(kExperts, "{}"), gpu.gpu), "") << gpu.gpu;
  }
}

TEST(Fp8Support, a_cpu_multiplies_everything) {
  Cluster cluster;
  cluster.device.kind = DeviceKind::kCpu;
  cluster.device.name = "a CPU that is called A100";
  EXPECT_FALSE(fp8_fault(config_of(kExperts, kBlock), cluster).has_value());
}

TEST(Fp8Support, experts_in_layers_that_stay_in_bf16_do_not_count) {
  const char* spared = R"({"compute": "fp8", "fp8": {"bf16_layers": [0, 1]}})";
  EXPECT_EQ(fault_of(config_of(kExperts, spared), "NVIDIA L4"), "");
  const char* others = R"({"compute": "fp8", "fp8": {"bf16_layers": [2, 0]}})";
  EXPECT_NE(fault_of(config_of(kExperts, others), "NVIDIA L4"), "");
  const char* beyond = R"({"compute": "fp8", "fp8": {"bf16_layers": [9, 9]}})";
  EXPECT_EQ(fault_of(config_of(kExperts, beyond), "NVIDIA L4"), "");
}

TEST(Fp8Support, a_refusal_says_why_and_what_to_set) {
  EXPECT_EQ(fault_of(config_of(kDense, kBlock), "NVIDIA L4"),
            "is \"fp8\" by the recipe \"block\", which NVIDIA L4 (compute capability 8.9) cannot "
            "do: products of blocks have kernels for compute capability 9.0 alone. Set "
            "precision.fp8.recipe \"tensor\"");
  EXPECT_EQ(fault_of(config_of(kExperts, kTensor), "RTX 5090"),
            "is \"fp8\" by the recipe \"tensor\", which RTX 5090 (compute capability 12.0) cannot "
            "do: products of experts in fp8 have kernels for compute capability 9.0 alone. Set "
            "precision.compute \"bf16\"");
  // Another recipe would not do.
  const std::string experts = fault_of(config_of(kExperts, kBlock), "NVIDIA L4");
  EXPECT_TRUE(experts.ends_with("Set precision.compute \"bf16\"")) << experts;
  const std::string none = fault_of(config_of(kDense, kBlock), "A100");
  EXPECT_TRUE(
      none.ends_with("no fp8, which begins at compute capability 8.9. Set "
                     "precision.compute \"bf16\""))
      << none;
}

}  // namespace
}  // namespace trireme
