#include "telemetry/loss_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "telemetry/plot_axis.h"
#include "telemetry/svg_painter.h"

namespace trireme {

namespace {

constexpr double kLeft = 74, kRight = 738, kTop = 44, kBottom = 386;
constexpr PlotFrame kFrame = {760, 440, kLeft, kRight, kTop, kBottom};
constexpr double kLogFactorTokens = 1000, kLogFactorLoss = 100;
constexpr double kMeanPixels = 3;  // width of a bin of the mean line
constexpr std::string_view kTrainingColour = "#1f4e9c", kEachStepColour = "#a9c1e8";
// Of validation sets in turns; apart in lightness too, for who sees no colours.
constexpr std::string_view kValidationColours[] = {"#d9591a", "#2a8f5b", "#8e3fa8", "#b8860b",
                                                   "#4d4d4d"};

std::string_view colour_of_set(std::size_t index) {
  return kValidationColours[index % std::size(kValidationColours)];
}

std::vector<double> finite_losses(const std::vector<LossPoint>& points) {
  std::vector<double> losses;
  for (const LossPoint& point : points) {
    if (std::isfinite(point.loss)) losses.push_back(point.loss);
  }
  return losses;
}

double quantile(std::vector<double> values, double q) {
  const auto nth =
      values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

struct Range {
  double low, high;
};

/// What the loss axis shows: everything, but for spikes that would press the curve into a line.
Range loss_range(const LossCurves& curves) {
  const std::vector<double> training = finite_losses(curves.training);
  std::vector<double> all = training;
  for (const ValidationCurve& curve : curves.validation) {
    const std::vector<double> losses = finite_losses(curve.points);
    all.insert(all.end(), losses.begin(), losses.end());
  }
  if (all.empty()) return {0, 1};
  Range range{*std::min_element(all.begin(), all.end()), *std::max_element(all.begin(), all.end())};
  if (training.size() >= 20) {
    const double start = quantile({training.begin(), training.begin() + 10}, 0.5);
    const double bulk = quantile(training, 0.99);
    const double limit = std::max(start, bulk + (bulk - range.low));
    range.high = std::min(range.high, std::max(limit, range.low));
  }
  return range;
}

PlotAxis tokens_axis(const LossCurves& curves) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  const auto add = [&](const std::vector<LossPoint>& points) {
    for (const LossPoint& point : points) {
      if (point.tokens > 0) low = std::min(low, point.tokens);
      high = std::max(high, point.tokens);
    }
  };
  add(curves.training);
  for (const ValidationCurve& curve : curves.validation) add(curve.points);
  if (high >= kLogFactorTokens * low) return {low, high, AxisScale::kLog, kLeft, kRight};
  return {curves.begin, high > 0 ? high : 1000, AxisScale::kLinear, kLeft, kRight};
}

PlotAxis loss_axis(Range range) {
  // Below 1/100 labels would be longer than their column; the curve is then as good as flat.
  const double least = 0.01 * std::max(std::abs(range.low), std::abs(range.high));
  if (range.high - range.low < least) {
    const double middle = range.low + (range.high - range.low) / 2;
    range = {middle - least / 2, middle + least / 2};
  }
  if (range.low > 0 && range.high >= kLogFactorLoss * range.low) {
    const double margin = std::pow(range.high / range.low, 0.04);
    return {range.low / margin, range.high * margin, AxisScale::kLog, kBottom, kTop};
  }
  // Margins at both ends, but never a negative tick under a loss that cannot be negative.
  const double margin = 0.05 * (range.high - range.low);
  const double low = range.low >= 0 ? std::max(0.0, range.low - margin) : range.low - margin;
  return {low, range.high + margin, AxisScale::kLinear, kBottom, kTop};
}

/// The runs of finite points, as pixels. Where several fall into one pixel column, the first, the
/// lowest, the highest and the last stay, in their order.
std::vector<std::vector<Pixel>> thinned(const std::vector<LossPoint>& points,
                                        const PlotAxis& tokens, const PlotAxis& loss) {
  std::vector<std::vector<Pixel>> lines(1);
  std::vector<Pixel> column;
  const auto close_column = [&] {
    const auto above = [](const Pixel& a, const Pixel& b) { return a.y < b.y; };
    const auto [low, high] = std::minmax_element(column.begin(), column.end(), above);
    for (auto point = column.begin(); point != column.end(); ++point) {
      if (point == column.begin() || point == low || point == high || point + 1 == column.end()) {
        lines.back().push_back(*point);
      }
    }
    column.clear();
  };
  for (const LossPoint& point : points) {
    if (!std::isfinite(point.loss)) {
      close_column();
      if (!lines.back().empty()) lines.emplace_back();
      continue;
    }
    const Pixel pixel{tokens.pixel(point.tokens), loss.pixel(point.loss)};
    if (!column.empty() && std::floor(pixel.x) != std::floor(column.front().x)) close_column();
    column.push_back(pixel);
  }
  close_column();
  return lines;
}

/// Means of the finite points in bins of `kMeanPixels`.
std::vector<Pixel> mean_line(const std::vector<LossPoint>& points, const PlotAxis& tokens,
                             const PlotAxis& loss) {
  std::vector<Pixel> means;
  double bin = -1, count = 0;
  for (const LossPoint& point : points) {
    if (!std::isfinite(point.loss)) continue;
    const Pixel pixel{tokens.pixel(point.tokens), loss.pixel(point.loss)};
    if (means.empty() || std::floor(pixel.x / kMeanPixels) != bin) {
      bin = std::floor(pixel.x / kMeanPixels);
      means.push_back(pixel);
      count = 1;
      continue;
    }
    ++count;
    means.back().x += (pixel.x - means.back().x) / count;
    means.back().y += (pixel.y - means.back().y) / count;
  }
  return means;
}

std::string with_last(std::string_view name, const std::vector<LossPoint>& points) {
  const std::optional<double> loss = last_loss(points);
  return loss ? fmt::format("{} {:.4g}", name, *loss) : std::string(name);
}

void draw_training(SvgPainter& svg, const LossCurves& curves, const PlotAxis& tokens,
                   const PlotAxis& loss, bool dense) {
  const std::vector<Pixel> means = mean_line(curves.training, tokens, loss);
  for (const auto& line : thinned(curves.training, tokens, loss)) {
    if (dense) {
      svg.line(line, kEachStepColour, 1);
    } else {
      svg.line(line, kTrainingColour, 1.8);
    }
    if (line.size() == 1) svg.circle(line.front(), 2, kTrainingColour);
  }
  if (dense) svg.line(means, kTrainingColour, 1.8);
  double marked = -kFrame.width;
  for (const LossPoint& point : curves.training) {
    const double x = tokens.pixel(point.tokens);
    if (!(point.loss > loss.high()) || x - marked < 6) continue;
    svg.triangle({x, kTop}, kTrainingColour);
    marked = x;
  }
}

void draw_validation(SvgPainter& svg, const ValidationCurve& curve, std::string_view colour,
                     const PlotAxis& tokens, const PlotAxis& loss) {
  std::vector<Pixel> points;
  for (const LossPoint& point : curve.points) {
    if (std::isfinite(point.loss))
      points.push_back({tokens.pixel(point.tokens), loss.pixel(point.loss)});
  }
  svg.line(points, colour, 1.6);
  // Markers that would cover each other hide the line: leave some out, never the last.
  double marked = -kFrame.width;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i + 1 < points.size() && points[i].x - marked < 7) continue;
    svg.circle(points[i], 3.2, colour);
    marked = points[i].x;
  }
}

