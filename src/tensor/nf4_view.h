#pragma once
// A tensor in NF4 (kernels/nf4/nf4.h): two codes a byte, and the largest magnitude of each block of
// 64 elements that follow each other in row-major order.

#include "base/math.h"
#include "tensor/tensor_view.h"

namespace trireme {

inline constexpr std::int64_t kNf4Block = 64;

///   codes   [ceil(count / 2)]   uint8
///   absmax  [ceil(count / 64)]  f32
/// of a tensor of `shape`, or of a part of one that begins with a block of it and ends with one:
/// the blocks are those of the global tensor.
template <class Byte>
struct BasicNf4View {
  BasicTensorView<Byte> codes, absmax;
  Shape shape;

  BasicNf4View() = default;
  BasicNf4View(BasicTensorView<Byte> codes_, BasicTensorView<Byte> absmax_, Shape shape_)
      : codes(codes_), absmax(absmax_), shape(shape_) {}
  template <class Other>
  requires std::is_convertible_v<Other*, Byte*> BasicNf4View(const BasicNf4View<Other>& o)
      : BasicNf4View(o.codes, o.absmax, o.shape) {}

  [[nodiscard]] bool given() const { return codes.given(); }
};

using Nf4View = BasicNf4View<std::byte>;
using ConstNf4View = BasicNf4View<const std::byte>;

/// Shapes of the two tensors of such a view.
inline Shape nf4_codes_shape(const Shape& shape) { return {ceil_div(shape.count(), 2)}; }
inline Shape nf4_absmax_shape(const Shape& shape) { return {ceil_div(shape.count(), kNf4Block)}; }

}  // namespace trireme
