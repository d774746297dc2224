#include "store/store_layout.h"

#include <algorithm>
#include <numeric>

#include "tensor/nf4_view.h"

namespace trireme {

namespace {
// Groups begin on a cache line, so that vector loads of weights are aligned.
std::int64_t alignment_elements(StoreLayout::Of of) {
  return of == StoreLayout::Of::kFp8Weights || of == StoreLayout::Of::kNf4Weights ? 64 : 16;
}

std::int64_t elements_of_unit(StoreLayout::Of of) {
  if (of == StoreLayout::Of::kNf4Absmax) return kNf4Block;
  return of == StoreLayout::Of::kNf4Weights ? 2 : 1;
}

bool lacks_room(const ParamMeta& param, StoreLayout::Of of) {
  switch (of) {
    case StoreLayout::Of::kValues:
      return !param.in_values;
    case StoreLayout::Of::kGradients:
      return !param.trainable;
    case StoreLayout::Of::kComputeWeights:
      return form_of(param) != WeightForm::kCompute;
    case StoreLayout::Of::kFp8Weights:
      return form_of(param) != WeightForm::kFp8;
    case StoreLayout::Of::kF32Weights:
      return form_of(param) != WeightForm::kF32;
    case StoreLayout::Of::kNf4Weights:
    case StoreLayout::Of::kNf4Absmax:
      return form_of(param) != WeightForm::kNf4;
  }
  throw InternalError("a layout of no kind");
}

/// Room in the shard layout for parameters that are owned whole, each by another rank.
struct SharedRoom {
  std::int64_t begin = 0, size = 0;
  int taken = 0;
};
}  // namespace

StoreLayout::Of StoreLayout::of_form(WeightForm form) {
  switch (form) {
    case WeightForm::kCompute:
      return Of::kComputeWeights;
    case WeightForm::kFp8:
      return Of::kFp8Weights;
    case WeightForm::kF32:
      return Of::kF32Weights;
    case WeightForm::kNf4:
      return Of::kNf4Weights;
    case WeightForm::kNf4Absmax:
      return Of::kNf4Absmax;
  }
  throw InternalError("weights of no form");
}

std::int64_t StoreLayout::units_of(std::int64_t elements) const {
  return ceil_div(elements, unit_);
}

std::int64_t StoreLayout::rows_together(const Shape& shape, int owners) const {
  if (unit_ == 1) return 1;
  if (owners == 1) return shape[0];
  const std::int64_t rows = kNf4Block / std::gcd(shape.count() / shape[0], kNf4Block);
  expect(rows == 1 || shape[0] % (rows * owners) == 0,
         "rows of {} among {} ranks, whose blocks of {} are {} rows", shape.text(), owners,
         kNf4Block, rows);
  return rows;
}

StoreLayout::StoreLayout(const std::vector<ParamMeta>& params,
                         const ParamDistribution& distribution, Of of)
    : distribution_(distribution), unit_(elements_of_unit(of)) {
  for (const Distribution& view : distribution.views)
    expect(distribution.sharded() || view.shard.extent == 1, "shards without ZeRO");
  const std::int64_t alignment = alignment_elements(of);
  std::int64_t local = 0, shard = 0;
  SharedRoom room;
  int whole = 0;  // parameters of the block and view that are owned whole
  for (std::size_t i = 0; i < params.size(); ++i) {
    const ParamMeta& param = params[i];
    const auto index = static_cast<ParamIndex>(i);
    expect(i == 0 || param.block >= params[i - 1].block, "{} is declared out of block order",
           param.name);
    expect(i == 0 || param.block > params[i - 1].block || param.view >= params[i - 1].view,
           "{} is declared out of order of views", param.name);
    expect(param.looked_up_most == 0 || (i == 0 && !distribution.sharded()),
           "{} cannot have its gradient in rows", param.name);
    while (block_count() <= param.block) blocks_.push_back({index, index});
    blocks_.back().last = index;
    if (param.shares == kNoParam) {
      expect(i == 0 || params[i - 1].shares == kNoParam,
             "{} has a value and stands behind what has none", param.name);
      valued_blocks_ = param.block + 1;
    }
    views_.push_back(param.view);
    fused_.push_back(param.fuse);
    const Distribution& view = distribution.of(param.view);
    if (i == 0 || param.block != params[i - 1].block || param.view != params[i - 1].view) {
      room = {};
      whole = 0;
    }
    shapes_.push_back(trireme::local_shape(param.shape, param.cut, view.tensor));
    const Shape& shape = shapes_.back();
    padded_.push_back(shape);
    padded_.back().set(0, round_up(shape[0], param.row_alignment));
    if (param.fuse == Fuse::kNo) local = round_up(local, alignment);
    shard = round_up(shard, alignment);
    local_.push_back(local);
    shard_.push_back(shard);
    const bool everywhere = param.base && distribution.zero_stage < 3;
    const bool each = everywhere || param.ownership == Ownership::kEveryRank;
    owners_.push_back(lacks_room(param, of)                 ? kNobody
                      : each                                ? kEveryRank
                      : param.ownership == Ownership::kRows ? kAllRanks
                                                            : whole++ % view.shard.extent);
    if (!has_room(index)) continue;
    local += units_of(padded_.back().count());
    if (everywhere) continue;
    if (each) {
      shard += units_of(shape.count());
    } else if (owners_.back() == kAllRanks) {
      // even_slice gives the first rank the most.
      if (shape.count() > 0)
        shard +=
            units_of(even_slice(shape[0], view.shard.extent, 0).size * (shape.count() / shape[0]));
    } else if (room.taken % view.shard.extent != 0 && shape.count() <= room.size) {
      shard_.back() = room.begin;
      ++room.taken;
    } else {
      expect(unit_ == 1, "{} is owned whole, in codes", param.name);
      room = {shard, shape.count(), 1};
      shard += room.size;
    }
  }
  local_.push_back(round_up(local, alignment));
  if (!params.empty() && params.front().looked_up_most > 0) whole_gradients_begin_ = local_[1];
  shard_.push_back(round_up(shard, alignment));
}

Shape StoreLayout::fused_shape(ParamRange range) const {
  expect(range.given() && range.first <= range.last && at(range.last) < shapes_.size(),
         "parameters {}..{} of {}", range.first, range.last, shapes_.size());
  Shape shape = local_shape(range.first);
  for (ParamIndex i = range.first + 1; i <= range.last; ++i) {
    expect(fused_[at(i)] == Fuse::kWithPrevious, "parameter {} does not stand behind {}", i, i - 1);
    shape.set(0, shape[0] + local_shape(i)[0]);
  }
  return shape;
}

Slice StoreLayout::rows_of(ParamIndex index, AxisRank rank) const {
  const int owner = owners_[at(index)];
  if (owner == kAllRanks) return owned_rows(shapes_[at(index)], rank);
  if (owner == kEveryRank) return {0, shapes_[at(index)][0]};
  return {0, owner == rank.index ? shapes_[at(index)][0] : 0};
}

std::vector<ShardedTensor> StoreLayout::sharded_tensors(int block, MeshView view) const {
  std::vector<ShardedTensor> tensors;
  const ParamRange range = params_of(block, view);
  if (!range.given()) return tensors;
  for (ParamIndex i = range.first; i <= range.last; ++i) {
    const Shape& shape = shapes_[at(i)];
    if (!has_room(i) || owners_[at(i)] == kEveryRank || shape.count() == 0) continue;
    const std::int64_t together = rows_together(shape, distribution_.of(view).shard.extent);
    tensors.push_back({local_[at(i)] - local_block(block).begin,
                       shard_[at(i)] - shard_block(block, view).begin, shape[0] / together,
                       units_of(shape.count() / shape[0] * together), owners_[at(i)]});
  }
  return tensors;
}

Shape StoreLayout::owned_shape(ParamIndex index) const {
  Shape shape = local_shape(index);
  shape.set(0, owned(index).size);
  return shape;
}

bool StoreLayout::has(MeshView view) const {
  for (std::size_t i = 0; i < views_.size(); ++i)
    if (views_[i] == view && owners_[i] != kNobody && owners_[i] != kEveryRank) return true;
  return false;
}

ParamRange StoreLayout::params_of(int block, MeshView view) const {
  const ParamRange all = blocks_[at(block)];
  ParamRange range;
  for (ParamIndex i = all.first; i <= all.last; ++i) {
    if (views_[at(i)] != view) continue;
    if (!range.given()) range.first = i;
    range.last = i;
  }
  return range;
}

Slice StoreLayout::span_of(const std::vector<std::int64_t>& offsets, ParamRange range) const {
  if (!range.given()) return {0, 0};
  const std::int64_t begin = offsets[at(range.first)];
  return {begin, offsets[at(range.last + 1)] - begin};
}

Slice StoreLayout::without_rows(Slice local) const {
  const std::int64_t begin = std::max(local.begin, whole_gradients_begin_);
  return {begin, std::max<std::int64_t>(0, local.begin + local.size - begin)};
}

std::int64_t StoreLayout::largest_block(const std::function<bool(int)>& counts) const {
  std::int64_t largest = 0;
  for (int block = 0; block < block_count(); ++block) {
    if (counts(block)) largest = std::max(largest, local_block(block).size);
  }
  return largest;
}

}  // namespace trireme
