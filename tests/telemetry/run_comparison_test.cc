#include "telemetry/run_comparison.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "support/temporary_directory.h"
#include "telemetry/loss_plot.h"

namespace trireme {
namespace {

std::string step_line(int step, double loss, double speed, double seconds) {
  return fmt::format(
      R"({{"kind":"step","step":{},"loss":{},"consumed_tokens":{},"step_seconds":{},"tokens_per_second":{},"mfu":{}}})"
      "\n",
      step, loss, 100 * step, seconds, speed, speed / 1000);
}

class RunComparisonTest : public ::testing::Test {
 protected:
  std::string run(const std::string& name, const std::string& config, const std::string& metrics) {
    std::filesystem::create_directories(folder_ / name);
    if (!config.empty()) folder_.write(name + "/config.json", config);
    if (!metrics.empty()) folder_.write(name + "/metrics.jsonl", metrics);
    return (folder_ / name).string();
  }
  const TemporaryDirectory folder_;
};

TEST_F(RunComparisonTest, tells_where_a_run_stands) {
  const RunSummary summary = summarize_run(run("a", R"({"run":{"seed":1}})",
                                               R"({"kind":"start","version":"1"})"
                                               "\n" +
                                                   step_line(1, 5, 100, 1) +
                                                   R"({"kind":"evaluation","step":1,"loss":4.5})"
                                                   "\n" +
                                                   step_line(2, 4, 400, 3) +
                                                   R"({"kind":"evaluation","step":2,"loss":3.5})"
                                                   "\n"
                                                   R"({"kind":"end","step":2,"reason":"steps"})"
                                                   "\n"));
  EXPECT_EQ(summary.steps, 2);
  EXPECT_EQ(summary.tokens, 200);
  EXPECT_EQ(summary.loss, 4.0);
  EXPECT_EQ(summary.validation_loss, 3.5);
  EXPECT_DOUBLE_EQ(summary.tokens_per_second.value(), (100 * 1 + 400 * 3) / 4.0);
  EXPECT_DOUBLE_EQ(summary.mfu.value(), (100 * 1 + 400 * 3) / 4.0 / 1000);
  EXPECT_EQ(summary.end_reason, "steps");
}

TEST_F(RunComparisonTest, takes_live_runs_torn_lines_and_skipped_steps) {
  const std::string metrics = step_line(1, 5, 100, 1) +
                              R"({"kind":"step","step":2,"loss":null,"consumed_tokens":200,)"
                              R"("step_seconds":1,"tokens_per_second":100,"mfu":null})"
                              "\n"
                              R"({"kind":"step","step":3,"lo)";
  const RunSummary summary = summarize_run(run("live", "", metrics));
  EXPECT_EQ(summary.steps, 2);
  EXPECT_EQ(summary.loss, 5.0) << "the last that is finite";
  EXPECT_EQ(summary.validation_loss, std::nullopt);
  EXPECT_DOUBLE_EQ(summary.mfu.value(), 0.1) << "of the steps that have one";
  EXPECT_EQ(summary.end_reason, "");
}

TEST_F(RunComparisonTest, knows_a_life_that_goes_on_after_an_end) {
  const std::string end = R"({"kind":"end","step":1,"reason":"steps"})"
                          "\n",
                    start = R"({"kind":"start"})"
                            "\n";
  EXPECT_EQ(summarize_run(run("a", "{}", start + step_line(1, 1, 1, 1) + end)).end_reason, "steps");
  EXPECT_EQ(summarize_run(run("a", "{}", start + step_line(1, 1, 1, 1) + end + start)).end_reason,
            "");
}

TEST_F(RunComparisonTest, of_several_validation_sets_takes_the_mean_or_the_watched) {
  const std::string metrics = step_line(1, 5, 1, 1) +
                              R"({"kind":"evaluation","step":1,"loss":9,"name":"old"})"
                              "\n"
                              R"({"kind":"evaluation","step":2,"loss":2,"name":"books"})"
                              "\n"
                              R"({"kind":"evaluation","step":2,"loss":4,"name":"code"})"
                              "\n";
  EXPECT_EQ(summarize_run(run("mean", R"({"evaluation":{}})", metrics)).validation_loss, 3.0);
  EXPECT_EQ(
      summarize_run(run("watched", R"({"evaluation":{"watch":"code"}})", metrics)).validation_loss,
      4.0);
}

TEST_F(RunComparisonTest, a_run_that_has_not_begun_has_nothing) {
  const Json json = comparison_json(
      compare_runs({summarize_run(run("a", "{}", "")), summarize_run(run("b", "{}", ""))}));
  EXPECT_EQ(
      json.find("runs")->as_array()[0].dump(),
      fmt::format(
          R"({{"directory":"{}","steps":null,"tokens":null,"loss":null,"validation_loss":null,)"
          R"("tokens_per_second":null,"mfu":null,"step_seconds":null,)"
          R"("predicted_step_seconds":null,"joules":null}})",
          (folder_ / "a").string()));
  EXPECT_EQ(json.find("config")->dump(), "{}");
}

TEST_F(RunComparisonTest, refuses_what_is_no_run) {
  const auto code_of = [](const std::string& directory) {
    try {
      summarize_run(directory);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(directory), std::string::npos) << error.what();
      return static_cast<int>(error.code());
    }
    return 0;
  };
  EXPECT_EQ(code_of((folder_ / "absent").string()), 74);
  EXPECT_EQ(code_of(folder_.write("file", "x").string()), 74);
  EXPECT_EQ(code_of(run("empty", "", "")), 74);
  EXPECT_EQ(code_of(run("broken", "{", "")), 74);
  EXPECT_EQ(code_of(run("array", "[]", "")), 74);
}

