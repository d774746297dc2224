#include "plan/rank_memory.h"

#include <gtest/gtest.h>

#include "base/human_format.h"
#include "support/small_config.h"

namespace trireme {
namespace {

RunConfig config_of(std::int64_t micro) {
  RunConfig config = small_config(4);
  config.data.sequence_length = 64;
  config.batch.global = 16;
  config.batch.micro = micro;
  return config;
}

std::int64_t total_of(const RunConfig& config, std::int64_t world) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const ResolvedRun run = resolve_run(config, {.world = world}, problems, notes);
  EXPECT_TRUE(problems.empty());
  return most_of(ranks_of(config, run)).total();
}

TEST(RankMemory, what_is_needed_stands_by_item_with_the_sum) {
  RankMemory memory;
  memory.parameters = 1 << 20;
  memory.activations = 3 << 20;
  EXPECT_EQ(needed_text(memory),
            "parameters 1.00 MiB, gradients 0 B, optimizer 0 B, activations 3.00 MiB, buffers 0 "
            "B: 4.00 MiB together");
}

TEST(RankMemory, the_setting_that_helps_most_stands_first_with_what_is_needed_then) {
  RunConfig config = config_of(16);
  const std::string advice = memory_advice(config, 1, DeviceKind::kCpu, 1);
  // Activations of 16 sequences are nearly all of it.
  ASSERT_TRUE(advice.starts_with("batch.micro 1 (a rank then needs ")) << advice;
  config.batch.micro = 1;
  EXPECT_NE(advice.find("needs " + format_bytes(total_of(config, 1)) + ")"), std::string::npos)
      << advice;
  EXPECT_EQ(advice.find("zero_stage"), std::string::npos) << "one rank has nobody to share with";
  EXPECT_NE(advice.find("parallel.tensor 2 on 2 ranks"), std::string::npos) << advice;
}

TEST(RankMemory, of_sizes_the_largest_that_fits_is_named) {
  RunConfig config = config_of(8);
  const std::int64_t of_four = total_of(config_of(4), 1);
  EXPECT_NE(memory_advice(config, 1, DeviceKind::kCpu, of_four).find("batch.micro 4 "),
            std::string::npos);
  EXPECT_NE(memory_advice(config, 1, DeviceKind::kCpu, of_four - 1).find("batch.micro 2 "),
            std::string::npos);
}

TEST(RankMemory, states_are_shared_out_where_there_are_ranks_for_it) {
  RunConfig config = config_of(1);
  for (LayerConfig& layer : config.model.layers)
    layer.mlp.ffn = 4096;  // most of the memory is of parameters
  config.checkpoint.async = false;
  const std::string advice = memory_advice(config, 4, DeviceKind::kCpu, 1);
  EXPECT_NE(advice.find("parallel.zero_stage 3 "), std::string::npos) << advice;
}

TEST(RankMemory, a_run_that_does_not_resolve_gets_no_advice) {
  EXPECT_EQ(memory_advice(config_of(5), 1, DeviceKind::kCpu, 1), "");
}

}  // namespace
}  // namespace trireme
