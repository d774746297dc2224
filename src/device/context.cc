#include "device/context.h"

#include <omp.h>

#include <algorithm>

namespace trireme {

Context::Context(Device device, int threads, Isa isa)
    : device_(device), isa_(isa), exec_{threads, nullptr} {
  // oneDNN runs on the same OpenMP team as our own ops.
  omp_set_num_threads(threads);
  omp_set_dynamic(0);
}

std::byte* Context::scratch(std::size_t bytes) {
  if (bytes > scratch_.size()) {
    scratch_ = HostBuffer();  // first, so that both never exist at once
    scratch_ = HostBuffer(std::max(bytes, std::size_t{1} << 16));
  }
  return scratch_.data();
}

}  // namespace trireme
