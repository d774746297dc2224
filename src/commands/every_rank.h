#pragma once

#include <functional>

#include "comm/launch.h"

namespace trireme {

/// Runs `body` as one rank of the job. A fault that all ranks know of (SharedError) goes on to the
/// caller; any other is this rank's alone: it is printed here and ends every rank.
int on_every_rank(const std::function<int(Launch&)>& body);

}  // namespace trireme
