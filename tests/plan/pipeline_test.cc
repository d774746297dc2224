#include "plan/pipeline.h"

#include <gtest/gtest.h>

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

Pipeline pipeline_of(const RunConfig::Parallel& parallel, std::int64_t layers,
                     std::int64_t micro_batches) {
  RunConfig config;
  config.parallel = parallel;
  config.model.layers = layers;
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
