#pragma once

#include <string_view>

namespace trireme {

/// For commands of one process: EnvironmentError where several were started. `instead`: what to do.
void require_alone(std::string_view command, std::string_view instead);

}  // namespace trireme
