#pragma once
// Rows and weights of experts in fp8, as their products read them (kernels/grouped_gemm): many
// matrices that lie behind each other, each quantised by itself.

#include "tensor/quantized_view.h"

namespace trireme {

/// Rows in S segments (an expert's from one source), begins[s] <= r < begins[s + 1], of a table
/// that may stand where no host sees it. Each segment has the codes and scales that it would have
/// alone.
///   columns  of the rows, in blocks of 128, or of 0: a segment has one scale for each part of them
///   along    multiplied along their columns:
///              codes  [most, columns.padded_size()]   scales  [most, columns.blocks()], or [S, ..]
///   across   multiplied along the rows, of which a segment has whole blocks, with zeros behind its
///            own: from block first_block(s) on
///              codes  [blocks, columns.size(), 128]   scales  [blocks, columns.size()], or
///                                                             [S, columns.blocks()]
template <class Byte>
struct BasicQuantizedSegments {
  static constexpr std::int64_t kBlock = ScaleDim::kAlignment;

  BasicTensorView<Byte> codes, scales;
  ScaleDim columns;
  bool across = false;

  BasicQuantizedSegments() = default;
  BasicQuantizedSegments(BasicTensorView<Byte> codes_, BasicTensorView<Byte> scales_,
                         const ScaleDim& columns_, bool across_)
      : codes(codes_), scales(scales_), columns(columns_), across(across_) {}
  template <class Other>
  requires std::is_convertible_v<Other*, Byte*> BasicQuantizedSegments(
      const BasicQuantizedSegments<Other>& o)
      : BasicQuantizedSegments(o.codes, o.scales, o.columns, o.across) {}

  [[nodiscard]] DType format() const { return codes.dtype; }
  [[nodiscard]] bool in_blocks() const { return columns.block != 0; }

  /// Blocks that are room for all rows, wherever segments end.
  static std::int64_t blocks(std::int64_t most, std::int64_t segments) {
    return ceil_div(most, kBlock) + segments;
  }
  static std::int64_t first_block(std::int64_t segment, std::int64_t begin) {
    return ceil_div(begin, kBlock) + segment;
  }
  static Shape codes_shape(std::int64_t most, std::int64_t segments, const ScaleDim& columns,
                           bool across) {
    if (across) return {blocks(most, segments), columns.size(), kBlock};
    return {most, columns.padded_size()};
  }
  static Shape scales_shape(std::int64_t most, std::int64_t segments, const ScaleDim& columns,
                            bool across) {
    if (columns.block == 0) return {segments, columns.blocks()};
    if (across) return {blocks(most, segments), columns.size()};
    return {most, columns.blocks()};
  }
};
using QuantizedSegments = BasicQuantizedSegments<std::byte>;
using ConstQuantizedSegments = BasicQuantizedSegments<const std::byte>;

/// G matrices of equal sizes and blocks, each as a BasicQuantizedView has one.
///   codes  [G, R, C], or with `padded` [G, R, columns.padded_size()]
///   scales [G, rows.blocks(), columns.blocks()]
template <class Byte>
struct BasicQuantizedMatrices {
  BasicTensorView<Byte> codes, scales;
  ScaleDim rows, columns;
  bool padded = false;

  BasicQuantizedMatrices() = default;
  BasicQuantizedMatrices(BasicTensorView<Byte> codes_, BasicTensorView<Byte> scales_,
                         const ScaleDim& rows_, const ScaleDim& columns_, bool padded_)
      : codes(codes_), scales(scales_), rows(rows_), columns(columns_), padded(padded_) {}
  template <class Other>
  requires std::is_convertible_v<Other*, Byte*> BasicQuantizedMatrices(
      const BasicQuantizedMatrices<Other>& o)
      : BasicQuantizedMatrices(o.codes, o.scales, o.rows, o.columns, o.padded) {}

  [[nodiscard]] std::int64_t count() const { return codes.shape[0]; }
  [[nodiscard]] BasicQuantizedView<Byte> operator[](std::int64_t matrix) const {
    return {codes.rows(matrix, 1).reshape(codes_shape(rows, columns, padded)),
            scales.rows(matrix, 1).reshape(scales_shape(rows, columns)), rows, columns, padded};
  }
};
using QuantizedMatrices = BasicQuantizedMatrices<std::byte>;
using ConstQuantizedMatrices = BasicQuantizedMatrices<const std::byte>;

}  // namespace trireme
