#include "plan/zero_group.h"

#include <gtest/gtest.h>

#include "plan/rank_memory.h"
#include "support/small_config.h"

namespace trireme {
namespace {

struct Chosen {
  ResolvedRun run;
  std::vector<std::string> notes;
};

Chosen resolve(const RunConfig& config, std::int64_t world, const NodeFacts& node) {
  ResolveInput input;
  input.world = world;
  input.node = node;
  std::vector<Problem> problems;
  Chosen chosen;
  chosen.run = resolve_run(config, input, problems, chosen.notes);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  return chosen;
}

RunConfig sharded_config(std::int64_t stage = 3) {
  RunConfig config = small_config();
  config.batch.global = {};
  config.batch.micro = 1;
  config.parallel.zero_stage = stage;
  return config;
}

constexpr NodeFacts kNode{8, std::int64_t{1} << 40};

TEST(ZeroGroup, is_a_node_where_there_are_several) {
  for (const std::int64_t stage : {1, 2, 3})
    EXPECT_EQ(resolve(sharded_config(stage), 32, kNode).run.zero_group, 8);
  EXPECT_EQ(resolve(sharded_config(), 8, kNode).run.zero_group, 0) << "one node";
  EXPECT_EQ(resolve(sharded_config(), 20, kNode).run.zero_group, 0) << "two nodes and a half";
  EXPECT_EQ(resolve(sharded_config(), 32, {}).run.zero_group, 0) << "nothing is known of nodes";
  EXPECT_EQ(resolve(sharded_config(0), 32, kNode).run.zero_group, 0) << "no ZeRO";
}

TEST(ZeroGroup, leaves_the_tensor_axis_and_stages_out) {
  RunConfig config = sharded_config();
  config.parallel.tensor = 2;
  EXPECT_EQ(resolve(config, 32, kNode).run.zero_group, 4);
  config.parallel.pipeline = 2;
  EXPECT_EQ(resolve(config, 32, kNode).run.zero_group, 4) << "two nodes a stage";
  EXPECT_EQ(resolve(config, 16, kNode).run.zero_group, 0) << "a stage is a node";
}

TEST(ZeroGroup, what_is_given_stays) {
  RunConfig config = sharded_config();
  config.parallel.zero_group = 16;
  const ResolvedRun run = resolve(config, 32, kNode).run;
  EXPECT_EQ(run.zero_group, 0);
  EXPECT_EQ(
      part_of_rank(config, run, 0, StagePurpose::kTraining).store.of(MeshView::kDense).shard.extent,
      16);
  config.parallel.zero_group = 0;  // as if it were left out
  EXPECT_EQ(resolve(config, 32, kNode).run.zero_group, 8);
}

TEST(ZeroGroup, decides_who_holds_what) {
  const RunConfig config = sharded_config();
  const ResolvedRun run = resolve(config, 32, kNode).run;
  const Distribution of =
      part_of_rank(config, run, 19, StagePurpose::kTraining).store.of(MeshView::kDense);
  EXPECT_EQ(of.shard.extent, 8);
  EXPECT_EQ(of.shard.index, 3);
  EXPECT_EQ(of.replica.extent, 4);
  EXPECT_EQ(of.replica.index, 2);
}

TEST(ZeroGroup, spans_nodes_where_memory_is_short) {
  const RunConfig config = sharded_config();
  const std::int64_t needed = most_of(ranks_of(config, resolve(config, 32, kNode).run)).total();
  const Chosen enough = resolve(config, 32, {8, needed}),
               short_of = resolve(config, 32, {8, needed - 1});
  EXPECT_EQ(enough.run.zero_group, 8);
  EXPECT_NE(enough.notes.back().find("zero_group is 8, the ranks of a node"), std::string::npos);
  EXPECT_EQ(short_of.run.zero_group, 0);
  EXPECT_NE(short_of.notes.back().find("zero_group is 32, all that see other tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme
