#pragma once

#include <cstddef>
#include <memory>
#include <utility>

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
  /// Memory of a GPU that somebody else's allocator has taken, and gives back; zero by now.
  Memory(std::shared_ptr<std::byte> adopted, std::size_t bytes)
      : adopted_(std::move(adopted)), gpu_bytes_(bytes) {}
  [[nodiscard]] std::byte* data() const {
    return gpu_ ? gpu_.get() : adopted_ ? adopted_.get() : host_.data();
  }
  [[nodiscard]] std::size_t size() const { return gpu_ || adopted_ ? gpu_bytes_ : host_.size(); }

 private:
  HostBuffer host_;
  gpu::Bytes gpu_;
  std::shared_ptr<std::byte> adopted_;
  std::size_t gpu_bytes_ = 0;
};

}  // namespace trireme
