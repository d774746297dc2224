#pragma once

#include "device/memory.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Owns the elements of one tensor; zero at first. Move-only.
class Buffer {
 public:
  Buffer() = default;
  /// On the host, where no device is given.
  Buffer(DType dtype, Shape shape, Device device = {})
      : memory_(device, static_cast<std::size_t>(shape.count()) * size_of(dtype)),
        dtype_(dtype),
        shape_(shape) {}
  [[nodiscard]] TensorView view() const { return {memory_.data(), dtype_, shape_}; }
  [[nodiscard]] std::size_t bytes() const { return memory_.size(); }

 private:
  Memory memory_;
  DType dtype_ = DType::kF32;
  Shape shape_;
};

}  // namespace trireme
