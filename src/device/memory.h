#pragma once

#include <cstddef>

#include "device/device.h"
#include "device/gpu.h"
#include "device/host_memory.h"

namespace trireme {

/// Memory of one device, zero at first. Move-only.
class Memory {
 public:
  Memory() = default;
  /// Throws EnvironmentError with the size where there is not so much.
  Memory(Device device, std::size_t bytes);
  [[nodiscard]] std::byte* data() const { return gpu_ ? gpu_.get() : host_.data(); }
  [[nodiscard]] std::size_t size() const { return gpu_ ? gpu_bytes_ : host_.size(); }

 private:
  HostBuffer host_;
  gpu::Bytes gpu_;
  std::size_t gpu_bytes_ = 0;
};

}  // namespace trireme
