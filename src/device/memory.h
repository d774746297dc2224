#pragma once

#include <cstddef>
#include <utility>

#include "device/device.h"
#include "device/host_memory.h"

namespace trireme {

/// Memory of one device, zero at first. Move-only.
class Memory {
 public:
  Memory() = default;
  /// Throws EnvironmentError with the size where there is not so much.
  Memory(Device device, std::size_t bytes);
  Memory(Memory&& other) noexcept
      : host_(std::move(other.host_)),
        gpu_(std::exchange(other.gpu_, nullptr)),
        gpu_bytes_(std::exchange(other.gpu_bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(gpu_, other.gpu_);
    std::swap(gpu_bytes_, other.gpu_bytes_);
    return *this;
  }
  ~Memory();
  [[nodiscard]] std::byte* data() const { return gpu_ != nullptr ? gpu_ : host_.data(); }
  [[nodiscard]] std::size_t size() const { return gpu_ != nullptr ? gpu_bytes_ : host_.size(); }

 private:
  HostBuffer host_;
  std::byte* gpu_ = nullptr;
  std::size_t gpu_bytes_ = 0;
};

}  // namespace trireme
