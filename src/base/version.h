#pragma once

#include <string_view>

namespace trireme {

/// "0.1.0", and the commit that the build was configured from ("unknown" outside of a checkout).
std::string_view program_version();
std::string_view program_commit();

}  // namespace trireme
