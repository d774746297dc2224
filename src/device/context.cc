#include "device/context.h"

#include <omp.h>

#include <algorithm>

#include "device/gpu.h"

namespace trireme {

Context::Context(Device device, int threads, Isa isa)
    : device_(device), isa_(isa), exec_{threads, nullptr} {
  // oneDNN runs on the same OpenMP team as our own ops.
  omp_set_num_threads(threads);
  omp_set_dynamic(0);
  if (!on_gpu()) return;
  gpu::select(device.index);
  multiprocessors_ = gpu::info(device.index).multiprocessors;
  stream_ = gpu::Stream(gpu::make_stream());
  exec_.stream = stream_.get();
  recorded_transfers_ = gpu::Stream(gpu::make_stream(gpu::Priority::kHigh));
}

Context Context::one_thread() const {
  return {device_, Exec{.threads = 1, .stream = exec_.stream}, isa_};
}

std::byte* Context::scratch(std::size_t bytes) {
  if (bytes > scratch_.size()) {
    synchronize();
    scratch_ = Memory();  // first, so that both never exist at once
    scratch_ = Memory(device_, std::max(bytes, std::size_t{1} << 16));
    memory_moved();
  }
  return scratch_.data();
}

std::byte* Context::host_scratch(std::size_t bytes) {
  if (!on_gpu()) return scratch(bytes);
  if (bytes > host_scratch_.size()) {
    host_scratch_ = HostBuffer();
    host_scratch_ = HostBuffer(std::max(bytes, std::size_t{1} << 16));
  }
  return host_scratch_.data();
}

const std::byte* Context::device_constant(std::span<const std::byte> bytes) {
  const std::string_view content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto found = constants_.find(content);
  if (found != constants_.end()) return found->second.data();
  Memory memory(device_, bytes.size());
  if (on_gpu()) {
    gpu::copy(memory.data(), bytes.data(), bytes.size(), exec_.stream);
    synchronize();
  } else {
    std::copy(bytes.begin(), bytes.end(), memory.data());
  }
  return constants_.emplace(content, std::move(memory)).first->second.data();
}

void Context::synchronize() {
  if (on_gpu()) gpu::synchronize(exec_.stream);
}

}  // namespace trireme
