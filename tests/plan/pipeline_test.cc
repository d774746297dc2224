#include "plan/pipeline.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/file.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

RunConfig::Parallel parallel_of(std::int64_t pipeline, const char* schedule) {
  RunConfig::Parallel parallel;
  parallel.pipeline = pipeline;
  parallel.pipeline_schedule = schedule;
  return parallel;
}

/// A head of about half a layer.
ModelConfig small_model(std::int64_t layers) {
  ModelConfig model;
  model.layers = layers;
  model.hidden = 16;
  model.heads = model.kv_heads = 2;
  model.head_dim = 8;
  model.ffn = 40;
  model.vocab_size = 100;
  return model;
}

Pipeline pipeline_of(const RunConfig::Parallel& parallel, std::int64_t layers,
                     std::int64_t micro_batches) {
  RunConfig config;
  config.parallel = parallel;
  config.model = small_model(layers);
  config.data.sequence_length = 16;
  return make_pipeline(config, {micro_batches, 1, micro_batches, 1});
}

std::string fault_of(const RunConfig::Parallel& parallel, std::int64_t layers,
                     std::int64_t micro_batches) {
  try {
    (void)pipeline_of(parallel, layers, micro_batches);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Pipeline, one_rank_is_a_plan_of_one_stage_with_one_micro_batch_in_flight) {
  const Pipeline pipeline = pipeline_of({}, 3, 4);
  const std::vector<ChunkShape> chunks = pipeline.chunks_of(0);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].range.layers, 3);
  EXPECT_TRUE(chunks[0].range.embedding && chunks[0].range.head);
  EXPECT_EQ(chunks[0].in_flight, 1);
  EXPECT_FALSE(pipeline.split);
}

TEST(Pipeline, layers_are_dealt_out_in_order_and_the_ends_have_embedding_and_head) {
  const Pipeline pipeline = pipeline_of(parallel_of(2, "interleaved"), 6, 4);
  ASSERT_EQ(pipeline.stages.size(), 4U);
  std::int64_t next = 0;
  for (std::size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(pipeline.stages[s].first_layer, next);
    next += pipeline.stages[s].layers;
    EXPECT_EQ(pipeline.stages[s].embedding, s == 0);
    EXPECT_EQ(pipeline.stages[s].head, s == 3);
  }
  EXPECT_EQ(next, 6);
  EXPECT_EQ(pipeline.chunks_of(1).size(), 2U);
}

TEST(Pipeline, the_first_rank_of_1f1b_has_as_many_in_flight_as_there_are_stages) {
  const Pipeline pipeline = pipeline_of(parallel_of(4, "1f1b"), 4, 8);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(pipeline.chunks_of(rank)[0].in_flight, 4 - rank);
}

TEST(Pipeline, layers_may_be_given_for_each_stage) {
  RunConfig::Parallel parallel = parallel_of(2, "1f1b");
  parallel.pipeline_layers = {5, 2};
  const Pipeline pipeline = pipeline_of(parallel, 7, 2);
  EXPECT_EQ(pipeline.stages[1].first_layer, 5);
  EXPECT_EQ(pipeline.stages[1].layers, 2);
  parallel.pipeline_layers = {5, 3};
  EXPECT_NE(fault_of(parallel, 7, 2).find("together the model's 7 layers"), std::string::npos);
  parallel.pipeline_layers = {7, 0};
  EXPECT_NE(fault_of(parallel, 7, 2).find("each at least 1"), std::string::npos);
}

std::vector<std::int64_t> layers_of(const Pipeline& pipeline) {
  std::vector<std::int64_t> layers;
  for (const ChunkRange& stage : pipeline.stages) layers.push_back(stage.layers);
  return layers;
}

TEST(Pipeline, a_large_vocabulary_leaves_fewer_layers_to_the_rank_of_the_head) {
  RunConfig config;
  config.parallel = parallel_of(4, "1f1b");
  config.model = small_model(16);
  config.data.sequence_length = 16;
  EXPECT_EQ(layers_of(make_pipeline(config, {8, 1, 8, 1})),
            (std::vector<std::int64_t>{4, 4, 4, 4}));
  config.model.vocab_size = 1000;
  EXPECT_EQ(layers_of(make_pipeline(config, {8, 1, 8, 1})),
            (std::vector<std::int64_t>{5, 5, 5, 1}));
  config.parallel = parallel_of(2, "zb-v");
  const Pipeline pipeline = make_pipeline(config, {8, 1, 8, 1});
  EXPECT_EQ(layers_of(pipeline), (std::vector<std::int64_t>{5, 5, 5, 1}));
  EXPECT_EQ(pipeline.placement.back(), 0);
}

TEST(Pipeline, stages_take_the_times_of_what_they_compute_unless_the_config_says_others) {
  RunConfig config;
  config.parallel = parallel_of(2, "zb-h1");
  config.model = small_model(6);
  config.model.vocab_size = 1000;
  config.data.sequence_length = 16;
  const Pipeline pipeline = make_pipeline(config, {4, 1, 4, 1});
  const ActionTimes& times = pipeline.times;
  ASSERT_EQ(times.stages.size(), 2U);
  EXPECT_NEAR(times.all(), 3, 1e-9) << "of a stage in the mean";
  const auto& [first, last] = std::tie(times.stages[0], times.stages[1]);
  EXPECT_NEAR(first.backward_weight / last.backward_weight,
              static_cast<double>(pipeline.stages[0].layers) /
                  static_cast<double>(pipeline.stages[1].layers),
              1e-9);
  EXPECT_GT(last.forward, first.forward) << "the head makes its gradients in F";
  EXPECT_GT(first.backward_input, first.forward) << "attention makes its scores anew";
  config.parallel.pipeline_times = {1, 2, 3, 0.5};
  const ActionTimes given = make_pipeline(config, {4, 1, 4, 1}).times;
  EXPECT_TRUE(given.stages.empty());
  EXPECT_EQ(given.backward_weight, 3);
  EXPECT_EQ(given.transfer, 0.5);
}

TEST(Pipeline, more_stages_than_layers_are_refused_with_the_numbers) {
  EXPECT_NE(fault_of(parallel_of(4, "1f1b"), 3, 8).find("4 virtual stages for a model of 3 layers"),
            std::string::npos);
  EXPECT_NE(fault_of(parallel_of(2, "zb-v"), 3, 8).find("4 virtual stages"), std::string::npos);
}

TEST(Pipeline, a_plan_file_is_run_and_one_of_other_sizes_is_refused) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "plan.json";
  write_file_atomically(path, plan_json(make_1f1b(2, 3)).dump());
  RunConfig::Parallel parallel = parallel_of(2, path.c_str());
  EXPECT_EQ(pipeline_of(parallel, 2, 3).plan.ranks, make_1f1b(2, 3).ranks);
  EXPECT_NE(fault_of(parallel, 2, 4).find("a plan of 2 ranks and 3 micro-batches"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme
