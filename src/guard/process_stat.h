#pragma once
// What Linux says of a process in /proc/PID/stat.

#include <cstdint>
#include <istream>
#include <string>

namespace trireme {

/// The fields behind the name, "S 1 ...": the name before them may hold anything. "" where the
/// process ended between opening and reading, which the system reports as a failed read.
std::string fields_of_stat(std::istream& stat);
/// The same of process `pid`; "" where there is none, or nothing of it can be read.
std::string process_stat(std::int64_t pid);

}  // namespace trireme
