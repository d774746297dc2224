#include "telemetry/figure_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "telemetry/svg_painter.h"

namespace trireme {

namespace {

constexpr PlotFrame kFrame = {480, 240, 74, 462, 40, 186};
constexpr std::string_view kMeanColour = "#1f4e9c", kBandColour = "#a9c1e8";
/// From so many bins on, this share of them decides what is shown.
constexpr std::size_t kBinsForShare = 20;
constexpr double kShareShown = 0.98;

/// How a figure is shown.
struct Look {
  std::string_view title, axis;
  double unit = 1;  ///< of the axis
  TickLabels labels = TickLabels::kDecimal;
};

Look look_of(Figure figure) {
  switch (figure) {
    case Figure::kGradNorm:
      return {"Gradient norm, before clipping", "norm"};
    case Figure::kLearningRate:
      return {"Learning rate", "learning rate"};
    case Figure::kStepSeconds:
      return {"Time of a step", "seconds"};
    case Figure::kTokensPerSecond:
      return {"Tokens per second, all ranks", "tokens/s", 1, TickLabels::kCount};
    case Figure::kMfu:
      return {"Model FLOPs utilisation", "percent", 0.01};
    case Figure::kMemoryBytes:
      return {"Memory of the largest rank", "GiB", 1024.0 * 1024 * 1024};
    case Figure::kExposedSeconds:
      return {"Communication that nothing hid", "seconds of a step"};
  }
  return {};
}

PlotAxis value_axis(const std::vector<const StepBin*>& bins, Figure figure, double unit) {
  std::vector<double> highs;
  double low = bins.front()->of(figure).low;
  for (const StepBin* bin : bins) {
    low = std::min(low, bin->of(figure).low);
    highs.push_back(bin->of(figure).high);
  }
  const double share = highs.size() < kBinsForShare ? 1 : kShareShown;
  const auto last = static_cast<std::ptrdiff_t>(share * static_cast<double>(highs.size() - 1));
  std::nth_element(highs.begin(), highs.begin() + last, highs.end());
  const double high = highs[static_cast<std::size_t>(last)];
  const double margin = 0.08 * (high - low);
  return {std::max(low - margin, low >= 0 ? 0.0 : low - margin) / unit, (high + margin) / unit,
          AxisScale::kLinear, kFrame.bottom, kFrame.top};
}

/// Marks in one pixel column are one.
template <class Draw>
void draw_marks(const std::vector<double>& at_tokens, const PlotAxis& tokens, Draw draw) {
  double last = -1;
  for (const double at : at_tokens) {
    const double x = std::round(tokens.pixel(at));
    if (std::exchange(last, x) != x) draw(x);
  }
}

}  // namespace

std::string figure_svg(const RunFigures& figures, Figure figure, const LossCurves& curves) {
  std::vector<const StepBin*> bins;
  for (const StepBin& bin : figures.bins()) {
    if (bin.of(figure).known()) bins.push_back(&bin);
  }
  if (bins.empty()) return "";
  const Look look = look_of(figure);
  const PlotAxis tokens(curves.begin, std::max(bins.back()->tokens, curves.begin + 1),
                        AxisScale::kLinear, kFrame.left, kFrame.right);
  const PlotAxis values = value_axis(bins, figure, look.unit);
  SvgPainter svg(kFrame, look.title);
  svg.axes(tokens, values, look.axis, look.labels);
  draw_marks(curves.restarts, tokens, [&](double x) { svg.restart(x); });
  std::vector<Pixel> outline, means;
  for (const StepBin* bin : bins) {
    const double x = tokens.pixel(bin->tokens);
    outline.push_back({x, values.pixel(bin->of(figure).high / look.unit)});
    means.push_back({x, values.pixel(bin->of(figure).mean() / look.unit)});
  }
  for (auto bin = bins.rbegin(); bin != bins.rend(); ++bin)
    outline.push_back(
        {tokens.pixel((*bin)->tokens), values.pixel((*bin)->of(figure).low / look.unit)});
  svg.area(outline, kBandColour);
  svg.line(means, kMeanColour, 1.6);
  if (means.size() == 1) svg.circle(means.front(), 2, kMeanColour);
  draw_marks(curves.skips, tokens, [&](double x) { svg.skip(x); });
  return svg.finish();
}

}  // namespace trireme
