#pragma once

namespace trireme {

/// Makes idle OpenMP threads sleep instead of spinning, unless the environment says otherwise
/// (OMP_WAIT_POLICY, GOMP_SPINCOUNT). The runtime reads its environment once, as it is loaded, so the
/// program starts itself again with the variable set; where that is impossible it goes on as it is.
/// First thing in main, before any library is used.
///
/// Measured on two cores shared with compilers: 20 steps of a tiny model took 1.6 s sleeping, 40 s
/// with the default spinning and 149 s with "active", because a spinning thread holds the core that
/// the one it waits for needs.
void let_idle_threads_sleep(char** argv);

}  // namespace trireme
