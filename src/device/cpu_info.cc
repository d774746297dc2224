#include "device/cpu_info.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "base/cpu_mask.h"
#include "base/error.h"
#include "device/sysfs.h"

namespace trireme {

std::string_view name_of(Isa isa) {
#define TRIREME_NAME(enumerator, space, name, ...) name,
  constexpr std::string_view kNames[] = {TRIREME_INSTRUCTION_SETS(TRIREME_NAME)};
#undef TRIREME_NAME
  return kNames[static_cast<std::size_t>(isa)];
}

Isa detect_isa() {
  __builtin_cpu_init();
#define TRIREME_SUPPORTED(enumerator, space, name, has, ...) static_cast<bool>(has),
  const bool supported[] = {TRIREME_INSTRUCTION_SETS(TRIREME_SUPPORTED)};
#undef TRIREME_SUPPORTED
  const auto count = std::find(std::begin(supported), std::end(supported), false) - supported;
  if (count == 0) {
    throw EnvironmentError(
        "this CPU ({}) lacks AVX2 or FMA (the CPU ops are built on them). "
        "Use an x86-64 CPU of 2013 (Intel Haswell, AMD Excavator) or later.",
        cpu_model_name());
  }
  return kIsas[count - 1];
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const auto begin = line.find_first_not_of(" \t:", line.find(':'));
    return begin == std::string::npos ? "unknown CPU" : line.substr(begin);
  }
  return "unknown CPU";
}

namespace {

/// CPUs granted by the cgroup's quota (version 2, then 1); infinity where there is none.
double cgroup_cpu_quota() {
  double quota = 0, period = 0;
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && period > 0)
    return quota / period;
  if (std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota && quota > 0 &&
      std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period && period > 0) {
    return quota / period;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace

int usable_cpu_count() {
  int count = cpus_of_this_thread();
  const double quota = cgroup_cpu_quota();
  if (quota < count) count = static_cast<int>(std::ceil(quota));
  return std::max(1, count);
}

std::int64_t memory_bytes_available() {
  const std::int64_t physical =
      static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::istringstream word(first_word_of(path));
    std::int64_t limit = 0;
    if (word >> limit && limit > 0) return std::min(limit, physical);
  }
  return physical;
}

std::int64_t peak_resident_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

namespace {

/// A mapping of this process, by /proc/self/smaps.
struct Mapping {
  std::string rights, inode, name, flags;
  std::int64_t bytes = 0, resident = 0;

  [[nodiscard]] bool file() const { return inode != "0"; }
  /// Of an MPI library, for messages between ranks of a host. Ours have names of their own.
  [[nodiscard]] bool shared_by_library() const {
    return rights[3] == 's' && name.rfind("/dev/shm/", 0) == 0;
  }
  /// Compiled at run time.
  [[nodiscard]] bool code() const { return !file() && name.empty() && rights[2] == 'x'; }
  /// HostBuffer asks that its memory be left out of core files.
  [[nodiscard]] bool buffer() const {
    return !file() && name.empty() && flags.find(" dd") != std::string::npos;
  }
};

std::vector<Mapping> mappings() {
  std::vector<Mapping> all;
  std::ifstream file("/proc/self/smaps");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first, second, offset, device;
    words >> first >> second;
    if (first.back() != ':') {  // begin-end rights offset device inode name
      Mapping& mapping = all.emplace_back();
      mapping.rights = second + "   ";
      words >> offset >> device >> mapping.inode >> mapping.name;
    } else if (!all.empty()) {
      if (first == "Size:") all.back().bytes = std::stoll(second) * 1024;
      if (first == "Rss:") all.back().resident = std::stoll(second) * 1024;
      if (first == "VmFlags:") all.back().flags = line;
    }
  }
  return all;
}

}  // namespace

ResidentBytes resident_bytes() {
  ResidentBytes resident;
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::int64_t kilobytes = 0;
    if (!(words >> key >> kilobytes)) continue;
    if (key == "RssAnon:" || key == "RssShmem:") resident.memory += kilobytes * 1024;
    if (key == "RssFile:") resident.files += kilobytes * 1024;
  }
  const struct mallinfo2 heap = ::mallinfo2();
  resident.heap = static_cast<std::int64_t>(heap.arena + heap.hblkhd);
  for (const Mapping& mapping : mappings()) {
    const std::int64_t untouched = mapping.bytes - mapping.resident;
    if (mapping.code()) {
      resident.memory -= mapping.resident;
      resident.files += mapping.resident;
    }
    if (mapping.name == "[heap]") resident.heap -= untouched;
    if (mapping.shared_by_library()) resident.heap += mapping.resident;
    if (mapping.buffer()) resident.untouched_buffers += untouched;
  }
  return resident;
}

}  // namespace trireme
