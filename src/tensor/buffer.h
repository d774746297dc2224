#pragma once

#include "device/host_memory.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Owns the elements of one tensor; zero at first. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DType dtype, Shape shape)
      : memory_(static_cast<std::size_t>(shape.count()) * size_of(dtype)),
        dtype_(dtype),
        shape_(shape) {}
  [[nodiscard]] TensorView view() const { return {memory_.data(), dtype_, shape_}; }
  [[nodiscard]] std::size_t bytes() const { return memory_.size(); }

 private:
  HostBuffer memory_;
  DType dtype_ = DType::kF32;
  Shape shape_;
};

}  // namespace trireme
