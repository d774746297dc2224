#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "device/isa.h"

namespace trireme {

std::string_view name_of(Isa isa);

/// The best of the sets that this CPU and its operating system offer.
/// Throws EnvironmentError below AVX2 with FMA and F16C: what is missing and which CPUs have it.
Isa detect_isa();

/// "AMD EPYC 7763" as /proc/cpuinfo names it.
std::string cpu_model_name();

/// Threads that this process may use: the affinity mask, cut to the cgroup's CPU quota; at least 1.
int usable_cpu_count();

/// Bytes of physical memory, cut to the cgroup's limit.
std::int64_t memory_bytes_available();

/// Highest resident set of this process so far, in bytes.
std::int64_t peak_resident_bytes();

/// The resident set as it is now, by what it holds. Zeros where the system does not say.
struct ResidentBytes {
  std::int64_t memory = 0;  ///< allocated, or shared with other ranks
  /// Of it, what libraries have: by malloc (with what else is small; blocks that it has mapped
  /// apart count whole), and in memory that MPI shares between ranks.
  std::int64_t heap = 0;
  std::int64_t files = 0;              ///< of programs, libraries and mapped data
  std::int64_t untouched_buffers = 0;  ///< not resident: what HostBuffers have of pages without use
};
ResidentBytes resident_bytes();

}  // namespace trireme
