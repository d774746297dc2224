#include "plan/generation_mesh.h"

#include <gtest/gtest.h>

#include "support/small_config.h"

namespace trireme {
namespace {

/// 4 heads, 2 of keys; 40 columns of the MLP; 3 layers.
ModelConfig some_model(std::int64_t layers = 3, std::int64_t vocabulary = 61) {
  return model_of(fmt::format(R"({{"model_type":"llama","hidden_size":24,"num_attention_heads":4,
          "num_key_value_heads":2,"num_hidden_layers":{},"intermediate_size":40,
          "vocab_size":{}}})",
                              layers, vocabulary));
}

std::string mesh_of(const GenerationRequest& request) {
  const MeshShape mesh = resolve_generation(some_model(), request).mesh;
  EXPECT_EQ(mesh.size(), mesh.extent(Axis::kPipeline) * mesh.extent(Axis::kTensor));
  return fmt::format("{} x {}", mesh.extent(Axis::kPipeline), mesh.extent(Axis::kTensor));
}

TEST(GenerationMesh, as_many_ranks_as_can_have_a_part_and_then_the_largest_tensor_extent) {
  EXPECT_EQ(mesh_of({1, 0, {}, {}}), "1 x 1");
  EXPECT_EQ(mesh_of({2, 0, {}, {}}), "1 x 2");
  EXPECT_EQ(mesh_of({3, 0, {}, {}}), "3 x 1");
  EXPECT_EQ(mesh_of({4, 0, {}, {}}), "1 x 4");
  EXPECT_EQ(mesh_of({5, 0, {}, {}}), "1 x 4");
  EXPECT_EQ(mesh_of({6, 0, {}, {}}), "3 x 2");
  EXPECT_EQ(mesh_of({100, 0, {}, {}}), "3 x 4");
}

TEST(GenerationMesh, the_tensor_axis_stays_within_a_host) {
  EXPECT_EQ(mesh_of({4, 2, {}, {}}), "2 x 2");
  EXPECT_EQ(mesh_of({4, 3, {}, {}}), "3 x 1");
  EXPECT_EQ(mesh_of({4, 2, 4, {}}), "1 x 4");
}

TEST(GenerationMesh, an_extent_that_is_asked_for_is_taken_and_the_other_chosen) {
  EXPECT_EQ(mesh_of({4, 0, 1, {}}), "3 x 1");
  EXPECT_EQ(mesh_of({4, 0, 2, {}}), "2 x 2");
  EXPECT_EQ(mesh_of({4, 0, {}, 2}), "2 x 2");
  EXPECT_EQ(mesh_of({4, 0, {}, 1}), "1 x 4");
  EXPECT_EQ(mesh_of({4, 0, 2, 1}), "1 x 2");
}

std::string refusal(const GenerationRequest& request) {
  try {
    resolve_generation(some_model(), request);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "taken";
}

TEST(GenerationMesh, an_illegal_extent_is_told_with_numbers_rule_and_the_nearest) {
  EXPECT_EQ(refusal({4, 0, 3, {}}),
            "--tensor: does not divide 4 attention heads, 2 KV heads (nor do they divide it), an "
            "MLP of 40 columns. Found 3; legal: 1, 2 or 4 for this model; nearest: 2.");
  EXPECT_EQ(
      refusal({3, 0, 4, {}}),
      "--tensor: is more than the ranks that were started. Found 4; legal: up to the 3 ranks; "
      "nearest: 2.");
  EXPECT_EQ(refusal({8, 0, {}, 4}),
            "--pipeline: is more stages than the model has layers, 3; each needs one. Found 4; "
            "legal: 1 to 3; nearest: 3.");
  EXPECT_EQ(refusal({2, 0, {}, 3}),
            "--pipeline: needs 3 x 1 = 3 ranks, and 2 were started. Found 3; legal: 1 to 2; "
            "nearest: 2.");
  EXPECT_EQ(refusal({4, 0, 2, 3}),
            "--pipeline: needs 3 x 2 = 6 ranks, and 4 were started. Found 3; legal: 1 to 2 beside "
            "tensor 2; nearest: 2.");
}

std::vector<std::int64_t> layers_of(const ModelConfig& model, std::int64_t stages) {
  std::vector<std::int64_t> layers;
  for (const ChunkRange& stage : resolve_generation(model, {stages, 0, 1, stages}).pipeline.stages)
    layers.push_back(stage.layers);
  return layers;
}

TEST(GenerationMesh, embedding_and_head_are_taken_off_the_layers_of_their_stages) {
  // A layer has 4,608 weights, 192 rows of the vocabulary as many.
  EXPECT_EQ(layers_of(some_model(8, 16), 4), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(layers_of(some_model(8, 2 * 192), 4), (std::vector<std::int64_t>{1, 3, 3, 1}));
  EXPECT_EQ(layers_of(some_model(9, 192), 3), (std::vector<std::int64_t>{3, 4, 2}));
}

TEST(GenerationMesh, weights_of_a_rank_fall_as_the_cut_says) {
  const ModelConfig model = some_model(8, 192);
  const auto bytes = [&](std::int64_t tensor, std::int64_t pipeline) {
    const GenerationMesh shared =
        resolve_generation(model, {tensor * pipeline, 0, tensor, pipeline});
    return static_cast<double>(shared.weight_bytes_max());
  };
  const double whole = bytes(1, 1);
  EXPECT_GE(whole, 4.0 * 10 * 4608);
  const std::vector<std::pair<int, int>> meshes = {{2, 1}, {4, 1}, {1, 2}, {1, 5}, {2, 2}, {4, 2}};
  for (const auto& [tensor, pipeline] : meshes)
    EXPECT_NEAR(bytes(tensor, pipeline), whole / (tensor * pipeline), 0.05 * whole)
        << pipeline << " x " << tensor;
}

TEST(GenerationMesh, the_last_stage_samples) {
  const GenerationMesh shared = resolve_generation(some_model(), {6, 0, 2, 3});
  EXPECT_EQ(shared.sampler(), 4);
  EXPECT_EQ(shared.part_of(4).cut.tensor, (AxisRank{2, 0}));
  EXPECT_TRUE(shared.part_of(4).chunks.front().range.head);
  EXPECT_FALSE(shared.part_of(5).cut.sequence_parallel);
}

}  // namespace
}  // namespace trireme
