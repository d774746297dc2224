#include "telemetry/svg_painter.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

/// Pixels from one tick to the next, about.
constexpr double kTickWidth = 95, kTickHeight = 57;
constexpr int kTicksMin = 3;

int ticks_in(double pixels, double each) {
  return std::max(kTicksMin, static_cast<int>(std::lround(pixels / each)));
}

}  // namespace

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (c == '\n' || static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

SvgPainter::SvgPainter(const PlotFrame& frame, std::string_view title) : frame_(frame) {
  out_ = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" role=\"img\">\n"
      "<title>{2}</title>\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<g font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\" "
      "font-size=\"13\" fill=\"#222222\">\n",
      frame.width, frame.height, xml_escaped(title));
  text({frame.left, frame.top - 18}, "font-size=\"15\" font-weight=\"bold\"", title);
}

void SvgPainter::text(Pixel at, std::string_view style, std::string_view content) {
  out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", at.x, at.y, style,
                      xml_escaped(content));
}

void SvgPainter::vertical(double x, double y0, double y1, std::string_view style) {
  out_ += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" {3}/>\n",
                      x, y0, y1, style);
}

void SvgPainter::restart(double x) {
  vertical(
      x, frame_.top, frame_.bottom,
      fmt::format("stroke=\"{}\" stroke-width=\"1.2\" stroke-dasharray=\"4 3\"", kRestartColour));
}

void SvgPainter::skip(double x) {
  vertical(x, frame_.bottom - 9, frame_.bottom,
           fmt::format("stroke=\"{}\" stroke-width=\"1.6\"", kSkipColour));
}

void SvgPainter::box(Pixel corner, Pixel size, std::string_view style) {
  out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" {}/>\n",
                      corner.x, corner.y, size.x, size.y, style);
}

void SvgPainter::circle(Pixel at, double radius, std::string_view colour) {
  out_ += fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"#ffffff\" stroke=\"{}\" "
      "stroke-width=\"1.6\"/>\n",
      at.x, at.y, radius, colour);
}

void SvgPainter::triangle(Pixel top, std::string_view colour) {
  out_ += fmt::format("<path d=\"M{:.1f} {:.1f}l4 7h-8z\" fill=\"{}\"/>\n", top.x, top.y, colour);
}

void SvgPainter::points(const std::vector<Pixel>& points) {
  out_ += "points=\"";
  for (const Pixel& point : points) out_ += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
  out_.back() = '"';
  out_ += "/>\n";
}

void SvgPainter::line(const std::vector<Pixel>& points, std::string_view colour, double width) {
  if (points.size() < 2) return;
  out_ += fmt::format(
      "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\" "
      "stroke-linecap=\"round\" ",
      colour, width);
  this->points(points);
}

void SvgPainter::area(const std::vector<Pixel>& outline, std::string_view colour) {
  if (outline.size() < 3) return;
  out_ += fmt::format("<polygon fill=\"{}\" ", colour);
  points(outline);
}

void SvgPainter::axes(const PlotAxis& tokens, const PlotAxis& values, std::string_view name,
                      TickLabels labels) {
  constexpr std::string_view kGrid = "stroke=\"#e4e4e4\" stroke-width=\"1\"";
  const auto& [width, height, left, right, top, bottom] = frame_;
  for (const Tick& tick : tokens.ticks(ticks_in(right - left, kTickWidth), TickLabels::kCount)) {
    const double x = tokens.pixel(tick.value);
    vertical(x, top, bottom, kGrid);
    vertical(x, bottom, bottom + 4, "stroke=\"#222222\"");
    text({x, bottom + 19}, "text-anchor=\"middle\"", tick.label);
  }
  for (const Tick& tick : values.ticks(ticks_in(bottom - top, kTickHeight), labels)) {
    const double y = values.pixel(tick.value);
    out_ += fmt::format("<path d=\"M{} {:.1f}H{}\" {}/>\n", left, y, right, kGrid);
    out_ += fmt::format("<path d=\"M{} {:.1f}h-4\" stroke=\"#222222\"/>\n", left, y);
    text({left - 8, y + 4.5}, "text-anchor=\"end\"", tick.label);
  }
  out_ += fmt::format(
      "<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#222222\" stroke-width=\"1.2\"/>\n",
      left, top, bottom, right);
  text({(left + right) / 2, height - 14}, "text-anchor=\"middle\"", "tokens");
  const double middle = (top + bottom) / 2;
  text({18, middle}, fmt::format("text-anchor=\"middle\" transform=\"rotate(-90 18 {})\"", middle),
       name);
}

}  // namespace trireme
