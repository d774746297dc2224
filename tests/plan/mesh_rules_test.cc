#include "plan/mesh_rules.h"

#include <gtest/gtest.h>

#include "config/adapters.h"
#include "support/small_config.h"

namespace trireme {
namespace {

/// 12 heads, 4 of keys; 24 columns of the MLP; 48 tokens.
RunConfig some_config() {
  RunConfig config;
  config.model = model_of(R"({"model_type":"llama","hidden_size":48,"num_attention_heads":12,
      "num_key_value_heads":4,"num_hidden_layers":2,"intermediate_size":24,"vocab_size":61})");
  config.model_json = config.model.source;
  config.data.sequence_length = 48;
  return config;
}

std::vector<Problem> problems_of(const RunConfig& config, std::int64_t data = 1) {
  std::vector<Problem> problems;
  check_mesh_rules(config, data, problems);
  return problems;
}

Problem only_problem(const RunConfig& config, std::int64_t data = 1) {
  const std::vector<Problem> problems = problems_of(config, data);
  EXPECT_EQ(problems.size(), 1U) << format_problems(problems);
  return problems.empty() ? Problem{} : problems.front();
}

TEST(MeshRules, legal_tensor_extents_are_those_that_divide_heads_columns_and_keys) {
  RunConfig config = some_config();
  for (std::int64_t t = 1; t <= 13; ++t) {
    config.parallel.tensor = t;
    config.parallel.sequence_parallel = false;
    // 3 and 6 divide the heads but neither divide the four KV heads nor are divided by them.
    const bool legal = t == 1 || t == 2 || t == 4 || t == 12;
    EXPECT_EQ(problems_of(config).empty(), legal) << t;
  }
}

TEST(MeshRules, a_tensor_extent_that_does_not_divide_is_told_with_numbers_and_the_nearest) {
  RunConfig config = some_config();
  config.parallel.tensor = 8;
  config.parallel.sequence_parallel = false;
  const Problem eight = only_problem(config);
  EXPECT_EQ(eight.path, "parallel.tensor");
  EXPECT_EQ(eight.found, "8");
  EXPECT_EQ(eight.legal, "1, 2, 4 or 12 for this model");
  EXPECT_EQ(eight.nearest, "4");
  EXPECT_EQ(eight.message, "does not divide 12 attention heads");
  config.parallel.tensor = 3;
  EXPECT_EQ(only_problem(config).message, "does not divide 4 KV heads (nor do they divide it)");
  for (LayerConfig& layer : config.model.layers) layer.mlp.ffn = 25;
  config.parallel.tensor = 5;
  EXPECT_EQ(only_problem(config).message,
            "does not divide 12 attention heads, 4 KV heads (nor do they divide it)");
  EXPECT_EQ(only_problem(config).legal, "1 for this model");
  config.parallel.tensor = 2;
  EXPECT_EQ(only_problem(config).message, "does not divide an MLP of 25 columns");
  for (LayerConfig& layer : config.model.layers) layer.mlp.ffn = 24;
  config.model.vocab_size = 3;
  config.parallel.tensor = 4;
  EXPECT_EQ(only_problem(config).message, "does not divide a vocabulary of 3 rows");
}

/// 12 experts of 10 columns.
RunConfig config_of_experts() {
  RunConfig config;
  config.model = model_of(R"({"model_type":"qwen3_moe","hidden_size":48,"num_attention_heads":12,
      "num_key_value_heads":12,"num_hidden_layers":2,"mlp_only_layers":[0],"intermediate_size":24,
      "num_experts":12,"moe_intermediate_size":10,"vocab_size":61})");
  config.model_json = config.model.source;
  config.data.sequence_length = 48;
  return config;
}

TEST(MeshRules, an_expert_extent_divides_the_experts_and_the_ranks_of_a_stage) {
  RunConfig config = config_of_experts();
  config.parallel.tensor = 2;
  for (std::int64_t e = 1; e <= 20; ++e) {
    config.parallel.expert = e;
    const bool legal = e == 1 || e == 2 || e == 4;  // of 8 ranks and 12 experts
    EXPECT_EQ(problems_of(config, 4).empty(), legal) << e;
  }
  config.parallel.expert = 8;
  const Problem eight = only_problem(config, 4);
  EXPECT_EQ(eight.path, "parallel.expert");
  EXPECT_EQ(eight.found, "8");
  EXPECT_EQ(eight.legal, "1, 2 or 4");
  EXPECT_EQ(eight.nearest, "4");
  EXPECT_EQ(eight.message, "does not divide the 12 experts of a layer");
  config.parallel.expert = 3;
  EXPECT_EQ(only_problem(config, 4).message,
            "does not divide the 8 ranks of data 4 x context 1 x tensor 2");
  config.parallel.expert = 4;
  config.parallel.expert_tensor = 2;
  EXPECT_TRUE(problems_of(config, 4).empty());
  config.parallel.expert = 5;
  EXPECT_EQ(only_problem(config, 4).message,
            "does not divide the 12 experts of a layer, the 8 ranks of data 4 x context 1 x "
            "tensor 2 / expert_tensor 2");
}

