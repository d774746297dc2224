#include "telemetry/loss_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/file.h"
#include "base/random.h"
#include "support/temporary_directory.h"
#include "support/well_formed.h"
#include "telemetry/metrics_file.h"

namespace trireme {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

LossCurves curves_of(std::initializer_list<double> losses) {
  LossCurves curves;
  for (const double loss : losses)
    curves.training.push_back({8192.0 * static_cast<double>(curves.training.size() + 1), loss});
  return curves;
}

TEST(LossPlot, the_checker_of_these_tests_finds_faults) {
  EXPECT_TRUE(is_well_formed("<a><b x=\"1\"/>t &amp; u</a>\n"));
  for (const char* bad :
       {"<a><b></a></b>", "<a>&</a>", "<a", "<a/><b/>", "<a>\x01</a>", "<a x=\"/>", "t", ""}) {
    EXPECT_FALSE(is_well_formed(bad)) << bad;
  }
}

TEST(LossPlot, any_number_of_points_gives_a_valid_document) {
  for (const auto& curves :
       {curves_of({}), curves_of({10.8}), curves_of({10.8, 10.2}), curves_of({kNaN}),
        curves_of({kNaN, kNaN, 3.0, kNaN, 2.0, 1.0}), curves_of({0.0, 0.0}), curves_of({-1.0, 1.0}),
        curves_of({1e300, -1e300, 1e-300}), curves_of({3.0, 3.0, 3.0})}) {
    const std::string svg = loss_svg(curves, "a run");
    EXPECT_TRUE(is_well_formed(svg)) << svg;
    EXPECT_EQ(count(svg, "nan") + count(svg, "inf"), 0U) << svg;
  }
}

TEST(LossPlot, the_title_cannot_break_the_document) {
  const std::string svg = loss_svg(curves_of({3, 2}), "a<b>&\"c\"\x01");
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(count(svg, "a&lt;b&gt;&amp;&quot;c&quot;"), 2U);
}

TEST(LossPlot, axes_are_named_with_their_units) {
  const std::string svg = loss_svg(curves_of({3, 2}), "a run");
  EXPECT_EQ(count(svg, ">tokens<"), 1U);
  EXPECT_EQ(count(svg, ">loss (nats per token)<"), 1U);
}

TEST(LossPlot, the_legend_names_only_what_is_drawn) {
  LossCurves curves = curves_of({3.25, 2.5});
  EXPECT_EQ(count(loss_svg(curves, ""), ">training 2.5<"), 1U);
  EXPECT_EQ(count(loss_svg(curves, ""), "validation"), 0U);
  EXPECT_EQ(count(loss_svg(curves, ""), "restart"), 0U);
  EXPECT_EQ(count(loss_svg(curves, ""), "skipped"), 0U);
  curves.validation = {{"", {{8192, 3.5}}}};
  curves.restarts = {8192};
  curves.skips = {8192};
  EXPECT_EQ(count(loss_svg(curves, ""), ">validation 3.5<"), 1U);
  curves.validation = {{"web", {{8192, 3.5}, {9000, 3.25}}}, {"code", {{8192, 2.5}}}};
  const std::string named = loss_svg(curves, "");
  EXPECT_EQ(count(named, ">validation web 3.25<"), 1U);
  EXPECT_EQ(count(named, ">validation code 2.5<"), 1U);
  EXPECT_EQ(count(named, ">validation 3.5<"), 0U);
  EXPECT_EQ(count(loss_svg(curves, ""), ">restart<"), 1U);
  EXPECT_EQ(count(loss_svg(curves, ""), ">skipped step<"), 1U);
}

TEST(LossPlot, every_restart_is_a_dashed_line) {
  LossCurves curves = curves_of({5, 4, 3, 2});
  const auto dashed = [&] { return count(loss_svg(curves, ""), "stroke-dasharray"); };
  curves.restarts = {8192};
  const std::size_t with_one = dashed();
  curves.restarts = {8192, 16384, 24576};
  EXPECT_EQ(dashed(), with_one + 2);
}

TEST(LossPlot, a_missing_loss_interrupts_the_line) {
  EXPECT_EQ(count(loss_svg(curves_of({5, 4, 3, 2}), ""), "<polyline"), 2U)
      << "the line and its sample in the legend";
  EXPECT_EQ(count(loss_svg(curves_of({5, 4, kNaN, 3, 2}), ""), "<polyline"), 3U);
}

TEST(LossPlot, many_points_are_thinned_but_keep_their_extremes) {
  LossCurves curves;
  for (std::uint64_t i = 1; i <= 60000; ++i)
    curves.training.push_back({8192.0 * static_cast<double>(i), 3 + 0.01 * normal(5, i)});
  curves.training[40000].loss = 2.5;  // one dip in one column must stay
  const std::string with_dip = loss_svg(curves, "");
  curves.training[40000].loss = 3;
  const std::string without_dip = loss_svg(curves, "");

  EXPECT_LT(with_dip.size(), 80'000U);
  EXPECT_GT(count(with_dip, ","), 1000U);
  EXPECT_NE(with_dip, without_dip);
  EXPECT_EQ(count(with_dip, ">each step<"), 1U);
}

TEST(LossPlot, a_spike_is_cut_at_the_frame_and_marked) {
  LossCurves curves;
  for (int i = 1; i <= 200; ++i) curves.training.push_back({8192.0 * i, 10.0 / std::sqrt(i)});
  EXPECT_EQ(count(loss_svg(curves, ""), "l4 7h-8z"), 0U) << "nothing to cut";
  const std::string calm_label = ">10<";
  EXPECT_EQ(count(loss_svg(curves, ""), calm_label), 1U);
  curves.training[150].loss = 1e30;
  EXPECT_EQ(count(loss_svg(curves, ""), "l4 7h-8z"), 1U);
  EXPECT_EQ(count(loss_svg(curves, ""), "e+"), 0U) << "the axis stays with the curve";
}

TEST(LossPlot, tokens_are_logarithmic_from_a_factor_of_a_thousand_on) {
  LossCurves curves;
  for (int i = 1; i < 1000; ++i) curves.training.push_back({1000.0 * i, 3.0 - 0.001 * i});
  EXPECT_EQ(count(loss_svg(curves, ""), ">0<"), 1U) << "a linear axis starts at 0";
  curves.training.push_back({1e6, 2});
  EXPECT_EQ(count(loss_svg(curves, ""), ">0<"), 0U);
  EXPECT_EQ(count(loss_svg(curves, ""), ">100k<"), 1U);
}

StepLine step_line(std::int64_t step, double loss) {
  StepLine line;
  line.step = step;
  line.consumed_tokens = 100 * step;
  line.loss = loss;
  return line;
}

TEST(RunHistory, a_resumed_run_shows_its_whole_history) {
  const TemporaryDirectory folder;
  {
    MetricsFile metrics(folder / "metrics.jsonl", 0);
    for (int step = 1; step <= 4; ++step) metrics.append(step_line(step, step == 2 ? kNaN : step));
    metrics.append(SkipLine{2, "loss", 0, ""});
    metrics.append(EvaluationLine{3, 9, 8103, 50});
  }
  MetricsFile metrics(folder / "metrics.jsonl", 3);
  metrics.append(ResumeLine{3, ""});
  metrics.append(step_line(4, 40));
  metrics.flush();

  RunHistory history(folder / "metrics.jsonl");
  history.refresh();
  const LossCurves curves = history.curves();
  ASSERT_EQ(curves.training.size(), 4U);
  EXPECT_EQ(curves.training[3].tokens, 400);
  EXPECT_EQ(curves.training[3].loss, 40);
  EXPECT_TRUE(std::isnan(curves.training[1].loss));
  ASSERT_EQ(curves.validation.size(), 1U);
  EXPECT_EQ(curves.validation[0].points[0].tokens, 300);
  EXPECT_EQ(curves.validation[0].points[0].loss, 9);
  EXPECT_EQ(curves.restarts, (std::vector<double>{300}));
  EXPECT_EQ(curves.skips, (std::vector<double>{200}));
}

TEST(RunHistory, refreshing_adds_only_what_is_new) {
  const TemporaryDirectory folder;
  MetricsFile metrics(folder / "metrics.jsonl", 0);
  RunHistory history(folder / "metrics.jsonl");
  for (int step = 1; step <= 3; ++step) {
    metrics.append(step_line(step, 1));
    metrics.flush();
    history.refresh();
    EXPECT_EQ(history.curves().training.size(), static_cast<std::size_t>(step));
  }
}

TEST(RunHistory, strange_lines_do_no_harm) {
  const TemporaryDirectory folder;
  folder.write("metrics.jsonl",
               "{\"kind\":7,\"step\":1}\n{\"kind\":\"step\",\"step\":\"x\"}\n{\"kind\":\"step\","
               "\"step\":5}\n"
               "{\"kind\":\"step\",\"step\":6,\"consumed_tokens\":-3,\"loss\":\"a\"}\n{\"kind\":"
               "\"resume\",\"step\":-9}\n"
               "{\"kind\":\"evaluation\",\"step\":6}\n");
  RunHistory history(folder / "metrics.jsonl");
  history.refresh();
  EXPECT_TRUE(history.curves().training.empty());
  EXPECT_TRUE(is_well_formed(loss_svg(history.curves(), "")));
}

TEST(LossPlot, a_run_that_went_on_from_another_begins_where_it_began) {
  const TemporaryDirectory folder;
  std::string lines = R"({"kind":"resume","step":100,"path":"other/step-00000100"})"
                      "\n";
  for (int step = 101; step <= 110; ++step) {
    lines += fmt::format(R"({{"kind":"step","step":{},"loss":2.5,"consumed_tokens":{}}})"
                         "\n",
                         step, step * 1000);
  }
  folder.write("metrics.jsonl", lines);
  RunHistory history(folder / "metrics.jsonl");
  history.refresh();
  const LossCurves curves = history.curves();
  EXPECT_DOUBLE_EQ(curves.begin, 100'000);
  ASSERT_EQ(curves.restarts.size(), 1U);
  EXPECT_DOUBLE_EQ(curves.restarts[0], 100'000);
  const std::string svg = loss_svg(curves, "fork");
  EXPECT_EQ(count(svg, ">0</text>"), 0U) << "the axis of tokens has no 0";
  EXPECT_EQ(count(svg, ">100k</text>"), 1U);
}

}  // namespace
}  // namespace trireme
