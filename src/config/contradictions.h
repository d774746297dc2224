#pragma once

#include "config/parse.h"

namespace trireme {

/// Keys that exclude or need each other whatever mesh and model are. `given` is the merged JSON.
void check_contradictions(const Json& given, LoadedConfig& loaded);

}  // namespace trireme
