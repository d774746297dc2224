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

TEST(Problem, a_file_that_is_no_good_ends_with_its_own_code_unless_the_config_has_faults_too) {
  const auto thrown = [](const std::vector<Problem>& problems) {
    try {
      throw_problems(problems);
    } catch (const Error& error) {
      return std::pair(error.code(), std::string(error.what()));
    }
    return std::pair(ExitCode::kOk, std::string());
  };
  const Problem missing = problem_of(DataError("toy.idx: cannot open"), "data.train");
  const Problem wrong = {"optimizer.lr", "-1", "above 0", "", "is out of range"};
  EXPECT_EQ(thrown({missing}).first, ExitCode::kData);
  EXPECT_EQ(thrown({missing, missing}).first, ExitCode::kData);
  const auto [code, text] = thrown({missing, wrong});
  EXPECT_EQ(code, ExitCode::kConfig);
  EXPECT_NE(text.find("data.train: toy.idx: cannot open."), std::string::npos) << text;
  EXPECT_NE(text.find("optimizer.lr: is out of range."), std::string::npos) << text;
  EXPECT_EQ(thrown({missing, missing}).second.find("x0a"), std::string::npos) << "one line";
  EXPECT_EQ(thrown({}).first, ExitCode::kOk);
}

TEST(Problem, all_are_listed_for_machines) {
  const Json list = problems_json({{"a", "1", "2", "3", "m"}, {"b", "", "", "", ""}});
  EXPECT_EQ(list.dump(), R"([{"path":"a","found":"1","legal":"2","nearest":"3","message":"m"},)"
                         R"({"path":"b","found":"","legal":"","nearest":"","message":""}])");
}

}  // namespace
}  // namespace trireme