void draw_legend(SvgPainter& svg, const LossCurves& curves, bool dense) {
  struct Entry {
    std::string text;
    std::function<void(SvgPainter& svg, Pixel at)> sample;
  };
  std::vector<Entry> entries;
  if (!curves.training.empty()) {
    entries.push_back({with_last("training", curves.training), [](SvgPainter& painter, Pixel at) {
                         painter.line({at, {at.x + 24, at.y}}, kTrainingColour, 2.2);
                       }});
  }
  if (dense) {
    entries.push_back({"each step", [](SvgPainter& painter, Pixel at) {
                         painter.line({at, {at.x + 24, at.y}}, kEachStepColour, 5);
                       }});
  }
  for (std::size_t i = 0; i < curves.validation.size(); ++i) {
    const ValidationCurve& curve = curves.validation[i];
    const std::string name =
        curve.name.empty() ? "validation" : fmt::format("validation {}", curve.name);
    entries.push_back(
        {with_last(name, curve.points), [colour = colour_of_set(i)](SvgPainter& painter, Pixel at) {
           painter.line({at, {at.x + 24, at.y}}, colour, 1.6);
           painter.circle({at.x + 12, at.y}, 3.2, colour);
         }});
  }
  if (!curves.restarts.empty()) {
    entries.push_back({"restart", [](SvgPainter& painter, Pixel at) {
                         painter.vertical(
                             at.x + 12, at.y - 8, at.y + 8,
                             fmt::format("stroke=\"{}\" stroke-dasharray=\"4 3\"", kRestartColour));
                       }});
  }
  if (!curves.skips.empty()) {
    entries.push_back({"skipped step", [](SvgPainter& painter, Pixel at) {
                         painter.vertical(
                             at.x + 12, at.y - 6, at.y + 6,
                             fmt::format("stroke=\"{}\" stroke-width=\"2\"", kSkipColour));
                       }});
  }
  if (entries.empty()) return;
  constexpr double kLineHeight = 20, kLetterWidth = 7.6, kSampleWidth = 42;
  std::size_t letters = 0;
  for (const Entry& entry : entries) letters = std::max(letters, entry.text.size());
  const Pixel size{kSampleWidth + 12 + kLetterWidth * static_cast<double>(letters),
                   12 + kLineHeight * static_cast<double>(entries.size())};
  const Pixel corner{kRight - size.x - 8, kTop + 8};
  svg.box(corner, size, "rx=\"3\" fill=\"#ffffff\" fill-opacity=\"0.94\" stroke=\"#d0d0d0\"");
  double y = corner.y + 6 + kLineHeight / 2;
  for (const Entry& entry : entries) {
    entry.sample(svg, {corner.x + 10, y});
    svg.text({corner.x + kSampleWidth, y + 4.5}, "", entry.text);
    y += kLineHeight;
  }
}

}  // namespace

