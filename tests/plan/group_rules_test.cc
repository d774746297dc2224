#include "plan/group_rules.h"

#include <gtest/gtest.h>

#include "config/adapters.h"
#include "support/small_config.h"

namespace trireme {
namespace {

constexpr const char* kLlama = R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,
    "num_hidden_layers":2,"intermediate_size":96,"vocab_size":128})";

std::vector<Problem> problems_of(RunConfig config, ParamGroups groups) {
  config.optimizer.groups = config.model.groups = std::move(groups);
  std::vector<Problem> problems;
  check_groups(config, problems);
  return problems;
}

RunConfig llama() {
  RunConfig config;
  config.model = model_of(kLlama);
  return config;
}

Problem only(const std::vector<Problem>& problems) {
  EXPECT_EQ(problems.size(), 1U);
  return problems.empty() ? Problem() : problems.front();
}

ParamGroup rated(std::string match, double scale = 0.5) {
  return {std::move(match), scale, std::nullopt};
}
ParamGroup frozen(std::string match) { return {std::move(match), 1, std::nullopt, false}; }

TEST(GroupRules, groups_of_parameters_are_accepted) {
  EXPECT_TRUE(problems_of(llama(), {}).empty());
  EXPECT_TRUE(problems_of(llama(), {rated("norm", 0.5), rated("layers.1"), frozen("embed_tokens")})
                  .empty());
  EXPECT_TRUE(problems_of(llama(), {frozen("?_proj")}).empty());
  EXPECT_TRUE(problems_of(llama(), {rated("lm_head"), frozen("model")}).empty());
}

TEST(GroupRules, a_pattern_of_no_name_is_refused_with_the_nearest) {
  const Problem problem = only(problems_of(llama(), {rated("norm"), rated("embed_tokns")}));
  EXPECT_EQ(problem.path, "optimizer.groups[1].match");
  EXPECT_EQ(problem.found, R"("embed_tokns")");
  EXPECT_EQ(problem.nearest, R"("embed_tokens")");
  EXPECT_EQ(only(problems_of(llama(), {rated("q_prj")})).nearest, R"("q_proj")");
}

TEST(GroupRules, a_group_behind_those_that_take_all_its_parameters_is_refused) {
  const Problem problem = only(problems_of(llama(), {rated("layers"), rated("q_proj")}));
  EXPECT_EQ(problem.path, "optimizer.groups[1].match");
  EXPECT_NE(problem.message.find("groups before it"), std::string::npos);
  EXPECT_EQ(problem.nearest, "");
}

TEST(GroupRules, something_is_trained) {
  EXPECT_EQ(only(problems_of(llama(), {frozen("layers"), frozen("*")})).path, "optimizer.groups");
}

TEST(GroupRules, projections_of_one_product_stand_still_together) {
  const Problem problem = only(problems_of(llama(), {frozen("k_proj")}));
  EXPECT_EQ(problem.path, "optimizer.groups[0].match");
  EXPECT_NE(problem.message.find("k_proj.weight and not model.layers.0.self_attn.q_proj"),
            std::string::npos)
      << problem.message;
  EXPECT_EQ(problems_of(llama(), {frozen("q_proj"), frozen("up_proj")}).size(), 2U);
  EXPECT_TRUE(problems_of(llama(), {frozen("o_proj"), frozen("down_proj")}).empty());
  RunConfig experts;
  experts.model = model_of(R"({"model_type":"mixtral","hidden_size":64,"num_attention_heads":4,
      "num_key_value_heads":4,"num_hidden_layers":1,"intermediate_size":96,"vocab_size":128,
      "num_local_experts":4})");
  EXPECT_EQ(problems_of(experts, {frozen("experts.2.")}).size(), 1U);
  EXPECT_TRUE(problems_of(experts, {frozen("experts.*.w2"), frozen("gate")}).empty());
}

TEST(GroupRules, with_adapters_names_are_theirs) {
  RunConfig config = llama();
  config.lora.rank = 2;
  std::vector<Problem> none;
  take_adapters(config, none);
  EXPECT_TRUE(problems_of(config, {rated("lora_B", 4)}).empty());
  const Problem problem = only(problems_of(config, {rated("embed_tokens")}));
  EXPECT_NE(problem.message.find("no adapter"), std::string::npos) << problem.message;
}

}  // namespace
}  // namespace trireme
