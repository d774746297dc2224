#pragma once
// Memory that is fixed before step 0: a function lays out tensors twice, first on nothing to
// find the size, then on the memory. So the plan's figure and the allocation are the same code.

#include <algorithm>

#include "base/math.h"
#include "tensor/tensor_view.h"

namespace trireme {

struct TensorSize {
  DType dtype;
  Shape shape;
};

class ArenaCursor {
 public:
  /// Without memory it only measures: the views it gives are empty.
  explicit ArenaCursor(std::byte* memory = nullptr) : memory_(memory) {}

  /// The next tensor, aligned to 64 bytes.
  TensorView take(DType dtype, Shape shape) {
    TensorView view(memory_ == nullptr ? nullptr : memory_ + bytes_, dtype, shape);
    bytes_ += static_cast<std::size_t>(round_up(static_cast<std::int64_t>(view.bytes()), 64));
    return view;
  }
  TensorView take(const TensorSize& size) { return take(size.dtype, size.shape); }
  /// Each part takes its tensors from the same memory: for what is never in use together.
  template <class... Parts>
  void overlay(const Parts&... parts) {
    const std::size_t begin = bytes_;
    std::size_t end = begin;
    ((bytes_ = begin, parts(), end = std::max(end, bytes_)), ...);
    bytes_ = end;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace trireme
