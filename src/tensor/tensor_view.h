#pragma once
// A tensor as an op sees it: pointer, type, shape. Plain, trivially copyable, row-major and
// contiguous; it owns nothing. An op that needs strides takes them as an argument.

#include <cstddef>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shape.h"

namespace trireme {

template <class Byte>
struct BasicTensorView {
  Byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  BasicTensorView() = default;
  BasicTensorView(Byte* data_, DType dtype_, Shape shape_)
      : data(data_), dtype(dtype_), shape(shape_) {}
  /// A mutable view is a constant one.
  template <class Other>
  requires std::is_convertible_v<Other*, Byte*> BasicTensorView(const BasicTensorView<Other>& other)
      : data(other.data), dtype(other.dtype), shape(other.shape) {}

  /// False for the default view, which stands for "not given".
  [[nodiscard]] bool given() const { return data != nullptr; }
  [[nodiscard]] std::int64_t count() const { return shape.count(); }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(count()) * size_of(dtype);
  }

  /// Typed pointer; a view of another type is a defect of the caller.
  template <class T>
  [[nodiscard]] auto* as() const {
    expect(dtype == DTypeOf<T>::kValue, "a {} tensor read as {}", name_of(dtype),
           name_of(DTypeOf<T>::kValue));
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Element*>(data);
  }
  /// Rows [begin, begin + count) of dim 0.
  [[nodiscard]] BasicTensorView rows(std::int64_t begin, std::int64_t rows_count) const {
    expect(shape.rank() > 0 && begin >= 0 && rows_count >= 0 && begin + rows_count <= shape[0],
           "rows {}+{} of {}", begin, rows_count, shape.text());
    Shape part = shape;
    part.set(0, rows_count);
    const std::int64_t row = shape[0] == 0 ? 0 : count() / shape[0];
    return {data + static_cast<std::size_t>(begin * row) * size_of(dtype), dtype, part};
  }
  /// The same elements under another shape.
  [[nodiscard]] BasicTensorView reshape(Shape other) const {
    expect(other.count() == count(), "{} seen as {}", shape.text(), other.text());
    return {data, dtype, other};
  }
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

/// A view of `count` elements behind a typed pointer.
template <class T>
auto view_of(T* data, Shape shape) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return BasicTensorView<Byte>(reinterpret_cast<Byte*>(data),
                               DTypeOf<std::remove_const_t<T>>::kValue, shape);
}

}  // namespace trireme