TEST_F(RunComparisonTest, lists_the_keys_that_differ_with_null_where_a_run_lacks_one) {
  const Comparison comparison = compare_runs(
      {summarize_run(run(
           "a",
           R"({"run":{"directory":"a","seed":1},"optimizer":{"lr":0.1,"betas":[1,2]},"data":{"train":"x"}})",
           "")),
       summarize_run(run(
           "b",
           R"({"run":{"directory":"b","seed":1},"optimizer":{"lr":0.2,"betas":[1,3]},"data":{"train":"x","seed":4}})",
           "")),
       summarize_run(run("c", "", step_line(1, 1, 1, 1)))});
  EXPECT_EQ(
      comparison_json(comparison).find("config")->dump(),
      R"({"run.seed":[1,1,null],"optimizer.lr":[0.1,0.2,null],"optimizer.betas":[[1,2],[1,3],null],)"
      R"("data.train":["x","x",null],"data.seed":[null,4,null]})");
}

TEST_F(RunComparisonTest, prints_tables_with_names_that_tell_the_runs_apart) {
  const Comparison comparison = compare_runs(
      {summarize_run(
           run("long/lr=1", R"({"optimizer":{"lr":1}})", step_line(1200, 3.25, 12345, 1)) + "/"),
       summarize_run(run("long/lr=2", R"({"optimizer":{"lr":2}})", ""))});
  const std::string text = comparison_text(comparison);
  EXPECT_NE(text.find("lr=1  1,200"), std::string::npos) << text;
  EXPECT_NE(text.find("3.2500"), std::string::npos) << text;
  EXPECT_NE(text.find("12.3k"), std::string::npos) << text;
  EXPECT_NE(text.find("lr=2      -"), std::string::npos) << text;
  EXPECT_NE(text.find("optimizer.lr     1     2"), std::string::npos) << text;
  EXPECT_EQ(text.find("long"), std::string::npos) << text;
  const auto names_of = [](const std::vector<std::string>& directories) {
    Comparison several;
    for (const std::string& directory : directories) {
      several.runs.emplace_back();
      several.runs.back().directory = directory;
    }
    return short_names(several);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of({"/a/b", "c/d"}), (Names{"/a/b", "c/d"}));
  EXPECT_EQ(names_of({"/a/b", "/a/c/"}), (Names{"b", "c"}));
  EXPECT_EQ(names_of({"a", "a/b"}), (Names{"a", "a/b"}));
  EXPECT_EQ(names_of({"r/x", "r/x"}), (Names{"x", "x"}));
}

TEST(ComparisonPlot, draws_every_run_and_names_it) {
  std::vector<NamedCurves> runs(3);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].name = fmt::format("run <{}>", i);
    for (int step = 1; step < 40 && i < 2; ++step)
      runs[i].curves.training.push_back({1000.0 * step, 5.0 + static_cast<double>(i) - 0.1 * step});
  }
  const std::string svg = comparison_svg(runs, "Loss of 3 runs");
  EXPECT_TRUE(svg.starts_with("<?xml")) << svg.substr(0, 80);
  const auto count = [&](const std::string& what) {
    int found = 0;
    for (std::size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(count("<polyline"), 2 + 3) << "two runs with steps, three samples in the list";
  EXPECT_EQ(count("run &lt;0&gt; 1.1"), 1);
  EXPECT_EQ(count("run &lt;2&gt;"), 1);
  EXPECT_NE(comparison_svg({}, "none").find("no steps yet"), std::string::npos);
}

TEST_F(RunComparisonTest, a_step_stands_beside_what_was_predicted) {
  const std::string start =
      R"({"kind":"start","config":{},"predicted":{"cluster":"here","step_seconds":2.5}})"
      "\n";
  const auto step = [](double seconds, const char* more = "") {
    return fmt::format(R"({{"kind":"step","step":1,"step_seconds":{}{}}})", seconds, more) + "\n";
  };
  const RunSummary with =
      summarize_run(run("with", "{}", start + step(9) + step(2, R"(,"joules":1.8e6)") + step(4)));
  EXPECT_DOUBLE_EQ(with.step_seconds.value(), 3) << "behind the first";
  EXPECT_EQ(with.predicted_step_seconds, 2.5);
  EXPECT_EQ(with.joules, 1.8e6);
  const RunSummary without = summarize_run(run("without", "{}", step(9) + step(2)));
  EXPECT_EQ(without.step_seconds, std::nullopt);
  EXPECT_EQ(without.predicted_step_seconds, std::nullopt);
  const std::string text = summaries_text(compare_runs({with, without}));
  EXPECT_NE(text.find("s/step  predicted  kWh"), std::string::npos) << text;
  EXPECT_NE(text.find("     3        2.5  0.5"), std::string::npos) << text;
  EXPECT_EQ(summaries_text(compare_runs({without, without})).find("predicted"), std::string::npos);
  const Json json = comparison_json(compare_runs({with}));
  EXPECT_EQ(json.find("runs")->as_array()[0].find("predicted_step_seconds")->as_double(), 2.5);
}

}  // namespace
}  // namespace trireme
