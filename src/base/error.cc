#include "base/error.h"

#include <system_error>

#include "base/readable.h"

namespace trireme {

namespace {
std::string message_of(ExitCode code, std::string_view message) {
  constexpr std::size_t kFaultBytesMax = 3000, kListBytesMax = 100'000;
  return code == ExitCode::kData ? readable(message, LineFeeds::kEscaped, kFaultBytesMax)
                                 : readable(message, LineFeeds::kKept, kListBytesMax);
}
}  // namespace

Error::Error(ExitCode code, std::string_view message)
    : std::runtime_error(message_of(code, message)), code_(code) {}

std::string errno_text(int error_number) { return std::generic_category().message(error_number); }

}  // namespace trireme
