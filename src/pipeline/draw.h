#pragma once
// Pictures of a schedule in time: one row for each rank, from left to right.

#include <string>

#include "pipeline/schedule.h"
#include "pipeline/simulate.h"

namespace trireme {

/// Rows of at most `columns` characters, letters F B W R in capitals for the first virtual stage of
/// a rank and small for later ones, BW as a B and a W, '.' where the rank waits; micro-batch
/// numbers where they fit. Below, what the letters mean. ASCII, ends with a line feed.
std::string draw_text(const Schedule& schedule, const Simulation& simulation,
                      const ActionTimes& times, int columns);

/// An SVG document: a rectangle for each action, named by a tooltip, groups stacked, a time axis.
std::string draw_svg(const Schedule& schedule, const Simulation& simulation,
                     const ActionTimes& times);

}  // namespace trireme
