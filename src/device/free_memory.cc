#include "device/free_memory.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

namespace trireme {

namespace {

/// The sum of some of a file's lines "KEY NUMBER" or "KEY: NUMBER kB", 0 where it has none.
std::int64_t sum_of_lines(const char* path, std::initializer_list<std::string_view> keys) {
  std::int64_t sum = 0, number = 0;
  std::ifstream file(path);
  for (std::string line, key; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> key >> number && std::find(keys.begin(), keys.end(), key) != keys.end())
      sum += number;
  }
  return sum;
}

/// What a cgroup's limit leaves; files that it keeps in memory give way.
std::int64_t cgroup_bytes_free() {
  struct Version {
    const char *limit, *used, *statistics;
    std::string_view active, inactive;
  };
  constexpr Version kVersions[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
       "active_file", "inactive_file"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat", "total_active_file", "total_inactive_file"}};
  for (const Version& version : kVersions) {
    std::int64_t limit = 0, used = 0;
    if (!(std::ifstream(version.limit) >> limit) || !(std::ifstream(version.used) >> used))
      continue;
    return std::max<std::int64_t>(
        0, limit - used + sum_of_lines(version.statistics, {version.active, version.inactive}));
  }
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace

std::int64_t memory_bytes_free() {
  return std::min(sum_of_lines("/proc/meminfo", {"MemAvailable:"}) * 1024, cgroup_bytes_free());
}

}  // namespace trireme
