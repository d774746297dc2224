#include "device/thread_waiting.h"

#include <stdlib.h>
#include <unistd.h>

namespace trireme {

void let_idle_threads_sleep(char** argv) {
  if (::getenv("OMP_WAIT_POLICY") != nullptr || ::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  ::execv("/proc/self/exe", argv);
}

}  // namespace trireme
