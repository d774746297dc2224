#pragma once
// What the system counts of this process.

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

namespace trireme {

/// A count of /proc/self/FILE behind "KEY:"; in KiB in `status`, in bytes in `io`; -1: not
/// reported.
inline std::int64_t count_of(const char* file, const std::string& key) {
  std::ifstream in(std::string("/proc/self/") + file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key + ":")) return std::atoll(line.c_str() + key.size() + 1);
  }
  return -1;
}

/// Bytes by which the largest resident set of `work` exceeds what was there before.
inline std::int64_t growth_of(const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the largest begins anew
  const std::int64_t before = count_of("status", "VmRSS");
  work();
  return (count_of("status", "VmHWM") - before) * 1024;
}

}  // namespace trireme
