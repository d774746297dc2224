#include "parallel/cut.h"

#include <algorithm>

namespace trireme {

int replicas_of_units(std::int64_t units, int extent) {
  return units >= extent ? 1 : narrow<int>(div_exact(extent, units));
}

namespace {

/// The elements of a segment that a rank holds.
Slice shard_of(const CutSegment& segment, AxisRank rank) {
  const std::int64_t unit = div_exact(segment.size, segment.units);
  Slice units{};
  if (segment.units >= rank.extent) {
    units = even_slice(segment.units, rank.extent, rank.index);
  } else {
    units = {rank.index / replicas_of_units(segment.units, rank.extent), 1};
  }
  return {units.begin * unit, units.size * unit};
}

}  // namespace

int TensorCut::replicas(int extent) const {
  if (!given()) return extent;
  const auto of = [&](const CutSegment& segment) {
    return replicas_of_units(segment.units, extent);
  };
  for (const CutSegment& segment : segments) {
    expect(of(segment) == of(segments.front()), "segments in unlike numbers of copies");
  }
  return of(segments.front());
}

Shape local_shape(const Shape& global, const TensorCut& cut, AxisRank rank) {
  if (!cut.given()) return global;
  Shape local = global;
  std::int64_t size = 0;
  for (const CutSegment& segment : cut.segments) size += shard_of(segment, rank).size;
  local.set(cut.dim, size);
  return local;
}

std::vector<CutPart> local_parts(const Shape& global, const TensorCut& cut, AxisRank rank) {
  Shape zero = global;
  for (int dim = 0; dim < zero.rank(); ++dim) zero.set(dim, 0);
  if (!cut.given()) return {{{zero, global}, zero}};
  std::vector<CutPart> parts;
  std::int64_t section_begin = 0, at = 0;
  for (const CutSegment& segment : cut.segments) {
    const Slice shard = shard_of(segment, rank);
    CutPart part{{zero, global}, zero};
    part.box.offset.set(cut.dim, section_begin + shard.begin);
    part.box.shape.set(cut.dim, shard.size);
    part.at.set(cut.dim, at);
    if (part.box.shape.count() > 0) parts.push_back(part);
    section_begin += segment.size;
    at += shard.size;
  }
  expect(section_begin == global[cut.dim], "segments of {} on a dim of {}", section_begin,
         global[cut.dim]);
  return parts;
}

std::vector<CutPart> rows_of_parts(const std::vector<CutPart>& parts, Slice rows) {
  std::vector<CutPart> cut;
  for (CutPart part : parts) {
    const std::int64_t begin = std::max(part.at[0], rows.begin),
                       end = std::min(part.at[0] + part.box.shape[0], rows.begin + rows.size);
    if (begin >= end || part.box.shape.count() == 0) continue;
    part.box.offset.set(0, part.box.offset[0] + begin - part.at[0]);
    part.box.shape.set(0, end - begin);
    part.at.set(0, begin - rows.begin);
    cut.push_back(part);
  }
  return cut;
}

std::optional<std::int64_t> cut_within_block(const Shape& global, const Box& part,
                                             std::int64_t block) {
  expect(global.rank() <= 2, "blocks of a tensor of {} dims", global.rank());
  if (part.shape.count() == 0) return std::nullopt;
  const bool matrix = global.rank() == 2;
  const std::int64_t width = matrix ? global[1] : 1, run = matrix ? part.shape[1] : 1;
  const std::int64_t column = matrix ? part.offset[1] : 0;
  const bool whole_rows = run == width;
  const std::int64_t runs = whole_rows ? 1 : part.shape[0];
  for (std::int64_t i = 0; i < runs; ++i) {
    const std::int64_t begin = (part.offset[0] + i) * width + column;
    const std::int64_t end = begin + (whole_rows ? part.shape[0] * width : run);
    if (begin % block != 0) return begin;
    if (end % block != 0 && end != global.count()) return end;
  }
  return std::nullopt;
}

}  // namespace trireme
