#include "device/thread_waiting.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

namespace trireme {

void keep_waiting_threads_short(char** argv) {
  if (::getenv("OMP_WAIT_POLICY") != nullptr || ::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "1000", 1);
  // By its own name, which is what ps, top and pgrep go by; the link works also where the file was
  // replaced.
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (size > 0) {
    path[size] = '\0';
    ::execv(path, argv);
  }
  ::execv("/proc/self/exe", argv);
}

}  // namespace trireme
