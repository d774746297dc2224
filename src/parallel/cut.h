#pragma once
// How a parameter lies on the ranks: pure arithmetic on (global shape, shard spec, rank).
// Allocation, initial values, ZeRO, checkpoints and resharding all ask here.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/math.h"
#include "base/shape.h"

namespace trireme {

/// A rank on one axis: the index-th of `extent`.
struct AxisRank {
  int extent = 1, index = 0;
  friend bool operator==(const AxisRank&, const AxisRank&) = default;
};

/// Elements of a dim sharded together: `size` in `units` that stay whole (heads, columns, rows).
struct CutSegment {
  std::int64_t size = 0, units = 0;
};

/// Neighbouring ranks that hold the same unit where units are fewer than ranks, which they then
/// divide (InternalError); else 1. Rank i is one of group i / replicas.
int replicas_of_units(std::int64_t units, int extent);

/// How the tensor axis shards a parameter: each segment of `dim` is dealt out by itself, the parts
/// of a rank laid end to end (q, k and v of one matrix). With at least as many units as ranks each
/// gets an even shard (the first get one more where they do not divide); with fewer, a unit is held
/// by ranks / units neighbours. The default is not sharded: every rank holds the whole.
struct TensorCut {
  int dim = 0;
  std::vector<CutSegment> segments;
  [[nodiscard]] bool given() const { return !segments.empty(); }
  /// Ranks that hold the same part as a rank; they divide the extent (InternalError).
  [[nodiscard]] int replicas(int extent) const;
};

/// A box of the global tensor, and where it stands in the local one.
struct CutPart {
  Box box;
  Shape at;
};

/// The shape of the part that a tensor-parallel rank holds.
Shape local_shape(const Shape& global, const TensorCut& cut, AxisRank rank);

/// That part as boxes: one, or one for each segment. Empty ones are left out.
std::vector<CutPart> local_parts(const Shape& global, const TensorCut& cut, AxisRank rank);

/// The parts again, of local rows [begin, begin + size) alone; `at` counts from row `begin`.
std::vector<CutPart> rows_of_parts(const std::vector<CutPart>& parts, Slice rows);

/// Where a part of a matrix or vector cuts a block of `block` elements that follow each other in
/// its row-major order: the first element behind the first such cut, in the global tensor. Not
/// given where each run of the part begins with a block, and ends with one or with the tensor.
std::optional<std::int64_t> cut_within_block(const Shape& global, const Box& part,
                                             std::int64_t block);

/// ZeRO's shard: the rows (dim 0) of a local tensor that rank `shard` owns.
inline Slice owned_rows(const Shape& local, AxisRank shard) {
  return even_slice(local[0], shard.extent, shard.index);
}

}  // namespace trireme
