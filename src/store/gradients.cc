#include "store/gradients.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"

namespace trireme {

namespace {

/// Elements of each kind of memory. One function, so that the plan's figure is the allocation.
struct Sizes {
  std::int64_t memory = 0, block = 0, tied = 0;
  std::int64_t looked_up_most = 0;
};

Sizes sizes_of(const std::vector<ParamMeta>& params, const StoreLayout& layout) {
  Sizes sizes;
  if (!params.empty()) sizes.looked_up_most = params.front().looked_up_most;
  if (layout.distribution().accumulates_locally()) {
    sizes.memory = layout.local_size() - layout.whole_gradients_begin();
    return sizes;
  }
  const bool alone = std::any_of(params.begin(), params.end(),
                                 [](const ParamMeta& param) { return param.reduced_alone; });
  sizes.memory = alone ? layout.shard_size() : layout.valued_shard_size();
  if (!alone) sizes.tied = layout.local_size() - layout.valued_local_size();
  sizes.block = layout.largest_block([&](int block) { return block < layout.valued_blocks(); });
  return sizes;
}

TensorView part(const TensorView& flat, std::int64_t begin, Shape shape) {
  expect(flat.given(), "a kind of gradients that is not held here");
  return {flat.data + static_cast<std::size_t>(begin) * size_of(flat.dtype), flat.dtype, shape};
}

/// What has a gradient and no value, a tied head, comes last (StoreLayout).
ParamIndex first_without_value(const StoreLayout& layout) {
  const int blocks = layout.valued_blocks();
  return blocks == 0 ? 0 : layout.block_params(blocks - 1).last + 1;
}

}  // namespace

Gradients::Gradients(const std::vector<ParamMeta>& params, const StoreLayout& layout, Device device)
    : params_(params), layout_(layout), written_(static_cast<std::size_t>(layout.block_count())) {
  const Sizes sizes = sizes_of(params, layout);
  const auto make = [&](std::int64_t count) {
    return count == 0 ? Buffer() : Buffer(DType::kF32, {count}, device);
  };
  memory_ = make(sizes.memory);
  block_ = make(sizes.block);
  tied_ = make(sizes.tied);
  if (sizes.looked_up_most == 0) return;
  expect(device.kind == DeviceKind::kCpu, "gradients in rows are of a CPU");
  const Shape& embedding = layout.local_shape(0);
  rows_.emplace(embedding[0], embedding[1], sizes.looked_up_most);
}

std::int64_t Gradients::bytes_of(const std::vector<ParamMeta>& params, const StoreLayout& layout) {
  const Sizes sizes = sizes_of(params, layout);
  std::int64_t bytes =
      static_cast<std::int64_t>(sizeof(float)) * (sizes.memory + sizes.block + sizes.tied);
  if (sizes.looked_up_most > 0) {
    const Shape& embedding = layout.local_shape(0);
    bytes += RowGradient::bytes_of(embedding[0], embedding[1], sizes.looked_up_most);
  }
  return bytes;
}

void Gradients::clear_sums(Context& context, ParamRange range) {
  for (ParamIndex i = range.first; i <= range.last; ++i)
    if (!param(i).set_by_product && !in_rows(i) && param(i).trainable) clear(context, sum(i));
}

void Gradients::begin_step(Context& context) {
  open_block_ = -1;
  std::fill(written_.begin(), written_.end(), 0);
  if (!accumulates()) return;
  if (rows_) rows_->clear(context);
  clear_sums(context, {0, static_cast<ParamIndex>(params_.size()) - 1});
}

void Gradients::open(Context& context, int block) {
  if (accumulates() || block == open_block_) return;
  open_block_ = block;
  clear_sums(context, layout_.block_params(block));
}

TensorView Gradients::sum(ParamRange range) const {
  if (!param(range.first).trainable) return {};
  if (accumulates()) {
    expect(!in_rows(range.first), "the gradient of {} is held as rows", params_.front().name);
    return part(memory_.view(), layout_.local_offset(range.first) - layout_.whole_gradients_begin(),
                layout_.fused_shape(range));
  }
  if (waits_for_owner(range.first)) {
    return part(tied_.view(), layout_.local_offset(range.first) - layout_.valued_local_size(),
                layout_.fused_shape(range));
  }
  expect(param(range.first).block == open_block_, "a gradient of {} while block {} is open",
         param(range.first).name, open_block_);
  return part(block_.view(),
              layout_.local_offset(range.first) - layout_.local_block(open_block_).begin,
              layout_.fused_shape(range));
}

Gradients::Product Gradients::product(ParamRange range) const {
  const bool adds =
      accumulates() && written_[static_cast<std::size_t>(param(range.first).block)] != 0;
  return {sum(range), adds ? Accumulate::kYes : Accumulate::kNo};
}

Gradients::Product Gradients::padded_product(ParamIndex index) const {
  Product product = this->product({index, index});
  if (product.gradient.given()) product.gradient.shape = layout_.padded_shape(index);
  return product;
}

void Gradients::add_looked_up(Context& context, ParamIndex embedding, ConstTensorView ids_T,
                              ConstTensorView dout_TC, std::int64_t first_row,
                              std::int64_t vocabulary) {
  if (!param(embedding).trainable) return;
  if (in_rows(embedding)) return rows_->add(context, ids_T, dout_TC, first_row, vocabulary);
  embedding_backward(context, sum(embedding), ids_T, dout_TC, first_row, vocabulary);
}

void Gradients::close(Context& context, int block, bool last) {
  char& written = written_[static_cast<std::size_t>(block)];
  if (first_ && written == 0 && (accumulates() || block == open_block_)) first_(block);
  written = 1;
  const ParamRange range = layout_.block_params(block);
  if (waits_for_owner(range.first)) return;
  if (accumulates() ? !last : block != open_block_) return;
  for (ParamIndex i = first_without_value(layout_); i < static_cast<int>(params_.size()); ++i) {
    if (waits_for_owner(i) && param(i).trainable && param(param(i).shares).block == block)
      accumulate(context, sum(param(i).shares), sum(i));
  }
  if (complete_) complete_(block);
  open_block_ = -1;
}

TensorView Gradients::owned(ParamIndex index) const {
  if (in_rows(index)) return rows_->table();
  if (!param(index).trainable)
    return {memory_.view().data, DType::kF32, layout_.owned_shape(index)};
  if (!accumulates())
    return part(memory_.view(), layout_.shard_offset(index), layout_.owned_shape(index));
  const Slice rows = layout_.owned(index);
  return sum(index).rows(rows.begin, rows.size);
}

ConstTensorView Gradients::slots(ParamIndex index) const {
  return in_rows(index) ? rows_->slots() : ConstTensorView();
}

TensorView Gradients::counted(ParamIndex index) const {
  if (param(index).shares != kNoParam || param(index).tied_rank.index > 0) {
    Shape nothing = layout_.owned_shape(index);  // it is counted with the owner's
    nothing.set(0, 0);
    return {memory_.view().data, DType::kF32, nothing};
  }
  const TensorView mine = in_rows(index) ? rows_->looked_up() : owned(index);
  const Slice rows = counted_rows(index, mine.shape[0]);
  return mine.rows(rows.begin, rows.size);
}

Slice Gradients::counted_rows(ParamIndex index, std::int64_t rows) const {
  if (param(index).shares != kNoParam || param(index).tied_rank.index > 0) return {0, 0};
  const Distribution& ranks = layout_.distribution(index);
  const int same_part = param(index).cut.replicas(ranks.tensor.extent);
  return even_slice(rows, same_part * ranks.replica.extent,
                    ranks.tensor.index % same_part * ranks.replica.extent + ranks.replica.index);
}

ConstTensorView Gradients::written(ParamIndex index) const {
  if (!param(index).trainable) return owned(index);
  return in_rows(index) ? rows_->looked_up() : sum(index);
}

TensorView Gradients::block(int block) const {
  if (!accumulates()) {
    expect(block == open_block_, "the gradients of block {} while {} is open", block, open_block_);
    return part(block_.view(), 0, {layout_.local_block(block).size});
  }
  const Slice span = layout_.whole_gradients(block);
  return part(memory_.view(), span.begin - layout_.whole_gradients_begin(), {span.size});
}

TensorView Gradients::block(int block, MeshView view) const {
  const Slice all = layout_.whole_gradients(block), span = layout_.whole_gradients(block, view);
  if (span.size == 0) return this->block(block).rows(0, 0);
  return this->block(block).rows(span.begin - all.begin, span.size);
}

TensorView Gradients::block_shard(int block, MeshView view) const {
  const Slice span = layout_.shard_block(block, view);
  return part(memory_.view(), span.begin, {span.size});
}

void Gradients::add_tied_sums(Context& context) {
  for (ParamIndex i = first_without_value(layout_); i < static_cast<int>(params_.size()); ++i) {
    if (accumulates() || !param(i).reduced_alone || owned(i).count() == 0) continue;
    accumulate(context, owned(param(i).shares), owned(i));
  }
}

}  // namespace trireme
