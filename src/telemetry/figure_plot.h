#pragma once

#include <string>

#include "telemetry/run_history.h"

namespace trireme {

/// One figure of the steps over tokens, as an SVG document of 480 x 240: the means of bins as a
/// line, over an area from the lowest to the highest; restarts and skipped steps as in loss_svg.
/// Few bins far above the others are cut at the frame. "" where no step has it.
std::string figure_svg(const RunFigures& figures, Figure figure, const LossCurves& curves);

}  // namespace trireme