TEST(MeshRules, the_columns_of_an_expert_are_cut_evenly_over_ranks_of_a_stage) {
  RunConfig config = config_of_experts();
  config.parallel.expert_tensor = 4;
  const Problem four = only_problem(config, 4);
  EXPECT_EQ(four.path, "parallel.expert_tensor");
  EXPECT_EQ(four.found, "4");
  EXPECT_EQ(four.legal, "1, 2, 5 or 10 for this model");
  EXPECT_EQ(four.nearest, "5");
  EXPECT_EQ(four.message, "does not divide the 10 columns of an expert");
  config.parallel.expert_tensor = 5;
  EXPECT_EQ(only_problem(config, 4).legal, "1 or 2");
  EXPECT_EQ(only_problem(config, 4).message,
            "does not divide the 4 ranks of data 4 x context 1 x tensor 1");
  EXPECT_TRUE(problems_of(config, 5).empty());
}

TEST(MeshRules, ulysses_shares_out_the_heads_that_the_tensor_axis_leaves) {
  RunConfig config = some_config();
  config.parallel.context_method = ContextMethod::kUlysses;
  config.data.sequence_length = 5040;
  for (std::int64_t c = 1; c <= 12; ++c) {
    config.parallel.context = c;
    const bool legal = c == 1 || c == 2 || c == 4 || c == 12;
    EXPECT_EQ(problems_of(config).empty(), legal) << c;
  }
  config.parallel.tensor = 2;  // 6 heads and 2 KV heads a rank
  config.parallel.context = 4;
  const Problem problem = only_problem(config);
  EXPECT_EQ(problem.path, "parallel.context");
  EXPECT_EQ(problem.found, "4");
  EXPECT_EQ(problem.legal,
            "1, 2 or 6 with context_method \"ulysses\", or \"ring\" or \"allgather\"");
  EXPECT_EQ(problem.nearest, "2");
  EXPECT_EQ(problem.message, "does not share out the 6 attention heads and 2 KV heads of a rank");
  config.parallel.context_method = ContextMethod::kRing;
  EXPECT_TRUE(problems_of(config).empty());
}

TEST(MeshRules, a_sequence_is_cut_into_two_pieces_a_context_rank_and_again_by_the_tensor_axis) {
  RunConfig config = some_config();
  const auto problem_of_length = [&](std::int64_t tokens) {
    config.data.sequence_length = tokens;
    return only_problem(config);
  };
  config.parallel.context = 3;
  EXPECT_EQ(problem_of_length(50).legal, "a multiple of 6");
  EXPECT_EQ(problem_of_length(50).nearest, "48");
  EXPECT_EQ(problem_of_length(52).nearest, "54");
  EXPECT_EQ(problem_of_length(2).nearest, "6");
  EXPECT_EQ(problem_of_length(50).message, "cannot be cut evenly: 2 x context 3 pieces");
  config.parallel.tensor = 4;  // two segments of tokens, their sum divided by 4
  EXPECT_EQ(problem_of_length(54).legal, "a multiple of 12");
  EXPECT_EQ(problem_of_length(54).message,
            "cannot be cut evenly: 2 x context 3 pieces and sequence_parallel on tensor 4");
  config.parallel.sequence_parallel = false;
  config.data.sequence_length = 54;
  EXPECT_TRUE(problems_of(config).empty());
  config.parallel.sequence_parallel = true;
  config.parallel.context = 1;
  EXPECT_EQ(problem_of_length(54).path, "data.sequence_length");
  EXPECT_EQ(problem_of_length(54).legal, "a multiple of 4");
  EXPECT_EQ(problem_of_length(54).nearest, "52");
}

