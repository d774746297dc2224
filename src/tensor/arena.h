#pragma once
// Memory that is settled before step 0: a user declares named tensors, then everything is mapped at once.

#include <memory>
#include <string>
#include <vector>

#include "device/host_memory.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Declare, `allocate()` once, then use the views. Tensors are aligned to 64 bytes and zero at first.
class Arena {
 public:
  using Handle = std::size_t;
  /// Before `allocate`. The name is for the memory table.
  Handle declare(std::string name, DType dtype, Shape shape);
  void allocate();
  /// After `allocate`.
  [[nodiscard]] TensorView view(Handle handle) const;
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
    std::size_t offset;
  };
  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
  HostBuffer memory_;
};

}  // namespace trireme