std::string loss_svg(const LossCurves& curves, std::string_view title) {
  const PlotAxis tokens = tokens_axis(curves), loss = loss_axis(loss_range(curves));
  const bool dense = static_cast<double>(curves.training.size()) >
                     1.5 * static_cast<double>(mean_line(curves.training, tokens, loss).size());
  SvgPainter svg(kFrame, title);
  svg.axes(tokens, loss, "loss (nats per token)");
  for (const double restart : curves.restarts) svg.restart(tokens.pixel(restart));
  draw_training(svg, curves, tokens, loss, dense);
  for (std::size_t i = 0; i < curves.validation.size(); ++i)
    draw_validation(svg, curves.validation[i], colour_of_set(i), tokens, loss);
  for (const double skip : curves.skips) svg.skip(tokens.pixel(skip));
  if (curves.training.empty() && curves.validation.empty()) {
    svg.text({(kLeft + kRight) / 2, (kTop + kBottom) / 2},
             "text-anchor=\"middle\" fill=\"#777777\"", "no steps yet");
  }
  draw_legend(svg, curves, dense);
  return svg.finish();
}

namespace {

/// Apart for eyes that do not tell red from green too; in turns where there are more runs.
constexpr std::string_view kRunColours[] = {"#1f4e9c", "#d9591a", "#2a8f5b", "#8e3fa8", "#b8860b",
                                            "#3aa6b9", "#4d4d4d", "#c2557d", "#7a9a01", "#7b4b2a"};

void draw_run(SvgPainter& svg, const LossCurves& curves, std::string_view colour,
              const PlotAxis& tokens, const PlotAxis& loss) {
  const std::vector<Pixel> means = mean_line(curves.training, tokens, loss);
  svg.line(means, colour, 1.8);
  if (means.size() == 1) svg.circle(means.front(), 2, colour);
  for (const ValidationCurve& curve : curves.validation)
    draw_validation(svg, curve, colour, tokens, loss);
}

void draw_names(SvgPainter& svg, std::span<const NamedCurves> runs) {
  constexpr double kLineHeight = 18, kLetterWidth = 6.6, kSampleWidth = 36, kLinesMax = 16;
  constexpr std::size_t kLettersMax = 60;
  std::vector<std::string> lines;
  std::size_t letters = 0;
  for (const NamedCurves& run : runs) {
    if (static_cast<double>(lines.size()) == kLinesMax) {
      lines.push_back(fmt::format("and {} more", runs.size() - lines.size()));
      break;
    }
    std::string name = run.name;
    if (name.size() > kLettersMax) name = "..." + name.substr(name.size() - kLettersMax + 3);
    lines.push_back(with_last(name, run.curves.training));
    letters = std::max(letters, lines.back().size());
  }
  const Pixel size{kSampleWidth + 12 + kLetterWidth * static_cast<double>(letters),
                   12 + kLineHeight * static_cast<double>(lines.size())};
  const Pixel corner{kRight - size.x - 8, kTop + 8};
  svg.box(corner, size, "rx=\"3\" fill=\"#ffffff\" fill-opacity=\"0.9\" stroke=\"#d0d0d0\"");
  double y = corner.y + 6 + kLineHeight / 2;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i < static_cast<std::size_t>(kLinesMax))
      svg.line({{corner.x + 8, y}, {corner.x + 30, y}}, kRunColours[i % std::size(kRunColours)],
               2.2);
    svg.text({corner.x + kSampleWidth, y + 4.5}, "font-size=\"11\"", lines[i]);
    y += kLineHeight;
  }
}

}  // namespace

std::string comparison_svg(std::span<const NamedCurves> runs, std::string_view title) {
  LossCurves all;
  std::optional<Range> range;
  for (const NamedCurves& run : runs) {
    const LossCurves& curves = run.curves;
    all.training.insert(all.training.end(), curves.training.begin(), curves.training.end());
    all.validation.insert(all.validation.end(), curves.validation.begin(), curves.validation.end());
    if (curves.training.empty() && curves.validation.empty()) continue;
    const Range own = loss_range(curves);
    range = range ? Range{std::min(range->low, own.low), std::max(range->high, own.high)} : own;
  }
  const PlotAxis tokens = tokens_axis(all), loss = loss_axis(range.value_or(Range{0, 1}));
  SvgPainter svg(kFrame, title);
  svg.axes(tokens, loss, "loss (nats per token)");
  for (std::size_t i = 0; i < runs.size(); ++i)
    draw_run(svg, runs[i].curves, kRunColours[i % std::size(kRunColours)], tokens, loss);
  if (!range)
    svg.text({(kLeft + kRight) / 2, (kTop + kBottom) / 2},
             "text-anchor=\"middle\" fill=\"#777777\"", "no steps yet");
  draw_names(svg, runs);
  return svg.finish();
}

}  // namespace trireme
