// The golden files themselves: that they are whole, and that the reader reads them.

#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/temporary_directory.h"

namespace trireme {
namespace {

TEST(Golden, every_model_case_is_whole) {
  const auto cases = golden_model_cases();
  ASSERT_GE(cases.size(), 9u);
  for (const std::string& name : cases) {
    SCOPED_TRACE(name);
    const ModelGolden golden = read_model_golden(name);
    EXPECT_EQ(golden.batch, 3);
    EXPECT_EQ(golden.tokens, 37);
    EXPECT_EQ(golden.targets.size(), golden.input_ids.size());
    EXPECT_GT(golden.loss, 1);
    EXPECT_EQ(golden.logits.shape, (std::vector<std::int64_t>{3, 2, 307}));
    double square = 0;
    for (const auto& [tensor, gradient] : golden.gradients) {
      EXPECT_GT(gradient.norm(), 0) << tensor;
      square += gradient.norm() * gradient.norm();
    }
    EXPECT_NEAR(std::sqrt(square) / golden.gradient_norm, 1, 1e-7);
    const GoldenTensors weights =
        with_experts_apart(read_tensors(golden.directory / "model.safetensors"));
    const auto trained = std::count_if(weights.begin(), weights.end(), [](const auto& weight) {
      return !weight.first.ends_with(".e_score_correction_bias");
    });
    EXPECT_EQ(trained, std::ssize(golden.gradients));
    for (const auto& [tensor, gradient] : golden.gradients) {
      ASSERT_TRUE(weights.contains(tensor)) << tensor;
      EXPECT_EQ(weights.find(tensor)->second.shape, gradient.shape) << tensor;
    }
  }
}

TEST(Golden, document_masks_restart_positions_at_every_document) {
  for (const char* name : {"llama_rope_llama3", "gpt2_untied"}) {
    SCOPED_TRACE(name);
    const DocumentMaskGolden golden = read_document_mask_golden(name);
    const ModelGolden plain = read_model_golden(name);
    EXPECT_EQ(golden.directory, plain.directory);
    EXPECT_EQ(golden.gradients.size(), plain.gradients.size());
    ASSERT_EQ(golden.document_starts.size(), 3u);
    ASSERT_EQ(golden.position_ids.size(), golden.input_ids.size());
    for (std::size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(golden.document_starts[row].front(), 0);
      for (const std::int64_t start : golden.document_starts[row]) {
        EXPECT_EQ(golden.position_ids[row * 37 + static_cast<std::size_t>(start)], 0);
      }
    }
  }
}

TEST(Golden, training_generation_and_order_are_whole) {
  for (const char* name : {"llama_gqa", "olmo3", "gemma3", "qwen2_moe", "qwen3_moe", "mixtral",
                           "olmoe", "glm4_moe", "deepseek_v3", "gpt_oss", "gpt2"}) {
    SCOPED_TRACE(name);
    const std::string folder = std::string("training/") + name;
    const Json recipe = read_golden_json(folder + "/expected.json");
    EXPECT_EQ(flat_reals(*recipe.find("losses")).size(), 20u);
    EXPECT_EQ(flat_reals(*recipe.find("grad_norms")).size(), 20u);
    EXPECT_EQ(flat_reals(*recipe.find("learning_rates")).back(),
              recipe.find("min_lr")->as_double());
    EXPECT_EQ(read_tensors(golden_path(folder) / "final.safetensors").size(), 3u);
    EXPECT_TRUE(std::filesystem::exists(golden_path(folder) / "tokens.idx"));
  }
  const Json greedy = read_golden_json("generation/greedy.json");
  EXPECT_EQ(greedy.as_array().size(), golden_model_cases().size());
  for (const Json& entry : greedy.as_array()) {
    EXPECT_EQ(flat_integers(*entry.find("ids")).size(), 24u);
    EXPECT_EQ(flat_integers(*entry.find("ids_until_end")).back(),
              entry.find("end_token")->as_integer());
  }
  EXPECT_GE(read_golden_json("generation/filters.json").find("settings")->as_array().size(), 15u);
  EXPECT_GE(read_golden_json("megatron/order.json").as_array().size(), 20u);
}

TEST(Golden, the_reader_widens_fp32_exactly_and_cuts_columns) {
  TemporaryDirectory directory;
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"__metadata__":{"format":"pt"}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header;
  for (const float value : {0.1f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f}) {
    file.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  const GoldenTensors tensors = read_tensors(directory.write("a.safetensors", file));
  ASSERT_EQ(tensors.size(), 1u);
  const GoldenTensor& a = tensors.at("a");
  EXPECT_EQ(a.values[0], static_cast<double>(0.1f));
  EXPECT_EQ(a.columns(1, 3).values, (std::vector<double>{1, 2, 4, 5}));
  EXPECT_EQ(a.columns(1, 3).shape, (std::vector<std::int64_t>{2, 2}));
}

TEST(Golden, the_measure_of_error_sees_one_wrong_element_and_nan) {
  const std::vector<double> expected = {3, 4};
  EXPECT_EQ(gradient_error(std::vector<double>{3, 4}, expected, 5), 0);
  EXPECT_GT(gradient_error(std::vector<float>{3, 4.001f}, expected, 5), 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_GT(gradient_error(std::vector<float>{3, nan}, expected, 5), 1);
  EXPECT_GT(relative_error_max(std::vector<float>{3, nan}, expected), 1);
  EXPECT_NEAR(relative_error_max(std::vector<float>{3, 5}, expected), 0.25, 1e-12);
}

}  // namespace
}  // namespace trireme
