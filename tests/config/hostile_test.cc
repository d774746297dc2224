// Configs that nobody writes: they end in faults of bounded length, soon, whatever their size.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/readable.h"
#include "config/parse.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

LoadedConfig load(std::string_view text, std::vector<std::string> overrides = {}) {
  const TemporaryDirectory folder;
  return read_run_config({{folder.write("c.json", text)}, std::move(overrides)});
}

std::string fault_of(std::string_view text, ExitCode code) {
  try {
    (void)load(text);
  } catch (const Error& fault) {
    if (fault.code() == code) return fault.what();
  }
  return "no such fault";
}

std::string keys(std::size_t count) {
  std::string text = "{";
  for (std::size_t i = 0; i < count; ++i)
    text += fmt::format("{}\"optimizr_{}\":1", i > 0 ? "," : "", i);
  return text + "}";
}

TEST(HostileConfig, of_thousands_of_faults_the_first_are_told_and_the_rest_counted) {
  const LoadedConfig loaded = load(keys(9000));
  EXPECT_GT(loaded.problems.size(), 9000u);
  const std::string told = format_problems(loaded.problems);
  EXPECT_LT(told.size(), 100'000u);
  EXPECT_TRUE(told.ends_with(fmt::format("and {} more", loaded.problems.size() - kProblemsShown)));
  EXPECT_NE(loaded.problems.front().nearest, "");
  EXPECT_EQ(loaded.problems[8000].nearest, "");  // nobody reads that far
}

TEST(HostileConfig, endless_files_are_refused_before_they_cost_time) {
  EXPECT_NE(fault_of(keys(10'001), ExitCode::kConfig).find("more than 10000 keys"),
            std::string::npos);
  EXPECT_NE(fault_of(std::string(2 << 20, ' '), ExitCode::kData).find("more than the 1048576"),
            std::string::npos);
}

TEST(HostileConfig, a_key_repeated_ten_thousand_times_is_noted_each_time) {
  std::string text = "{";
  for (int i = 0; i < 20; ++i) text += fmt::format("\"k{}\":0,", i);
  for (int i = 0; i < 9000; ++i) text += "\"k3\":0,";
  const LoadedConfig loaded = load(text + "\"k4\":1}");
  const auto is_duplicate = [](const Problem& problem) { return problem.found == "twice"; };
  EXPECT_EQ(std::count_if(loaded.problems.begin(), loaded.problems.end(), is_duplicate), 9001);
}

TEST(HostileConfig, a_key_of_a_megabyte_is_one_short_line) {
  const LoadedConfig loaded = load("{\"" + std::string(1'000'000, 'k') + "\\n\": 1}");
  const std::string line = format_problem(loaded.problems.front());
  EXPECT_LT(line.size(), 1100u);
  EXPECT_EQ(line, readable(line, LineFeeds::kEscaped, line.size()));
}

TEST(HostileConfig, overrides_that_are_no_text_or_endless_paths_are_faults) {
  std::string deep = "a";
  for (int i = 0; i < 100'000; ++i) deep += ".a";
  for (const std::string& text :
       {std::string("run.directory=\xff"), std::string("\xed\xa0\x80=1"), deep + "=1"}) {
    const LoadedConfig loaded = load("{}", {text});
    EXPECT_EQ(loaded.problems.front().path, "--set");
    EXPECT_NO_THROW((void)parse_json(problems_json(loaded.problems).dump(), "json"));
  }
}

TEST(HostileConfig, a_model_whose_name_no_file_can_have_is_a_missing_file) {
  const LoadedConfig loaded = load(R"({"model": ")" + std::string(5000, 'm') + "\"}");
  const auto model = std::find_if(loaded.problems.begin(), loaded.problems.end(),
                                  [](const Problem& problem) { return problem.path == "model"; });
  ASSERT_NE(model, loaded.problems.end());
  EXPECT_EQ(model->code, ExitCode::kData);
  EXPECT_NE(model->message.find("no such file"), std::string::npos);
}

}  // namespace
}  // namespace trireme
