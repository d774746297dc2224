#pragma once
// Tensors in fp8 as a linear layer's products read them: codes, and a scale for each block of them.
//   value[r, c] = code[r, c] * scale[rows.block_of(r), columns.block_of(c)]

#include <algorithm>
#include <array>
#include <span>

#include "base/math.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Which indices of a dim share scales. A dim is one part or several that are quantised apart (q, k
/// and v of one product); the blocks of a part lie in the global tensor, of which this rank has
/// `size` indices from `offset` on, so that any shard has the codes of the whole. Those at either
/// end may be partial.
struct ScaleDim {
  struct Part {
    std::int64_t size = 0, offset = 0;
    std::int64_t whole = 0;  ///< indices of the part in the global tensor; 0: offset + size
    [[nodiscard]] std::int64_t all() const { return whole == 0 ? offset + size : whole; }
    friend bool operator==(const Part&, const Part&) = default;
  };
  static constexpr int kPartsMax = 4;
  /// Products take this many indices of their sums at once: parts begin at a multiple of it in the
  /// padded order.
  static constexpr std::int64_t kAlignment = 128;

  std::array<Part, kPartsMax> parts = {};
  int part_count = 0;
  std::int64_t block = 0;  ///< indices that share a scale, dividing kAlignment; 0: all of a part

  ScaleDim() = default;
  /// One part.
  ScaleDim(std::int64_t size, std::int64_t block_, std::int64_t offset = 0)
      : parts{Part{size, offset}}, part_count(1), block(block_) {}
  void add(Part part) {
    expect(part_count < kPartsMax, "more than {} parts of a quantised dim", kPartsMax);
    parts[static_cast<std::size_t>(part_count++)] = part;
  }

  [[nodiscard]] std::span<const Part> given_parts() const {
    return std::span(parts).first(static_cast<std::size_t>(part_count));
  }

  [[nodiscard]] std::int64_t size() const {
    return total([](const Part& p) { return p.size; });
  }
  /// Blocks of all parts that this rank has indices of.
  [[nodiscard]] std::int64_t blocks() const {
    return total([&](const Part& p) { return blocks_of(p); });
  }
  [[nodiscard]] std::int64_t blocks_of(const Part& part) const {
    if (part.size == 0) return 0;
    return block == 0 ? 1 : ceil_div(phase(part, block) + part.size, block);
  }
  /// Blocks of the global tensor.
  [[nodiscard]] std::int64_t all_blocks() const {
    return total([&](const Part& p) { return all_blocks_of(p); });
  }
  [[nodiscard]] std::int64_t all_blocks_of(const Part& part) const {
    return block == 0 ? 1 : ceil_div(part.all(), block);
  }
  /// Where the blocks of each part that are here stand among all, and among those that are here.
  struct Span {
    std::int64_t global, local, count;
  };
  template <class F>
  void each_span(const F& f) const {
    Span span{};
    for (const Part& part : given_parts()) {
      span.count = blocks_of(part);
      f(Span{span.global + (block == 0 ? 0 : part.offset / block), span.local, span.count});
      span.global += all_blocks_of(part);
      span.local += span.count;
    }
  }
  /// The block of an index.
  [[nodiscard]] std::int64_t block_of(std::int64_t index) const {
    std::int64_t before = 0;
    for (const Part& part : given_parts()) {
      if (index < part.size)
        return before + (block == 0 ? 0 : (phase(part, block) + index) / block);
      index -= part.size;
      before += blocks_of(part);
    }
    return before;
  }
  /// Indices [begin, begin + count) alone. Its first block is block_of(begin).
  [[nodiscard]] ScaleDim slice(std::int64_t begin, std::int64_t count) const {
    ScaleDim out;
    out.block = block;
    for (const Part& part : given_parts()) {
      const std::int64_t from = std::max<std::int64_t>(begin, 0),
                         to = std::min(begin + count, part.size);
      if (from < to) out.add({to - from, part.offset + from, part.all()});
      begin -= part.size;
    }
    return out;
  }
  /// The same indices in blocks of another size.
  [[nodiscard]] ScaleDim with_block(std::int64_t size_) const {
    ScaleDim out = *this;
    out.block = size_;
    return out;
  }
  /// In the padded order each part begins where its first block of kAlignment does, and ends with
  /// one: what is no index of the tensor is zero there.
  [[nodiscard]] std::int64_t padded_size() const {
    return total([](const Part& p) { return padded_size_of(p); });
  }
  static std::int64_t padded_size_of(const Part& part) {
    return part.size == 0 ? 0 : round_up(phase(part, kAlignment) + part.size, kAlignment);
  }
  /// Of a part's first index, in its first block of so many.
  static std::int64_t phase(const Part& part, std::int64_t of) { return part.offset % of; }
  /// The padded order is that of the tensor itself.
  [[nodiscard]] bool aligned() const { return padded_size() == size(); }

  friend bool operator==(const ScaleDim&, const ScaleDim&) = default;

 private:
  template <class F>
  [[nodiscard]] std::int64_t total(const F& of) const {
    std::int64_t sum = 0;
    for (const Part& part : given_parts()) sum += of(part);
    return sum;
  }
};

/// Codes and scales; the columns are what products sum over.
///   codes   [R, C] e4m3|e5m2, or with `padded` [R, columns.padded_size()]
///   scales  [rows.blocks(), columns.blocks()] f32: what a code is multiplied by
template <class Byte>
struct BasicQuantizedView {
  BasicTensorView<Byte> codes, scales;
  ScaleDim rows, columns;
  bool padded = false;

  BasicQuantizedView() = default;
  BasicQuantizedView(BasicTensorView<Byte> codes_, BasicTensorView<Byte> scales_,
                     const ScaleDim& rows_, const ScaleDim& columns_, bool padded_)
      : codes(codes_), scales(scales_), rows(rows_), columns(columns_), padded(padded_) {}
  template <class Other>
  requires std::is_convertible_v<Other*, Byte*> BasicQuantizedView(
      const BasicQuantizedView<Other>& o)
      : BasicQuantizedView(o.codes, o.scales, o.rows, o.columns, o.padded) {}

  [[nodiscard]] bool given() const { return codes.given(); }
  [[nodiscard]] DType format() const { return codes.dtype; }
};

using QuantizedView = BasicQuantizedView<std::byte>;
using ConstQuantizedView = BasicQuantizedView<const std::byte>;

/// Shapes of the two tensors of such a view.
inline Shape codes_shape(const ScaleDim& rows, const ScaleDim& columns, bool padded) {
  return {rows.size(), padded ? columns.padded_size() : columns.size()};
}
inline Shape scales_shape(const ScaleDim& rows, const ScaleDim& columns) {
  return {rows.blocks(), columns.blocks()};
}

}  // namespace trireme
