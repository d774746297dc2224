#pragma once

#include <cstddef>
#include <utility>

#include "device/gpu.h"

namespace trireme {

/// Host memory that a GPU reads by itself, so that a copy from it never waits. Move-only.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// Throws EnvironmentError with the size where the system refuses.
  explicit PinnedMemory(std::size_t bytes) : data_(gpu::allocate_pinned(bytes)), size_(bytes) {}
  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PinnedMemory() {
    if (data_ != nullptr) gpu::release_pinned(data_);
  }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace trireme
