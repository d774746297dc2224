#include "parallel/store_layout.h"

#include <algorithm>

namespace trireme {

namespace {
// Groups begin on a cache line, so that vector loads of weights are aligned.
constexpr std::int64_t kAlignmentElements = 16;
}  // namespace

StoreLayout::StoreLayout(const std::vector<ParamMeta>& params, const StorePlace& place)
    : place_(place) {
  expect(place.zero_stage > 0 || place.shard.extent == 1, "shards without ZeRO");
  std::int64_t local = 0, shard = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const ParamMeta& param = params[i];
    const auto index = static_cast<ParamIndex>(i);
    expect(i == 0 || param.block >= params[i - 1].block, "{} is declared out of block order",
           param.name);
    expect(param.looked_up_most == 0 || (i == 0 && place.zero_stage == 0),
           "{} cannot have its gradient in rows", param.name);
    while (block_count() <= param.block) blocks_.push_back({index, index});
    blocks_.back().last = index;
    if (param.shares == kNoParam) {
      expect(i == 0 || params[i - 1].shares == kNoParam,
             "{} has a value and stands behind what has none", param.name);
      valued_blocks_ = param.block + 1;
    }
    shapes_.push_back(trireme::local_shape(param.shape, param.cut, place.tensor));
    const Shape& shape = shapes_.back();
    padded_.push_back(shape);
    padded_.back().set(0, round_up(shape[0], param.row_alignment));
    if (param.fuse == Fuse::kNo) local = round_up(local, kAlignmentElements);
    shard = round_up(shard, kAlignmentElements);
    local_.push_back(local);
    shard_.push_back(shard);
    local += padded_.back().count();
    // even_piece gives the first place the most.
    if (shape.count() > 0)
      shard += even_piece(shape[0], place.shard.extent, 0).size * (shape.count() / shape[0]);
  }
  local_.push_back(round_up(local, kAlignmentElements));
  if (!params.empty() && params.front().looked_up_most > 0) whole_gradients_begin_ = local_[1];
  shard_.push_back(round_up(shard, kAlignmentElements));
}

Shape StoreLayout::owned_shape(ParamIndex index) const {
  Shape shape = local_shape(index);
  shape.set(0, owned(index).size);
  return shape;
}

Piece StoreLayout::span_of(const std::vector<std::int64_t>& offsets, int block) const {
  const ParamRange range = blocks_[at(block)];
  const std::int64_t begin = offsets[at(range.first)];
  return {begin, offsets[at(range.last + 1)] - begin};
}

Piece StoreLayout::whole_gradients(int block) const {
  const Piece all = local_block(block);
  const std::int64_t begin = std::max(all.begin, whole_gradients_begin_);
  return {begin, all.begin + all.size - begin};
}

std::int64_t StoreLayout::largest_block(const std::function<bool(int)>& counts) const {
  std::int64_t largest = 0;
  for (int block = 0; block < block_count(); ++block) {
    if (counts(block)) largest = std::max(largest, local_block(block).size);
  }
  return largest;
}

}  // namespace trireme
