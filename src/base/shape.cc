#include "base/shape.h"

#include <algorithm>

namespace trireme {

std::string Shape::text() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", sizes_[i]);
  return text + "]";
}

Box intersect(const Box& a, const Box& b) {
  expect(a.shape.rank() == b.shape.rank(), "boxes of rank {} and {}", a.shape.rank(),
         b.shape.rank());
  Box common = a;
  for (int i = 0; i < a.shape.rank(); ++i) {
    const std::int64_t begin = std::max(a.offset[i], b.offset[i]);
    const std::int64_t end = std::min(a.offset[i] + a.shape[i], b.offset[i] + b.shape[i]);
    common.offset.set(i, begin);
    common.shape.set(i, std::max<std::int64_t>(0, end - begin));
  }
  return common;
}

}  // namespace trireme
