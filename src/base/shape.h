#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/error.h"

namespace trireme {

/// Up to five sizes, outermost first. Trivially copyable.
class Shape {
 public:
  static constexpr int kRankMax = 5;
  constexpr Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes)
      : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
    expect(sizes.size() <= kRankMax, "a shape of {} dims", sizes.size());
    for (int i = 0; i < rank_; ++i) sizes_[i] = sizes[i];
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] std::int64_t operator[](int dim) const { return sizes_[dim]; }
  void set(int dim, std::int64_t size) { sizes_[dim] = size; }
  [[nodiscard]] std::span<const std::int64_t> sizes() const {
    return {sizes_.data(), static_cast<std::size_t>(rank_)};
  }
  /// Elements; 1 for rank 0.
  [[nodiscard]] std::int64_t count() const {
    std::int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= sizes_[i];
    return product;
  }
  /// "[2, 8, 16]"
  [[nodiscard]] std::string text() const;
  friend bool operator==(const Shape& a, const Shape& b) = default;

 private:
  std::array<std::int64_t, kRankMax> sizes_{};
  int rank_ = 0;
};

/// A hyper-rectangle of a global tensor: what a rank owns, a file holds, a reader asks for.
struct Box {
  Shape offset, shape;
  friend bool operator==(const Box& a, const Box& b) = default;
};

/// The common part of two boxes of one tensor; shape with a zero size where they do not meet.
Box intersect(const Box& a, const Box& b);

}  // namespace trireme
