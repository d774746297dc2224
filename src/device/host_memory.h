#pragma once

#include <cstddef>
#include <utility>

namespace trireme {

/// Page-aligned host memory, zero at first touch (mapped, not from the heap). Move-only.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// Throws EnvironmentError with the size where the system refuses.
  explicit HostBuffer(std::size_t bytes);
  HostBuffer(HostBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~HostBuffer();
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace trireme
