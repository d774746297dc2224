#include "telemetry/report_page.h"

#include <fmt/core.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/human_format.h"
#include "telemetry/figure_plot.h"
#include "telemetry/loss_plot.h"
#include "telemetry/prediction.h"
#include "telemetry/svg_painter.h"

namespace trireme {

namespace {

/// In the dark the colours of the plots give way to others: a rule of CSS comes before an
/// attribute.
constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --page: #ffffff; --ink: #222222; --soft: #666666; --rule: #d8d8d8; }
body { margin: 1.5rem auto; max-width: 62rem; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin-bottom: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
p { color: var(--soft); margin: .2rem 0 1rem; }
svg { width: 100%; height: auto; display: block; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem; margin: 0; }
.facts div { border: 1px solid var(--rule); border-radius: 4px; padding: .4rem .6rem; }
.facts dt { color: var(--soft); font-size: .8rem; }
.facts dd { margin: 0; font-size: 1.1rem; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: .6rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--rule); vertical-align: top;
  overflow-wrap: anywhere; }
td.n, th.n { text-align: right; white-space: nowrap; width: 1%; }
pre { overflow-x: auto; font-size: 13px; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171c; --ink: #e3e3e3; --soft: #a0a4ab; --rule: #343841; }
  svg [fill="#ffffff"] { fill: #15171c; }
  svg [fill="#222222"], svg text { fill: #e3e3e3; }
  svg [stroke="#222222"] { stroke: #e3e3e3; }
  svg [stroke="#e4e4e4"], svg [stroke="#d0d0d0"] { stroke: #343841; }
  svg [stroke="#1f4e9c"] { stroke: #7fb0ff; }
  svg [fill="#1f4e9c"] { fill: #7fb0ff; }
  svg [stroke="#a9c1e8"] { stroke: #33507f; }
  svg [fill="#a9c1e8"] { fill: #33507f; }
}
)css";

using Rows = std::vector<std::pair<std::string, std::string>>;

/// Without what only a file of its own has.
std::string inline_svg(const std::string& document) {
  const std::size_t begin = document.find("<svg");
  return begin == std::string::npos ? "" : document.substr(begin);
}

const Json* member(const Json* json, std::string_view key) {
  return json == nullptr ? nullptr : json->find(key);
}

void add_losses(Rows& rows, const LossCurves& curves) {
  const auto last = [](const std::vector<LossPoint>& points) {
    const std::optional<double> loss = last_loss(points);
    return loss ? fmt::format("{:.4f}", *loss) : "";
  };
  rows.emplace_back("loss", last(curves.training));
  for (const ValidationCurve& curve : curves.validation) {
    const std::string name = curve.name.empty() ? "" : " of " + curve.name;
    rows.emplace_back("validation loss" + name, last(curve.points));
  }
}

void add_rates(Rows& rows, const RunFigures& figures) {
  const StepBin& last = figures.last_step();
  const auto add = [&](std::string_view name, Figure figure, const auto& text) {
    if (last.of(figure).known()) rows.emplace_back(name, text(last.of(figure).low));
  };
  const auto number = [](double value) { return fmt::format("{:.3g}", value); };
  add("gradient norm", Figure::kGradNorm, number);
  add("learning rate", Figure::kLearningRate, number);
  add("tokens/s", Figure::kTokensPerSecond, format_count);
  add("MFU", Figure::kMfu, [](double value) { return fmt::format("{:.1f} %", 100 * value); });
  add("memory", Figure::kMemoryBytes,
      [](double value) { return format_bytes(static_cast<std::int64_t>(value)); });
}

void add_spent(Rows& rows, const RunFigures& figures) {
  const RunTotals& totals = figures.totals();
  rows.emplace_back("time of steps", format_duration(totals.step_seconds));
  rows.emplace_back("device hours", fmt::format("{:.3g}", totals.device_seconds / 3600));
  if (totals.joules)
    rows.emplace_back("energy, measured",
                      fmt::format("{:.3g} kWh", *totals.joules / kJoulesPerKwh));
  if (totals.predicted_joules)
    rows.emplace_back("energy, predicted",
                      fmt::format("{:.3g} kWh", *totals.predicted_joules / kJoulesPerKwh));
  if (const auto cost = figures.cost())
    rows.emplace_back("cost so far", fmt::format("{:.2f}", *cost));
  for (const auto& [name, kind] : {std::pair{"skipped steps", RunEventKind::kSkip},
                                   {"restarts", RunEventKind::kRestart},
                                   {"saves", RunEventKind::kSave},
                                   {"failed saves", RunEventKind::kFailedSave}}) {
    const std::int64_t count = figures.events(kind).count;
    if (count > 0) rows.emplace_back(name, format_integer(count));
  }
}

std::string facts(const RunHistory& history, const LossCurves& curves) {
  const RunTotals& totals = history.figures().totals();
  Rows rows = {{"step", format_integer(totals.steps)}, {"tokens", format_count(totals.tokens)}};
  add_losses(rows, curves);
  add_rates(rows, history.figures());
  add_spent(rows, history.figures());
  std::string html = "<dl class=\"facts\">\n";
  for (const auto& [name, value] : rows) {
    if (!value.empty())
      html +=
          fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", xml_escaped(name), xml_escaped(value));
  }
  return html + "</dl>\n";
}

std::string plots(const RunFigures& figures, const LossCurves& curves) {
  std::string html = "<div class=\"plots\">\n";
  for (const Figure figure :
       {Figure::kGradNorm, Figure::kLearningRate, Figure::kStepSeconds, Figure::kTokensPerSecond,
        Figure::kMfu, Figure::kExposedSeconds, Figure::kMemoryBytes}) {
    html += inline_svg(figure_svg(figures, figure, curves));
  }
  return html + "</div>\n";
}

std::string times(const RunTotals& totals) {
  if (!(totals.step_seconds > 0) || totals.parts.empty()) return "";
  std::string html =
      "<h2>Where the time of the steps went</h2>\n<table>\n<tr><th>on rank 0</th>"
      "<th class=\"n\">time</th><th class=\"n\">share</th></tr>\n";
  double rest = totals.step_seconds;
  const auto row = [&](const std::string& name, double seconds) {
    html += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1f} %</td></tr>\n",
        xml_escaped(name), format_duration(seconds), 100 * seconds / totals.step_seconds);
  };
  for (const auto& [name, seconds] : totals.parts) {
    row(name, seconds);
    rest -= seconds;
  }
  if (rest > 0) row("other", rest);
  return html + "</table>\n";
}

std::string happened(const RunFigures& figures) {
  std::string html;
  for (const auto& [name, kind] : {std::pair{"Skipped steps", RunEventKind::kSkip},
                                   {"Failed saves", RunEventKind::kFailedSave},
                                   {"Restarts", RunEventKind::kRestart},
                                   {"Ends", RunEventKind::kEnd},
                                   {"Saves", RunEventKind::kSave}}) {
    const RunEvents& events = figures.events(kind);
    if (events.count == 0) continue;
    html += fmt::format("<h2>{}</h2>\n", name);
    if (events.count > static_cast<std::int64_t>(events.last.size()))
      html += fmt::format("<p>the last {} of {}</p>\n", events.last.size(),
                          format_integer(events.count));
    html += "<table>\n<tr><th class=\"n\">step</th><th></th></tr>\n";
    for (const RunEvent& event : events.last) {
      html += fmt::format("<tr><td class=\"n\">{}</td><td>{}</td></tr>\n",
                          format_integer(event.step), xml_escaped(event.text));
    }
    html += "</table>\n";
  }
  return html;
}

std::string state_text(const RunFigures& figures, std::string_view written) {
  std::string text = figures.end_reason().empty() ? "running" : "ended: " + figures.end_reason();
  if (!written.empty()) text += fmt::format(", written {}", written);
  const Json& start = figures.start();
  if (const Json* world = start.find("world"); world != nullptr && world->is_integer())
    text += ", " + counted(world->as_integer(), "rank");
  const Json* parameters = start.find("parameters");
  if (parameters != nullptr && parameters->is_number())
    text += fmt::format(", {} parameters", format_count(parameters->as_double()));
  if (const Json* version = start.find("version"); version != nullptr && version->is_string())
    text += ", " + version->as_string();
  return text;
}

}  // namespace

std::string report_html(const RunHistory& history, std::string_view title,
                        std::string_view written) {
  const RunFigures& figures = history.figures();
  const LossCurves curves = history.curves();
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n<p>{2}</p>\n",
      xml_escaped(title), kStyle, xml_escaped(state_text(figures, written)));
  html += facts(history, curves);
  html += "<h2>Curves</h2>\n" + inline_svg(loss_svg(curves, "Loss"));
  html += plots(figures, curves);
  html += times(figures.totals());
  html += happened(figures);
  if (const Json* config = member(&figures.start(), "config"); config != nullptr) {
    html += fmt::format(
        "<h2>Config</h2>\n<details><summary>config.json of the last start</summary>\n"
        "<pre>{}</pre></details>\n",
        xml_escaped(config->dump(2)));
  }
  return html + "</body>\n</html>\n";
}

}  // namespace trireme
