#include "base/version.h"

namespace trireme {

// Both come from the build (src/CMakeLists.txt).
std::string_view program_version() { return TRIREME_VERSION; }
std::string_view program_commit() { return TRIREME_COMMIT; }

}  // namespace trireme
