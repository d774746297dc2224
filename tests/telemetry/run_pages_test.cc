#include "telemetry/run_pages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/file.h"
#include "support/temporary_directory.h"
#include "support/well_formed.h"
#include "telemetry/figure_plot.h"
#include "telemetry/metrics_file.h"
#include "telemetry/report_page.h"

namespace trireme {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

StepLine step_line(std::int64_t step) {
  StepLine line;
  line.step = step;
  line.loss = 3;
  line.grad_norm = 0.5;
  line.consumed_tokens = step * 1000;
  line.step_seconds = 2;
  line.tokens_per_second = 500;
  line.memory_bytes = std::int64_t{3} << 30;
  line.time.forward_backward = 1;
  line.time.communication_exposed = {{"data", 0.25}, {"tensor", 0.5}};
  line.time.optimizer = 0.125;
  return line;
}

/// Lines as metrics.jsonl has them.
struct Figures {
  RunFigures figures;
  template <class Line>
  void add(const Line& line) {
    figures.add(to_json(line));
  }
};

TEST(RunFigures, a_million_steps_take_no_more_room_than_a_thousand) {
  Figures run;
  StepLine line = step_line(1);
  for (line.step = 1; line.step <= 1'000'000; ++line.step) {
    line.grad_norm = line.step == 777'777 ? 9 : 1;
    line.consumed_tokens = line.step;
    run.add(line);
  }
  const std::vector<StepBin>& bins = run.figures.bins();
  EXPECT_LE(bins.size(), RunFigures::kBinsMax);
  EXPECT_GE(bins.size(), RunFigures::kBinsMax / 2);
  std::int64_t steps = 0, spikes = 0;
  double sum = 0;
  for (const StepBin& bin : bins) {
    steps += bin.steps;
    sum += bin.of(Figure::kGradNorm).sum;
    if (bin.of(Figure::kGradNorm).high == 9) {
      ++spikes;
      EXPECT_GE(bin.tokens, 777'777);
      EXPECT_LT(bin.tokens - static_cast<double>(bin.steps), 777'777);
    }
  }
  EXPECT_EQ(steps, 1'000'000);
  EXPECT_EQ(sum, 1'000'008);
  EXPECT_EQ(spikes, 1) << "an extreme is kept in its place";
  EXPECT_EQ(bins.back().tokens, 1'000'000);
  EXPECT_LT(figure_svg(run.figures, Figure::kGradNorm, {}).size(), 40'000U);
}

TEST(RunFigures, what_is_not_finite_or_unknown_is_a_gap) {
  Figures run;
  StepLine line = step_line(1);
  line.grad_norm = kNaN;
  run.add(line);
  EXPECT_FALSE(run.figures.bins()[0].of(Figure::kGradNorm).known());
  EXPECT_FALSE(run.figures.bins()[0].of(Figure::kMfu).known());
  EXPECT_EQ(figure_svg(run.figures, Figure::kMfu, {}), "");
  EXPECT_EQ(run.figures.bins()[0].of(Figure::kExposedSeconds).mean(), 0.75);
  EXPECT_TRUE(is_well_formed(figure_svg(run.figures, Figure::kStepSeconds, {})));
}

TEST(RunFigures, sums_are_of_all_lives_and_of_each_step_once) {
  Figures run;
  StartLine start;
  start.world = 4;
  run.add(start);
  run.add(step_line(1));
  run.add(step_line(2));
  CheckpointLine saved{2, "here", 1 << 20, 3, 5, {}};
  run.add(saved);
  saved.error = "no space";
  run.add(saved);
  start.world = 2;
  start.predicted.emplace();
  start.predicted->watts = 1800;
  start.predicted->device_hour_price = 36;
  run.add(start);
  run.add(ResumeLine{2, "here"});
  run.add(step_line(2));
  run.add(step_line(3));
  run.add(SkipLine{3, "non-finite loss", 1, "lm_head.weight"});
  const RunTotals& totals = run.figures.totals();
  EXPECT_EQ(totals.steps, 3);
  EXPECT_EQ(totals.step_seconds, 6);
  EXPECT_EQ(totals.stall_seconds, 6);
  EXPECT_EQ(totals.device_seconds, 4 * 4 + 4 * 6 + 2 * 2);
  EXPECT_EQ(totals.predicted_joules, 3600);
  EXPECT_EQ(run.figures.cost(), 0.44);  // 44 device seconds of a cent each
  EXPECT_EQ(run.figures.events(RunEventKind::kSave).count, 1);
  EXPECT_EQ(run.figures.events(RunEventKind::kFailedSave).last[0].text, "no space");
  EXPECT_EQ(run.figures.events(RunEventKind::kRestart).count, 1);
  EXPECT_EQ(run.figures.events(RunEventKind::kSkip).last[0].text,
            "non-finite loss (first in lm_head.weight, rank 1)");
  EXPECT_EQ(run.figures.end_reason(), "");
  EndLine end;
  end.reason = EndReason::kSignal;
  run.add(end);
  EXPECT_EQ(run.figures.end_reason(), "signal");
}

TEST(RunFigures, energy_is_paid_as_measured_or_else_as_predicted) {
  Figures run;
  StartLine start;
  start.predicted.emplace();
  start.predicted->watts = 1.8e6;
  start.predicted->kwh_price = 0.5;
  run.add(start);
  run.add(step_line(1));
  EXPECT_EQ(run.figures.cost(), 0.5);  // 1 kWh
  StepLine line = step_line(2);
  line.joules = 7.2e6;
  run.add(line);
  EXPECT_EQ(run.figures.cost(), 1);
}

TEST(RunFigures, of_what_happens_the_last_is_kept_and_all_of_it_counted) {
  Figures run;
  for (int i = 1; i <= 1000; ++i) run.add(SkipLine{i, "x", 0, ""});
  const RunEvents& skips = run.figures.events(RunEventKind::kSkip);
  EXPECT_EQ(skips.count, 1000);
  EXPECT_EQ(skips.last.size(), RunFigures::kEventsMax);
  EXPECT_EQ(skips.last.back().step, 1000);
}

class RunPagesTest : public testing::Test {
 protected:
  template <class Line>
  void add(const Line& line) {
    metrics_.append(line);
    metrics_.flush();
  }
  std::string page(std::string_view title) {
    RunHistory history(folder_ / "metrics.jsonl");
    history.refresh();
    return report_html(history, title, "2026-11-28 19:20 UTC");
  }
  const TemporaryDirectory folder_;
  MetricsFile metrics_{folder_ / "metrics.jsonl", 0};
};

TEST_F(RunPagesTest, the_page_stands_alone_and_no_text_breaks_it) {
  StartLine start;
  start.version = "<script>1";
  start.config = Json::Object{{"run", Json::Object{{"directory", "a</pre><b>&\"\x01"}}}};
  add(start);
  for (int step = 1; step <= 30; ++step) add(step_line(step));
  add(SkipLine{30, "<i>", 0, "a&b"});
  add(EvaluationLine{30, 2.5, 12, 50, "web <1>"});
  add(CheckpointLine{30, "p", 5, 0.1, 0.2, "no space <left>"});
  const std::string html = page("a <title> & more");
  EXPECT_TRUE(is_well_formed(html));
  EXPECT_EQ(count(html, "<script"), 0U);
  EXPECT_EQ(count(html, "http"), count(html, "xmlns=\"http://www.w3.org/2000/svg\""))
      << "nothing is fetched";
  for (const char* foreign : {"@import", "url(", " src=", " href=", "<link", "<i>", "<b>"})
    EXPECT_EQ(count(html, foreign), 0U) << foreign;
  EXPECT_EQ(count(html, "<svg"), 7U) << "loss and six figures: nobody said what MFU is";
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST_F(RunPagesTest, the_page_says_where_a_run_stands) {
  StartLine start;
  start.world = 3;
  start.config = Json::Object{{"batch", Json::Object{{"global", 12345}}}};
  add(start);
  EXPECT_TRUE(is_well_formed(page("x"))) << "before the first step";
  for (int step = 1; step <= 4; ++step) add(step_line(step));
  add(EvaluationLine{4, 2.5, 12, 50});
  std::string html = page("x");
  for (const char* part :
       {"<p>running, written 2026-11-28 19:20 UTC, 3 ranks", "<dt>step</dt><dd>4</dd>",
        "<dt>tokens</dt><dd>4.00k</dd>", "<dt>loss</dt><dd>3.0000</dd>",
        "<dt>validation loss</dt><dd>2.5000</dd>", "<dt>gradient norm</dt><dd>0.5</dd>",
        "<dt>memory</dt><dd>3.00 GiB</dd>", "12345",
        "<tr><td>waiting, tensor</td><td class=\"n\">2.00s</td><td class=\"n\">25.0 %</td></tr>",
        "<tr><td>other</td><td class=\"n\">0.50s</td><td class=\"n\">6.2 %</td></tr>"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(count(html, "cost so far"), 0U) << "no price is known";
  EXPECT_EQ(count(html, "Restarts"), 0U);
  EndLine end;
  end.reason = EndReason::kSteps;
  add(end);
  html = page("x");
  EXPECT_NE(html.find("<p>ended: steps"), std::string::npos);
}

TEST_F(RunPagesTest, strange_lines_do_no_harm) {
  const TemporaryDirectory other;
  other.write(
      "metrics.jsonl",
      "{\"kind\":\"start\",\"world\":-3,\"predicted\":7,\"config\":[]}\n"
      "{\"kind\":\"step\",\"step\":5,\"time\":3,\"lr\":\"x\",\"step_seconds\":-1}\n"
      "{\"kind\":\"step\",\"step\":6,\"time\":{\"communication_exposed\":[1]},"
      "\"memory_bytes\":-5,\"step_seconds\":1e308,\"grad_norm\":1e308}\n"
      "{\"kind\":\"checkpoint\",\"step\":6,\"bytes\":1e300}\n{\"kind\":\"skip\",\"step\":6}\n"
      "{\"kind\":\"resume\",\"step\":-9}\n{\"kind\":\"end\",\"step\":6,\"reason\":7}\n");
  RunHistory history(other / "metrics.jsonl");
  history.refresh();
  EXPECT_TRUE(is_well_formed(report_html(history, "", "")));
}

TEST_F(RunPagesTest, redrawing_replaces_the_files_and_survives_a_refusal) {
  add(step_line(1));
  RunPages pages(folder_.path(), RunPages::Report::kYes);
  EXPECT_TRUE(pages.redraw());
  EXPECT_TRUE(is_well_formed(read_file(folder_ / "loss.svg")));
  const std::string first = read_file(folder_ / "report.html");
  EXPECT_TRUE(is_well_formed(first));
  add(step_line(2));
  EXPECT_TRUE(pages.redraw());
  EXPECT_NE(read_file(folder_ / "report.html"), first);

  EXPECT_TRUE(RunPages(folder_.path() / "", RunPages::Report::kYes).redraw());
  EXPECT_NE(read_file(folder_ / "report.html")
                .find("<h1>" + folder_.path().filename().string() + "</h1>"),
            std::string::npos);

  const TemporaryDirectory without;
  MetricsFile(without / "metrics.jsonl", 0).flush();
  EXPECT_TRUE(RunPages(without.path(), RunPages::Report::kNo).redraw());
  EXPECT_FALSE(is_there(without / "report.html"));
  EXPECT_TRUE(is_there(without / "loss.svg"));

  RunPages refused(folder_ / "missing", RunPages::Report::kYes);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(refused.redraw());
  EXPECT_FALSE(refused.redraw());
  EXPECT_EQ(count(testing::internal::GetCapturedStderr(), "warning: "), 1U);
}

}  // namespace
}  // namespace trireme
