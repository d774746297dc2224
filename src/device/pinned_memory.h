#pragma once

#include <cstddef>

#include "device/gpu.h"

namespace trireme {

/// Host memory that a GPU reads by itself, so that a copy from it never waits. Move-only.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// Throws EnvironmentError with the size where the system refuses.
  explicit PinnedMemory(std::size_t bytes) : data_(gpu::allocate_pinned(bytes)), size_(bytes) {}
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return data_ ? size_ : 0; }

 private:
  gpu::PinnedBytes data_;
  std::size_t size_ = 0;
};

}  // namespace trireme
