#pragma once

#include <string_view>

namespace trireme {

/// For commands of one process: throws EnvironmentError where a launcher has started several of
/// them. `instead` is what to do.
void require_alone(std::string_view command, std::string_view instead);

}  // namespace trireme
