#pragma once
// report.html: all that a run has to show, as one page that needs nothing else.

#include <string>
#include <string_view>

#include "telemetry/run_history.h"

namespace trireme {

/// A page of its own: SVG and CSS in it, no script, nothing from elsewhere; light or dark as its
/// reader's system is. Where the run stands, its curves, where the time of its steps went, what
/// happened (of each kind the last RunFigures::kEventsMax), and its config. Its size has a bound
/// but for the evaluations, whose points all stay. `written`: "2026-11-28 19:20 UTC", or "".
std::string report_html(const RunHistory& history, std::string_view title,
                        std::string_view written);

}  // namespace trireme
