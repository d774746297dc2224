#include "device/openmp_setup.h"

#include <limits.h>
#include <omp.h>
#include <stdlib.h>
#include <unistd.h>

#include <vector>

#include "base/cpu_mask.h"

namespace trireme {
namespace {

void unbind_first_thread() {
  // "master" keeps all threads on the first one's place.
  if (!openmp_binds_threads() || omp_get_proc_bind() == omp_proc_bind_master) return;
  CpuMask mask;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> cpus(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, cpus.data());
    for (const int cpu : cpus) mask.add(cpu);
  }
  mask.apply();
}

void keep_waiting_threads_short(char** argv) {
  if (::getenv("OMP_WAIT_POLICY") != nullptr || ::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "1000", 1);
  // By its own name, which ps, top and pgrep go by; the link works where the file was replaced.
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (size > 0) {
    path[size] = '\0';
    ::execv(path, argv);
  }
  ::execv("/proc/self/exe", argv);
}

}  // namespace

bool openmp_binds_threads() { return omp_get_num_places() > 0; }

void set_up_openmp(char** argv) {
  unbind_first_thread();
  keep_waiting_threads_short(argv);
}

}  // namespace trireme
