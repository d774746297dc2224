#pragma once
// One axis of a plot: data to pixels, and where its ticks stand. Pure arithmetic.

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

enum class AxisScale : std::uint8_t { kLinear, kLog };
enum class TickLabels : std::uint8_t {
  kDecimal,  ///< "0.25"; "1e-06" where decimals would be long
  kCount,    ///< "250k", "1.5M"
};

struct Tick {
  double value;
  std::string label;
};

class PlotAxis {
 public:
  /// Data from `low` to `high` onto pixels `first` to `last` (either may be larger). An empty range
  /// is widened. kLog: low > 0.
  PlotAxis(double low, double high, AxisScale scale, double first, double last);

  /// Pixel of a value; values outside the range fall on its ends.
  [[nodiscard]] double pixel(double value) const;
  /// Round values inside the range, ascending, about `count` and at most twice as many.
  [[nodiscard]] std::vector<Tick> ticks(int count, TickLabels labels) const;

  [[nodiscard]] double low() const { return low_; }
  [[nodiscard]] double high() const { return high_; }
  [[nodiscard]] AxisScale scale() const { return scale_; }

 private:
  [[nodiscard]] std::vector<double> log_values(int count) const;

  double low_, high_, first_, last_;
  AxisScale scale_;
};

}  // namespace trireme
