#pragma once

#include <cstddef>
#include <string>

namespace trireme {

/// All of a file, or of standard input where it is called "-". Throws DataError with its name:
/// missing, unreadable, longer than `bytes_max`.
std::string read_text_input(const std::string& file, std::size_t bytes_max);

}  // namespace trireme
