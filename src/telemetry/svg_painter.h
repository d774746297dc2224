#pragma once
// Plots as SVG: a frame with its axes, and what stands in it. Only text, colours as presentation
// attributes, so that a page around it may choose others.

#include <string>
#include <string_view>
#include <vector>

#include "telemetry/plot_axis.h"

namespace trireme {

struct Pixel {
  double x, y;
};

/// The whole picture, and of it where the axes stand.
struct PlotFrame {
  double width, height;
  double left, right, top, bottom;
};

inline constexpr std::string_view kRestartColour = "#6b6b6b", kSkipColour = "#c1121f";

/// Fit for the text and the attributes of XML and HTML: control characters but line feeds are left
/// out, which XML 1.0 has no way to write.
std::string xml_escaped(std::string_view text);

class SvgPainter {
 public:
  SvgPainter(const PlotFrame& frame, std::string_view title);
  /// Tokens below, `name` turned beside what is on the left.
  void axes(const PlotAxis& tokens, const PlotAxis& values, std::string_view name,
            TickLabels labels = TickLabels::kDecimal);
  void line(const std::vector<Pixel>& points, std::string_view colour, double width);
  void circle(Pixel at, double radius, std::string_view colour);
  void vertical(double x, double y0, double y1, std::string_view style);
  void triangle(Pixel top, std::string_view colour);
  void text(Pixel at, std::string_view style, std::string_view content);
  void box(Pixel corner, Pixel size, std::string_view style);
  void area(const std::vector<Pixel>& outline, std::string_view colour);
  /// A dashed line from top to bottom; a tick on the axis of tokens.
  void restart(double x);
  void skip(double x);
  /// A whole document.
  std::string finish() { return out_ + "</g>\n</svg>\n"; }

 private:
  void points(const std::vector<Pixel>& points);

  PlotFrame frame_;
  std::string out_;
};

}  // namespace trireme
