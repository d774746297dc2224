#pragma once
// Which cores the ranks of one host compute on. A rank gets an even share of the cores that it may
// use, one thread for each, and is kept on them, so that ranks neither meet on a core nor leave
// their memory's socket. A rank with a GPU gets its share of the cores on that GPU's side of the
// machine, so that what it copies to and from it crosses no socket. Within its share the kernel
// places threads; threads that already run (communication) keep the whole mask.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"

namespace trireme {

/// A physical core: those of its hardware threads that this process may use, ascending.
struct Core {
  std::vector<int> cpus;
  friend bool operator==(const Core&, const Core&) = default;
};

/// The cores of this process's affinity mask in hwloc's order, neighbours together. At least one.
std::vector<Core> usable_cores();

/// The CPUs on the side of the machine that a PCI device ("0000:3b:00.0") is attached to,
/// ascending; empty where hwloc cannot tell, or the machine has one side only.
std::vector<int> cpus_near(const std::string& pci_bus_id);

/// "0,8;1,9": cores as one line, to exchange between ranks, and back (or DataError).
std::string text_of(std::span<const Core> cores);
std::vector<Core> parse_cores(const std::string& text);
/// CPUs of all ranks, each once.
std::int64_t count_cpus(std::span<const std::vector<Core>> cores_of_rank);

struct PlacementRequest {
  int local_rank = 0;
  std::int64_t threads_per_rank = 0;  ///< 0: one for each core of the share
  /// usable_cpu_count(). Below the mask's CPUs: a cgroup's quota, of all ranks of the host.
  int cpu_count_max = 1 << 20;
  /// Of every rank of the host the CPUs near its GPU. Where it is not given, empty for a rank, or
  /// names none of that rank's cores, ranks are placed as if there were no GPUs.
  std::span<const std::vector<int>> near_of_rank = {};
};

struct Placement {
  Device device;
  std::vector<int> cpus;  ///< where the rank runs
  int cores = 1;          ///< of its share
  int threads = 1;
  int sharers = 1;        ///< ranks of the host that may use the same cores, itself among them
  bool bind = false;      ///< to `cpus`; else the launcher or the kernel decides
  bool in_turns = false;  ///< with other ranks that are bound there, as many as on every core
  /// "cores 0-3,8, 4 threads"
  [[nodiscard]] std::string text() const;
};

/// `cores_of_rank`: usable_cores of every rank of the host. Ranks with the same cores share them
/// evenly, at least one thread each. Bound only where the launcher bound nobody (all ranks see the
/// same cores), every core share is whole, no quota is smaller, and the threads fill the share:
/// other jobs may run beside a smaller one. Several ranks of one thread for each core are bound as
/// many to each: left alone the kernel takes a rank that polls for one that works, and leaves cores
/// to those that wait. Neighbours, ranks of one stage of a pipeline, come to different cores.
/// With GPUs, and where the launcher bound nobody, the ranks near the same cores share those, all
/// with the threads of the smallest share; a rank that does not fill its share is bound to all
/// cores near its GPU.
Placement place_rank(std::span<const std::vector<Core>> cores_of_rank,
                     const PlacementRequest& request);

/// Keeps the calling thread, and those it starts later, on the placement's CPUs where it says so.
/// False, and nothing done, where it does not, the user has OpenMP threads bound or the system
/// refuses.
bool bind_this_thread(const Placement& placement);

/// "0-3,8" of ascending numbers.
std::string range_text(std::span<const int> numbers);

}  // namespace trireme
