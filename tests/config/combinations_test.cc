#include "config/combinations.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

using Words = std::vector<std::string>;

std::string fault_of(const Words& options) {
  try {
    std::vector<SweptKey> keys;
    for (const std::string& option : options) keys.push_back(parse_swept_key(option));
    combinations_of(keys);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(Combinations, values_are_cut_at_top_level_commas) {
  EXPECT_EQ(parse_swept_key("optimizer.lr=1e-4,3e-4").values, (Words{"1e-4", "3e-4"}));
  EXPECT_EQ(parse_swept_key("optimizer.betas=[0.9,0.95],[0.9,0.99]").values,
            (Words{"[0.9,0.95]", "[0.9,0.99]"}));
  EXPECT_EQ(parse_swept_key(R"(data.split="969,30,1","9,1,0")").values,
            (Words{R"("969,30,1")", R"("9,1,0")"}));
  EXPECT_EQ(parse_swept_key(R"(x={"a":[1,2],"b":"]},"},null)").values,
            (Words{R"({"a":[1,2],"b":"]},"})", "null"}));
  EXPECT_EQ(parse_swept_key(R"(x="a\",b",c)").values, (Words{R"("a\",b")", "c"}));
  EXPECT_EQ(parse_swept_key("x=a=b").values, Words{"a=b"});
  EXPECT_EQ(parse_swept_key("x=1").key, "x");
}

TEST(Combinations, are_all_in_order_with_the_folders_of_the_contract) {
  const std::vector<SweptKey> keys = {{"optimizer.lr", {"1e-4", "3e-4"}},
                                      {"data.train", {"a/b", "c"}}};
  const std::vector<Combination> all = combinations_of(keys);
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].name, "optimizer.lr=1e-4,data.train=a%2Fb");
  EXPECT_EQ(all[0].overrides, (Words{"optimizer.lr=1e-4", "data.train=a/b"}));
  EXPECT_EQ(all[1].name, "optimizer.lr=1e-4,data.train=c");
  EXPECT_EQ(all[3].name, "optimizer.lr=3e-4,data.train=c");
}

TEST(Combinations, refuse_what_would_be_one_run_twice_or_none) {
  EXPECT_NE(fault_of({"x=1,1"}).find("1 stands twice"), std::string::npos);
  EXPECT_NE(fault_of({"x=1e-4,0.0001"}).find("0.0001 stands twice"), std::string::npos);
  EXPECT_NE(fault_of({"x=1,1.0"}).find("stands twice"), std::string::npos);
  EXPECT_NE(fault_of({R"(x=a,"a")"}).find("stands twice"), std::string::npos);
  EXPECT_NE(fault_of({"x=1,2", "x=3"}).find("in two options"), std::string::npos);
  EXPECT_NE(fault_of({"x=a/b,a%2Fb"}).find("share the folder"), std::string::npos);
  for (const char* empty : {"x=", "x=1,", "x=,1", "x=1,,2"}) {
    EXPECT_NE(fault_of({empty}).find("empty value"), std::string::npos) << empty;
  }
  for (const char* open : {"x=[1,2", "x=\"a", "x=1]", "x={1,[2}"}) {
    EXPECT_NE(fault_of({open}).find("without its"), std::string::npos) << open;
  }
  EXPECT_NE(fault_of({"x"}).find("names no key"), std::string::npos);
  EXPECT_NE(fault_of({"=1"}).find("names no key"), std::string::npos);
  EXPECT_NE(fault_of({"x=" + std::string(300, 'a')}).find("302 bytes"), std::string::npos);
  Words many;
  for (const char* key : {"a", "b", "c", "d", "e"}) {
    many.push_back(fmt::format("{}=1,2,3,4,5,6,7,8,9,10", key));
  }
  EXPECT_NE(fault_of(many).find("more than 10000 runs"), std::string::npos);
}

}  // namespace
}  // namespace trireme
