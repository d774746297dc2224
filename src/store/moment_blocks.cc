#include "store/moment_blocks.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/update/moment_codes.h"

namespace trireme {

namespace {

bool rows_are_blocks(const Shape& shape) {
  return shape.rank() == 2 && shape[1] % kMomentBlock == 0;
}

/// The cut of blocks in which each rank has those of its elements, all of them whole. Of a dim of
/// which `each` elements follow each other in the tensor.
std::optional<TensorCut> cut_of_blocks(const TensorCut& cut, int extent, std::int64_t each) {
  TensorCut blocks{cut.dim, {}};
  for (const CutSegment& segment : cut.segments) {
    const std::int64_t unit = segment.size / segment.units * each;
    // Shares are units, or so many units as all ranks have.
    std::int64_t units = segment.units;
    if (unit % kMomentBlock != 0 && units % extent == 0) units = extent;
    if (segment.size / units * each % kMomentBlock != 0) return std::nullopt;
    blocks.segments.push_back({segment.size * each / kMomentBlock, units});
  }
  return blocks;
}

/// Whether ZeRO deals out rows of `each` elements in whole blocks, as many to each rank.
bool shares_are_blocks(const ParamMeta& param, const Distribution& ranks, std::int64_t each) {
  const std::int64_t shards = ranks.shard.extent;
  for (int index = 0; shards > 1 && index < ranks.tensor.extent; ++index) {
    const Shape local = local_shape(param.shape, param.cut, {ranks.tensor.extent, index});
    if (local[0] % shards != 0 || local[0] / shards * each % kMomentBlock != 0) return false;
  }
  return true;
}

}  // namespace

Shape moment_blocks_shape(const Shape& shape) {
  if (rows_are_blocks(shape)) return {shape[0], shape[1] / kMomentBlock};
  return {ceil_div(shape.count(), kMomentBlock)};
}

ParamMeta moment_blocks_of(const ParamMeta& param, const Distribution& ranks) {
  ParamMeta blocks = param;
  blocks.shape = moment_blocks_shape(param.shape);
  blocks.fuse = Fuse::kNo;
  blocks.row_alignment = 1;
  blocks.looked_up_most = 0;
  const bool of_rows = rows_are_blocks(param.shape);
  const bool cut = param.cut.given() && ranks.tensor.extent > 1;
  const std::int64_t row = param.shape.count() / std::max<std::int64_t>(param.shape[0], 1);
  std::optional<TensorCut> of_blocks = TensorCut{};
  if (cut && of_rows && param.cut.dim == 0) {
    of_blocks = param.cut;  // rows as they are
  } else if (cut && (of_rows || param.cut.dim == 0)) {
    of_blocks = cut_of_blocks(param.cut, ranks.tensor.extent, param.cut.dim == 0 ? row : 1);
  } else if (cut) {
    of_blocks.reset();
  }
  if (!of_rows && !shares_are_blocks(param, ranks, row)) of_blocks.reset();
  blocks.cut = of_blocks.value_or(TensorCut{});
  if (!of_blocks) blocks.ownership = Ownership::kEveryRank;
  return blocks;
}

}  // namespace trireme
