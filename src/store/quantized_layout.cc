#include "store/quantized_layout.h"

#include <algorithm>
#include <numeric>

namespace trireme {

QuantizedDims quantized_dims(const ParamMeta& param, AxisRank tensor, std::int64_t block) {
  expect(param.shape.rank() == 2, "{} is no matrix", param.name);
  const int cut = param.cut.dim;
  const Shape local = local_shape(param.shape, param.cut, tensor);
  ScaleDim dims[2] = {{local[0], block}, {local[1], block}};
  if (param.cut.given()) {
    ScaleDim& of_cut = dims[cut] = {};
    of_cut.block = block;
    std::vector<std::int64_t> begins;
    std::int64_t begin = 0;
    for (const CutSegment& segment : param.cut.segments) {
      begins.push_back(begin);
      begin += segment.size;
    }
    for (const CutPart& part : local_parts(param.shape, param.cut, tensor)) {
      std::size_t segment = begins.size() - 1;
      while (begins[segment] > part.box.offset[cut]) --segment;
      of_cut.add({part.box.shape[cut], part.box.offset[cut] - begins[segment],
                  param.cut.segments[segment].size});
    }
  }
  return {dims[0], dims[1]};
}

bool cut_crosses_blocks(const TensorCut& cut, int extent, std::int64_t block) {
  if (extent == 1 || !cut.given()) return false;
  if (block == 0) return true;
  return std::any_of(cut.segments.begin(), cut.segments.end(), [&](const CutSegment& segment) {
    const std::int64_t ranks = extent / replicas_of_units(segment.units, extent);
    for (std::int64_t rank = 1; rank < ranks; ++rank) {
      const std::int64_t units = even_slice(segment.units, ranks, rank).begin;
      if (units * (segment.size / segment.units) % block != 0) return true;
    }
    return false;
  });
}

QuantizedLayout::QuantizedLayout(const std::vector<ParamMeta>& params,
                                 const ParamDistribution& distribution) {
  for (const ParamMeta& param : params) {
    dims_.emplace_back();
    if (!param.fp8) continue;
    quantized_.push_back(static_cast<ParamIndex>(dims_.size()) - 1);
    dims_.back() = quantized_dims(param, distribution.of(param.view).tensor, param.fp8->block);
  }
  place_scales(params, distribution);
  for (const ParamIndex index : quantized_) add_turned(params, index);
}

void QuantizedLayout::place_scales(const std::vector<ParamMeta>& params,
                                   const ParamDistribution& distribution) {
  offsets_.resize(params.size());
  std::int64_t end = 0;
  for (const MeshView view : kMeshViews) {
    const std::int64_t begin = end;
    for (const ParamIndex index : quantized_) {
      if (params[at(index)].view != view) continue;
      offsets_[at(index)] = end;
      end += dims_[at(index)].rows.blocks() * dims_[at(index)].columns.blocks();
    }
    end = begin + round_up(end - begin, distribution.of(view).shard.extent);
    views_[static_cast<std::size_t>(view)] = {begin, end - begin};
  }
}

void QuantizedLayout::add_turned(const std::vector<ParamMeta>& params, ParamIndex index) {
  constexpr std::int64_t kAlignment = 64;
  const ParamMeta& param = params[at(index)];
  const bool fused = param.fuse == Fuse::kWithPrevious && !param.fp8->begins_matrix &&
                     !turned_.empty() && turned_.back().range.last == index - 1;
  turned_sizes_.resize(std::max(turned_sizes_.size(), at(param.block) + 1));
  std::int64_t& size = turned_sizes_[at(param.block)];
  if (fused) {
    turned_.back().range.last = index;
    size = turned_.back().begin;
  } else {
    turned_.push_back({{index, index}, param.block, size});
  }
  const QuantizedDims whole = dims(turned_.back().range);
  size += round_up(codes_shape(whole.columns, whole.rows, true).count(), kAlignment);
}

std::int64_t QuantizedLayout::turned_size() const {
  return std::accumulate(turned_sizes_.begin(), turned_sizes_.end(), std::int64_t{0});
}

std::size_t QuantizedLayout::turned_of(ParamIndex first) const {
  const auto found =
      std::lower_bound(turned_.begin(), turned_.end(), first,
                       [](const Turned& of, ParamIndex wanted) { return of.range.first < wanted; });
  expect(found != turned_.end() && found->range.first == first, "parameter {} begins no fp8 range",
         first);
  return static_cast<std::size_t>(found - turned_.begin());
}

QuantizedDims QuantizedLayout::dims(ParamRange range) const {
  QuantizedDims dims = dims_[at(range.first)];
  for (ParamIndex i = range.first + 1; i <= range.last; ++i) {
    for (const ScaleDim::Part& part : dims_[at(i)].rows.given_parts()) dims.rows.add(part);
  }
  return dims;
}

}  // namespace trireme
