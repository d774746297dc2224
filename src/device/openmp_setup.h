#pragma once

namespace trireme {

/// Mends two habits of the OpenMP runtime. First thing in main, before any library is used.
///
/// Idle threads spin shortly and then sleep, unless the environment says otherwise
/// (OMP_WAIT_POLICY, GOMP_SPINCOUNT). The runtime reads its environment once, as it is loaded, so
/// the program starts itself again with the variable set; where that is impossible it goes on as it
/// is. A spinning thread holds the core that the one it waits for needs. Measured with two threads:
/// on two cores shared with compilers, 20 steps of a tiny model took 1.6 s asleep, 4 s with 2,000
/// turns, 40 s with the default and 149 s with "active"; on two idle cores 1,000 turns reach 97 %
/// of what 100,000 reach, "passive" only 29 %.
///
/// Where the user has threads bound (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), the runtime
/// keeps the first thread on one core already as it is loaded. That core would be all that this
/// program sees, and that whatever it starts (itself again, threads that read and communicate) may
/// use: the first thread gets back the CPUs of all places. The other threads of parallel regions
/// stay bound, and the system finds this one the CPU that they leave.
void set_up_openmp(char** argv);

/// Whether the user has threads bound, and the runtime does it.
bool openmp_binds_threads();

}  // namespace trireme
