#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme {

enum class LineFeeds { kKept, kEscaped };

/// Text that may quote foreign bytes (names in files, parts of damaged ones) as a terminal, a log
/// and a JSON file can take it: valid UTF-8 without control characters, which become "\x1b", at
/// most about `bytes_max` long: of longer texts begin and end stay, which say what to do.
std::string readable(std::string_view text, LineFeeds line_feeds, std::size_t bytes_max);

}  // namespace trireme