/// What is accepted must be divisible where the layers divide.
TEST(MeshRules, an_accepted_length_leaves_every_place_whole_tokens) {
  RunConfig config = some_config();
  for (const std::int64_t t : {1, 2, 4, 12}) {
    for (std::int64_t c = 1; c <= 8; ++c) {
      for (std::int64_t tokens = 1; tokens <= 200; ++tokens) {
        config.parallel.tensor = t;
        config.parallel.context = c;
        config.data.sequence_length = tokens;
        const bool even = tokens % (c > 1 ? 2 * c : 1) == 0 && tokens / c % t == 0;
        ASSERT_EQ(problems_of(config).empty(), even)
            << "tensor " << t << ", context " << c << ", " << tokens << " tokens";
      }
    }
  }
}

TEST(MeshRules, a_zero_group_divides_the_ranks_that_see_other_tokens) {
  RunConfig config = some_config();
  config.parallel.zero_stage = 2;
  config.parallel.context = 2;
  for (const std::int64_t group : {1, 2, 3, 6}) {
    config.parallel.zero_group = group;
    EXPECT_TRUE(problems_of(config, 3).empty()) << group;
  }
  config.parallel.zero_group = 5;
  const Problem problem = only_problem(config, 3);
  EXPECT_EQ(problem.path, "parallel.zero_group");
  EXPECT_EQ(problem.found, "5");
  EXPECT_EQ(problem.legal, "1, 2, 3 or 6");
  EXPECT_EQ(problem.nearest, "6");
  EXPECT_EQ(problem.message, "does not divide the 6 ranks of data 3 x context 2");
  config.parallel.zero_stage = 0;
  EXPECT_EQ(only_problem(config, 3).message,
            "has no meaning without ZeRO: every rank holds a full copy");
}

TEST(MeshRules, without_a_model_only_what_needs_none_is_looked_at) {
  RunConfig config;
  config.data.sequence_length = 10;
  config.parallel.tensor = 7;
  config.parallel.sequence_parallel = false;
  EXPECT_TRUE(problems_of(config).empty());
  config.parallel.context = 2;
  EXPECT_EQ(only_problem(config).path, "data.sequence_length");
}

/// Adapters beside a base in NF4. Heads of 32.
RunConfig nf4_config(std::int64_t hidden, std::int64_t heads) {
  RunConfig config;
  config.model = model_of(fmt::format(
      R"({{"model_type":"llama","hidden_size":{},"num_attention_heads":{},"num_hidden_layers":2,
      "intermediate_size":{},"vocab_size":61}})",
      hidden, heads, 2 * hidden));
  config.model_json = config.model.source;
  config.data.sequence_length = 48;
  config.parallel.sequence_parallel = false;
  config.lora.rank = 2;
  config.lora.base = LoraBase::kNf4;
  set_adapters(config.model, {2, 1, false, {}});
  return config;
}

TEST(MeshRules, the_tensor_axis_cuts_a_base_in_nf4_between_blocks) {
  RunConfig config = nf4_config(128, 4);
  for (const std::int64_t t : {1, 2}) {
    config.parallel.tensor = t;
    EXPECT_TRUE(problems_of(config).empty()) << t;
  }
  config.parallel.tensor = 4;
  const Problem four = only_problem(config);
  EXPECT_EQ(four.path, "parallel.tensor");
  EXPECT_EQ(four.legal, "2 at most, or lora.base \"compute\"");
  EXPECT_EQ(four.nearest, "2");
  EXPECT_EQ(
      four.message,
      "cuts model.layers.0.self_attn.o_proj.weight [128, 128] at row 0, column 32: weights in "
      "NF4 have scales of 64 elements in a row, which stay whole");
  config.lora.base = LoraBase::kCompute;
  EXPECT_TRUE(problems_of(config).empty());
}

TEST(MeshRules, zero_stage_3_shares_a_base_in_nf4_in_whole_blocks) {
  RunConfig config = nf4_config(96, 3);  // two rows of 96 columns are three blocks
  for (const std::int64_t stage : {0, 1, 2, 3}) {
    config.parallel.zero_stage = stage;
    EXPECT_TRUE(problems_of(config, 4).empty()) << stage;
    EXPECT_EQ(problems_of(config, 5).empty(), stage < 3) << stage;
  }
  const Problem five = only_problem(config, 5);
  EXPECT_EQ(five.path, "parallel.zero_stage");
  EXPECT_EQ(five.found, "3");
  EXPECT_EQ(five.nearest, "2");
  EXPECT_EQ(five.message.substr(0, five.message.find(':')),
            "shares the 96 rows of 96 columns of model.layers.0.self_attn.q_proj.weight among 5 "
            "ranks");
}

}  // namespace
}  // namespace trireme
