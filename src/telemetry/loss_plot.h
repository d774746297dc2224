#pragma once
// loss.svg: training and validation loss over tokens as one would put it in a paper.

#include <span>
#include <string>
#include <string_view>

#include "telemetry/run_history.h"

namespace trireme {

/// A whole SVG document, 760 x 440, white background. Tokens run on a logarithmic axis from a
/// factor of 1000 on, the loss from a factor of 100 on where it is positive. A line of more points
/// than pixels keeps its extremes in every pixel column, with the mean drawn over it; rare spikes
/// far beyond the curve are cut at the frame and marked there.
std::string loss_svg(const LossCurves& curves, std::string_view title);

struct NamedCurves {
  std::string name;
  LossCurves curves;
};

/// The curves of several runs: a colour each, mean training loss as a line, validation as circles
/// on a thin one; names and last losses beside. Axes as above.
std::string comparison_svg(std::span<const NamedCurves> runs, std::string_view title);

}  // namespace trireme
