#include "config/param_group.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(ParamGroup, a_pattern_stands_anywhere_in_a_name) {
  const std::string name = "model.layers.10.self_attn.q_proj.weight";
  for (const char* match :
       {"q_proj", "model", "weight", name.c_str(), "layers.10.", "*", "?", "layers.*.q_proj",
        "q_proj*", "*q_proj", "layers.?0", "m*w*t", "**", "self?attn.?_proj", "*.weight"})
    EXPECT_TRUE(is_matched(name, match)) << match;
  for (const char* match : {"k_proj", "layers.1.", "layers.?.", "q_proj.weight.", "Q_proj",
                            "weight?", "q*k", "weights", "q_proj.*model", "?model", "[q]_proj"})
    EXPECT_FALSE(is_matched(name, match)) << match;
  EXPECT_TRUE(is_matched("aaab", "aab"));  // the first a's are tried and left
  EXPECT_TRUE(is_matched("abxabyab", "ab*aby"));
  EXPECT_FALSE(is_matched("", "?"));
}

ParamGroup named(std::string match) { return {std::move(match), 1, std::nullopt}; }

TEST(ParamGroup, of_several_the_first_counts) {
  const ParamGroups groups = {named("norm"), named("layers.0"), named("*")};
  EXPECT_EQ(group_of(groups, "model.layers.0.norm"), &groups[0]);
  EXPECT_EQ(group_of(groups, "model.layers.0.mlp"), &groups[1]);
  EXPECT_EQ(group_of(groups, "lm_head"), &groups[2]);
  EXPECT_EQ(group_of({named("norm")}, "lm_head"), nullptr);
  EXPECT_EQ(group_path(2), "optimizer.groups[2]");
}

}  // namespace
}  // namespace trireme
