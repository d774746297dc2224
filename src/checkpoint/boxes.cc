#include "checkpoint/boxes.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/math.h"
#include "base/random.h"

namespace trireme {

namespace {

/// The first dim that splits into contiguous runs; the number of dims where there is none.
int first_cuttable_dim(const Shape& shape) {
  int dim = 0;
  while (dim < shape.rank() && shape[dim] == 1) ++dim;
  return dim;
}

Box rows_of(const Box& box, int dim, Slice rows) {
  Box part = box;
  part.offset.set(dim, box.offset[dim] + rows.begin);
  part.shape.set(dim, rows.size);
  return part;
}

void append_pieces(const Box& box, std::int64_t count_max, std::vector<Box>& pieces) {
  const std::int64_t count = box.shape.count();
  if (count == 0) return;
  const int dim = first_cuttable_dim(box.shape);
  if (count <= count_max || dim == box.shape.rank()) {
    pieces.push_back(box);
    return;
  }
  const std::int64_t rows = box.shape[dim];
  const std::int64_t rows_each = std::max<std::int64_t>(1, count_max / (count / rows));
  for (std::int64_t begin = 0; begin < rows; begin += rows_each) {
    append_pieces(rows_of(box, dim, {begin, std::min(rows_each, rows - begin)}), count_max, pieces);
  }
}

std::array<std::int64_t, Shape::kRankMax> strides_of(const Shape& shape) {
  std::array<std::int64_t, Shape::kRankMax> strides{};
  std::int64_t stride = 1;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    strides[static_cast<std::size_t>(dim)] = stride;
    stride *= shape[dim];
  }
  return strides;
}

std::int64_t element_at(const Box& outer, const Shape& position) {
  const auto strides = strides_of(outer.shape);
  std::int64_t element = 0;
  for (int dim = 0; dim < position.rank(); ++dim) {
    element += (position[dim] - outer.offset[dim]) * strides[static_cast<std::size_t>(dim)];
  }
  return element;
}

}  // namespace

std::vector<Box> cut_box(const Box& box, std::int64_t count_max) {
  std::vector<Box> pieces;
  append_pieces(box, std::max<std::int64_t>(1, count_max), pieces);
  return pieces;
}

Box share_of_replica(const ReplicaShare& share) {
  constexpr std::int64_t kBytesWorthCutting = 64 << 10;
  if (share.replicas == 1) return share.box;
  const int dim = first_cuttable_dim(share.box.shape);
  const std::int64_t bytes = share.box.shape.count() * share.element_bytes;
  if (dim < share.box.shape.rank() && share.box.shape[dim] >= share.replicas &&
      bytes / share.replicas >= kBytesWorthCutting) {
    return rows_of(share.box, dim, even_slice(share.box.shape[dim], share.replicas, share.replica));
  }
  const auto writer = stream_key(0, share.name) % static_cast<std::uint64_t>(share.replicas);
  if (writer == static_cast<std::uint64_t>(share.replica)) return share.box;
  Box nothing = share.box;
  if (nothing.shape.rank() == 0) nothing = {Shape{0}, Shape{0}};
  nothing.shape.set(0, 0);
  return nothing;
}

std::optional<std::int64_t> contiguous_offset(const Box& outer, const Box& inner) {
  for (int dim = first_cuttable_dim(inner.shape) + 1; dim < inner.shape.rank(); ++dim) {
    if (inner.shape[dim] != outer.shape[dim]) return std::nullopt;
  }
  return element_at(outer, inner.offset);
}

void copy_box(const ConstBoxBuffer& from, const BoxBuffer& to, const Box& common,
              std::size_t element_bytes) {
  if (common.shape.count() == 0) return;
  // Trailing dims that are whole in both buffers, and the one before them, are one run.
  int outer_dims = common.shape.rank();
  std::int64_t run = 1;
  while (outer_dims > 0) {
    const int dim = --outer_dims;
    run *= common.shape[dim];
    if (common.shape[dim] != from.box.shape[dim] || common.shape[dim] != to.box.shape[dim]) break;
  }
  const std::size_t run_bytes = static_cast<std::size_t>(run) * element_bytes;
  for (Shape at = common.offset;;) {
    std::memcpy(to.data + static_cast<std::size_t>(element_at(to.box, at)) * element_bytes,
                from.data + static_cast<std::size_t>(element_at(from.box, at)) * element_bytes,
                run_bytes);
    int dim = outer_dims - 1;
    for (; dim >= 0; --dim) {
      at.set(dim, at[dim] + 1);
      if (at[dim] < common.offset[dim] + common.shape[dim]) break;
      at.set(dim, common.offset[dim]);
    }
    if (dim < 0) return;
  }
}

bool lies_inside(const Box& inner, const Shape& outer) {
  if (inner.offset.rank() != outer.rank() || inner.shape.rank() != outer.rank()) return false;
  for (int dim = 0; dim < outer.rank(); ++dim) {
    const std::int64_t offset = inner.offset[dim], size = inner.shape[dim];
    // Written as a difference: a sum could overflow.
    if (offset < 0 || size < 0 || offset > outer[dim] || size > outer[dim] - offset) return false;
  }
  return true;
}

Box whole(const Shape& shape) {
  Box box{shape, shape};
  for (int dim = 0; dim < shape.rank(); ++dim) box.offset.set(dim, 0);
  return box;
}

}  // namespace trireme
