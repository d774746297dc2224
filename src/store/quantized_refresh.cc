#include "store/quantized_refresh.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "store/joined_maxima.h"

namespace trireme {

std::vector<QuantizedRefresh::Crossed> QuantizedRefresh::crossed_by(
    const std::vector<ParamMeta>& params, const QuantizedLayout& layout,
    const ParamDistribution& distribution, MeshView view) {
  std::vector<Crossed> crossed;
  std::int64_t begin = 0;
  for (const ParamIndex index : layout.params()) {
    const ParamMeta& param = params[static_cast<std::size_t>(index)];
    const int extent = distribution.of(view).tensor.extent;
    if (param.view != view || !cut_crosses_blocks(param.cut, extent, param.fp8->block)) continue;
    const QuantizedDims& dims = layout.dims(index);
    crossed.push_back({index, begin, dims.rows.all_blocks(), dims.columns.all_blocks()});
    begin += crossed.back().rows * crossed.back().columns;
  }
  return crossed;
}

std::int64_t QuantizedRefresh::joined_count(const std::vector<Crossed>& crossed) {
  return crossed.empty() ? 0 : crossed.back().begin + crossed.back().rows * crossed.back().columns;
}

QuantizedRefresh::QuantizedRefresh(Context& context, ParamStore& store, Communicator& shards,
                                   Communicator& tensor, MeshView view)
    : context_(context), store_(store), shards_(shards), tensor_(tensor), view_(view) {
  crossed_ = crossed_by(store.params(), store.quantized(), store.layout().distribution(), view);
  const std::int64_t size = store.quantized().of(view).size;
  if (shards.size() > 1 && size > 0)
    received_ = Buffer(DType::kI32, {shards.size() - 1, size / shards.size()}, context.device());
  if (!crossed_.empty())
    joined_ = Buffer(DType::kI32, {tensor.size(), joined_count(crossed_)}, context.device());
}

std::int64_t QuantizedRefresh::buffer_bytes(const std::vector<ParamMeta>& params,
                                            const ParamDistribution& distribution) {
  const QuantizedLayout layout(params, distribution);
  std::int64_t words = 0;
  for (const MeshView view : kMeshViews) {
    const Distribution& ranks = distribution.of(view);
    const std::int64_t part = layout.of(view).size / ranks.shard.extent;
    words += part * (ranks.shard.extent - 1) +
             ranks.tensor.extent * joined_count(crossed_by(params, layout, distribution, view));
  }
  return 4 * words;
}

QuantizedRefresh::Sent QuantizedRefresh::bytes_sent(const std::vector<ParamMeta>& params,
                                                    const ParamDistribution& distribution,
                                                    MeshView view) {
  const QuantizedLayout layout(params, distribution);
  const int shards = distribution.of(view).shard.extent,
            tensor = distribution.of(view).tensor.extent;
  const std::int64_t joined = 4 * joined_count(crossed_by(params, layout, distribution, view));
  return {joined_maxima_bytes_sent(layout.of(view).size, shards),
          tensor == 1 ? 0 : one_way_bytes_sent(joined * tensor, tensor)};
}

ScaleDim QuantizedRefresh::owned_rows(ParamIndex index) const {
  const Slice owned = store_.layout(WeightForm::kFp8).owned(index);
  return store_.quantized().dims(index).rows.slice(owned.begin, owned.size);
}

TensorView QuantizedRefresh::largest_of(ParamIndex index) const {
  const QuantizedDims& dims = store_.quantized().dims(index);
  const std::int64_t row = dims.columns.blocks();
  const std::int64_t first = dims.rows.block_of(store_.layout(WeightForm::kFp8).owned(index).begin);
  const std::int64_t blocks = owned_rows(index).blocks();
  return store_.largest()
      .rows(store_.quantized().offset(index) + first * row, blocks * row)
      .reshape({blocks, row});
}

TensorView QuantizedRefresh::largest() const {
  const Slice own = store_.quantized().of(view_);
  return store_.largest().rows(own.begin, own.size);
}

void QuantizedRefresh::run() {
  run([this](ParamIndex index) { return store_.value(index); });
}

void QuantizedRefresh::run(const std::function<TensorView(ParamIndex)>& value_of) {
  const Slice own = store_.quantized().of(view_);
  if (own.size == 0) return;
  clear(context_, largest());
  const auto for_each_owned = [&](const auto& f) {
    for (const ParamIndex index : store_.quantized().params()) {
      const bool of_view = store_.params()[static_cast<std::size_t>(index)].view == view_;
      if (of_view && store_.codes(index).count() > 0) f(index);
    }
  };
  for_each_owned([&](ParamIndex index) {
    absolute_max(context_, largest_of(index), value_of(index), owned_rows(index),
                 store_.quantized().dims(index).columns);
  });
  if (shards_.size() > 1) join_maxima_of_ranks(context_, shards_, largest(), received_.view());
  if (!crossed_.empty()) join_tensor();
  scales_of(context_, store_.scales().rows(own.begin, own.size), largest(), DType::kF8E4M3);
  for_each_owned([&](ParamIndex index) {
    Quantize args;
    args.out = {
        store_.codes(index), {}, owned_rows(index), store_.quantized().dims(index).columns, false};
    args.x = value_of(index);
    args.amax = largest_of(index);
    quantize(context_, args);
  });
  store_.codes_changed();
}

template <class F>
void QuantizedRefresh::for_each_part(const Crossed& of, TensorView joined, const F& f) const {
  const QuantizedDims& dims = store_.quantized().dims(of.index);
  const HeadsView global = heads_of(
      joined.rows(of.begin, of.rows * of.columns).reshape({of.rows, of.columns}), 0, of.columns, 1);
  const std::int64_t columns = dims.columns.blocks(), rows = dims.rows.blocks();
  const HeadsView local = heads_of(store_.largest()
                                       .rows(store_.quantized().offset(of.index), rows * columns)
                                       .reshape({rows, columns}),
                                   0, columns, 1);
  const auto box = [](const HeadsView& view, std::int64_t row, std::int64_t rows_count,
                      std::int64_t column, std::int64_t count) {
    HeadsView part = view.rows(row, rows_count);
    part.data += static_cast<std::size_t>(column) * size_of(view.dtype);
    part.heads = count;
    return part;
  };
  dims.rows.each_span([&](const ScaleDim::Span& r) {
    dims.columns.each_span([&](const ScaleDim::Span& c) {
      f(box(global, r.global, r.count, c.global, c.count),
        box(local, r.local, r.count, c.local, c.count));
    });
  });
}

void QuantizedRefresh::join_tensor() {
  const std::int64_t ranks = tensor_.size();
  const std::int64_t count = joined_.view().shape[1];
  const auto of_rank = [&](std::int64_t rank) {
    return joined_.view().rows(rank, 1).reshape({count});
  };
  const TensorView mine = of_rank(tensor_.rank());
  clear(context_, mine);
  for (const Crossed& of : crossed_) {
    for_each_part(of, mine, [&](const HeadsView& global, const HeadsView& local) {
      copy_heads(context_, global, local);
    });
  }
  tensor_.start_all_gather(joined_.view().reshape({ranks * count})).wait();
  join_maxima(context_, mine, joined_.view());
  for (const Crossed& of : crossed_) {
    for_each_part(of, mine, [&](const HeadsView& global, const HeadsView& local) {
      copy_heads(context_, local, global);
    });
  }
}

}  // namespace trireme
