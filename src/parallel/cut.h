#pragma once
// How a parameter lies on the ranks: pure arithmetic on (global shape, cut, place). Allocation,
// initial values, ZeRO, checkpoints and resharding all ask here.

#include <cstdint>
#include <vector>

#include "base/math.h"
#include "base/shape.h"

namespace trireme {

/// One place of `extent` along an axis.
struct AxisPlace {
  int extent = 1, index = 0;
  friend bool operator==(const AxisPlace&, const AxisPlace&) = default;
};

/// Elements of a dim that are cut together: `size` of them in `units` equal parts that stay whole
/// (heads, columns of the MLP, rows of the vocabulary).
struct CutSection {
  std::int64_t size = 0, units = 0;
};

/// Neighbouring places that hold the same unit where units are fewer than places, which they then
/// divide (InternalError); else 1. Place i is one of group i / copies.
int copies_of_units(std::int64_t units, int extent);

/// How the tensor axis cuts a parameter: each section of `dim` is dealt out by itself, the parts of
/// a place laid end to end (q, k and v of one matrix). With at least as many units as places each
/// gets an even share (the first get one more where they do not divide); with fewer, a unit is held
/// by places / units neighbours. The default is not cut: every place holds the whole.
struct TensorCut {
  int dim = 0;
  std::vector<CutSection> sections;
  [[nodiscard]] bool given() const { return !sections.empty(); }
  /// Places that hold the same part as a place; they divide the extent (InternalError).
  [[nodiscard]] int copies(int extent) const;
};

/// A box of the global tensor, and where it stands in the local one.
struct CutPart {
  Box box;
  Shape at;
};

/// The shape of the part that a place of the tensor axis holds.
Shape local_shape(const Shape& global, const TensorCut& cut, AxisPlace place);

/// That part as boxes: one, or one for each section. Empty ones are left out.
std::vector<CutPart> local_parts(const Shape& global, const TensorCut& cut, AxisPlace place);

/// The parts again, of local rows [begin, begin + size) alone; `at` counts from row `begin`.
std::vector<CutPart> rows_of_parts(const std::vector<CutPart>& parts, Piece rows);

/// ZeRO's cut: the rows (dim 0) of a local tensor that place `shard` owns.
inline Piece owned_rows(const Shape& local, AxisPlace shard) {
  return even_piece(local[0], shard.extent, shard.index);
}

}  // namespace trireme
