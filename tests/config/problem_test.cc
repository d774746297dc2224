#include "config/problem.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Problem, is_one_line_with_path_found_legal_and_nearest) {
  EXPECT_EQ(format_problem({"a.b", "3.7", "an integer", "4", "must be whole"}),
            "a.b: must be whole. Found 3.7; legal: an integer; nearest: 4.");
  EXPECT_EQ(format_problem({"", "x", "", "", "is odd\nreally"}),
            "config: is odd\\x0areally. Found x.");
}

TEST(Problem, a_long_value_is_cut_between_characters) {
  const std::string text = shown(Json("a" + std::string(100, 'b')));
  EXPECT_EQ(text.size(), 63U);
  std::string umlauts = "a";
  for (int i = 0; i < 60; ++i) umlauts += "\u00e4";
  const std::string cut = shown(Json(umlauts));
  EXPECT_NO_THROW(parse_json("\"" + cut.substr(1, cut.size() - 4) + "\"", "cut"));
}

TEST(Problem, all_are_listed_for_machines) {
  const Json list = problems_json({{"a", "1", "2", "3", "m"}, {"b", "", "", "", ""}});
  EXPECT_EQ(list.dump(), R"([{"path":"a","found":"1","legal":"2","nearest":"3","message":"m"},)"
                         R"({"path":"b","found":"","legal":"","nearest":"","message":""}])");
}

TEST(NearestWord, knows_slips_and_leaves_the_rest_alone) {
  EXPECT_EQ(nearest_word("mirco", {"global", "micro"}), "micro");
  EXPECT_EQ(nearest_word("Warmup-Steps", {"warmup_steps", "decay_steps"}), "warmup_steps");
  EXPECT_EQ(nearest_word("zzzz", {"global", "micro"}), std::nullopt);
  EXPECT_EQ(nearest_word("", {"global"}), std::nullopt);
}

}  // namespace
}  // namespace trireme
