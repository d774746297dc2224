#include "store/param_store.h"

#include <algorithm>

#include "base/math.h"
#include "base/random.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

/// Elements of a store's memory besides gradients, for allocation and plan alike.
struct Sizes {
  std::int64_t values = 0;
  std::array<std::int64_t, kWeightForms.size()> weights{};  ///< of each form, beside the values
};

std::int64_t whole_or_owned(bool whole, const StoreLayout& of) {
  return whole ? of.valued_local_size() : of.valued_shard_size();
}

std::int64_t size_of_state(const StoreLayout& layout) {
  return whole_or_owned(!layout.sharded(), layout);
}

template <class LayoutOf>
Sizes sizes_of(const StoreLayout& layout, const LayoutOf& layout_of, bool apart) {
  const int stage = layout.zero_stage();
  Sizes sizes;
  // Where the values are the weights, stages 1 and 2 hold them whole.
  sizes.values = whole_or_owned(stage == 0 || (!apart && stage < 3), layout);
  for (const WeightForm form : kWeightForms) {
    if (apart || is_coded(form))
      sizes.weights[static_cast<std::size_t>(form)] = whole_or_owned(stage < 3, layout_of(form));
  }
  return sizes;
}

bool stand_apart(DType compute, const StoreContents& contents) {
  return compute == DType::kBF16 || contents.weights_apart;
}

/// In fp32 every parameter is read in that type: the values, unless weights stand apart.
std::vector<ParamMeta> as_computed(std::vector<ParamMeta> params, DType compute,
                                   const StoreContents& contents) {
  const bool apart = stand_apart(compute, contents);
  for (ParamMeta& param : params) {
    param.in_f32 = param.in_f32 && compute == DType::kBF16;
    param.in_values = !param.base || (!apart && !param.nf4);
  }
  return params;
}

TensorView part(const TensorView& flat, std::int64_t begin, Shape shape) {
  expect(flat.given(), "a kind of memory that this store does not hold");
  return {flat.data + static_cast<std::size_t>(begin) * size_of(flat.dtype), flat.dtype, shape};
}

}  // namespace

ParamStore::Forms ParamStore::make_forms(const std::vector<ParamMeta>& params,
                                         const ParamDistribution& distribution) {
  const auto make = [&](WeightForm form) {
    return Form{StoreLayout(params, distribution, StoreLayout::of_form(form)), {}, {}};
  };
  return {make(WeightForm::kCompute), make(WeightForm::kFp8), make(WeightForm::kF32),
          make(WeightForm::kNf4), make(WeightForm::kNf4Absmax)};
}

ParamStore::ParamStore(std::vector<ParamMeta> params, DType compute, StoreContents contents,
                       Device device, const ParamDistribution& distribution)
    : params_(as_computed(std::move(params), compute, contents)),
      compute_(compute),
      device_(device),
      contents_(std::move(contents)),
      layout_(params_, distribution),
      trained_(params_, distribution, StoreLayout::Of::kGradients),
      forms_(make_forms(params_, distribution)),
      quantized_(params_, distribution) {
  const Sizes sizes = sizes_of(
      layout_, [&](WeightForm form) -> const StoreLayout& { return layout(form); }, apart());
  expect(compute == DType::kBF16 || quantized_.size() == 0, "fp8 weights of a model in {}",
         name_of(compute));
  const auto make = [&](std::int64_t count, DType dtype) {
    return count == 0 ? Buffer() : Buffer(dtype, {count}, device);
  };
  values_ = make(sizes.values, DType::kF32);
  for (const WeightForm form : kWeightForms) {
    const auto at = static_cast<std::size_t>(form);
    forms_[at].memory = make(sizes.weights[at], type_of(form));
    forms_[at].placed.resize(static_cast<std::size_t>(layout_.block_count()));
  }
  largest_ = make(quantized_.size(), DType::kI32);
  scales_ = make(quantized_.size(), DType::kF32);
  turned_scales_ = make(quantized_.size(), DType::kF32);
  turned_fresh_.resize(quantized_.turned().size());
  turned_blocks_.resize(static_cast<std::size_t>(layout_.block_count()));
  if (layout_.zero_stage() < 3) {
    turned_ = make(quantized_.turned_size(), DType::kF8E4M3);
    std::int64_t begin = 0;
    for (int block = 0; block < layout_.block_count(); ++block) {
      const std::int64_t size = quantized_.turned_size(block);
      if (size > 0) place_turned(block, turned_.view().rows(begin, size));
      begin += size;
    }
  }
  if (contents_.gradients) gradients_.emplace(params_, trained_, device);
  for (const OptimizerState& state : contents_.states) {
    std::vector<ParamMeta> of_state = params_of_state(params_, state, distribution);
    StoreLayout layout(of_state, distribution, StoreLayout::Of::kGradients);
    const std::int64_t size = size_of_state(layout);
    states_.push_back({std::move(of_state), std::move(layout), make(size, state.dtype)});
  }
}

std::int64_t ParamStore::element_count() const {
  std::int64_t count = 0;
  for (const ParamMeta& param : params_) {
    if (param.shares == kNoParam && param.tied_rank.index == 0) count += param.shape.count();
  }
  return count;
}

TensorView ParamStore::owned_part(const StoreLayout& layout, const Buffer& buffer, In in,
                                  ParamIndex index) {
  const Shape shape = layout.owned_shape(index);
  if (in == In::kShard) return part(buffer.view(), layout.shard_offset(index), shape);
  const Slice rows = layout.owned(index);
  return part(buffer.view(), layout.local_offset(index), layout.local_shape(index))
      .rows(rows.begin, rows.size);
}

ParamStore::In ParamStore::masters() const {
  const int stage = layout_.zero_stage();
  return stage == 0 || (!apart() && stage < 3) ? In::kLocal : In::kShard;
}

bool ParamStore::apart() const { return stand_apart(compute_, contents_); }

ParamStore::Lease::~Lease() {
  if (store_ != nullptr && store_->provider_ != nullptr) store_->provider_->release(block_);
}

TensorView ParamStore::leased(int block, WeightForm form, ParamIndex first,
                              const Shape& shape) const {
  const ParamMeta& param = params_.at(static_cast<std::size_t>(first));
  expect(param.block == block, "{} is not of block {}", param.name, block);
  expect(trireme::form_of(param) == (form == WeightForm::kNf4Absmax ? WeightForm::kNf4 : form),
         "{} in another form", param.name);
  const StoreLayout& layout = this->layout(form);
  const std::int64_t begin = layout.local_offset(first);
  if (layout.zero_stage() < 3) return part(weights(form), begin, shape);
  return part(form_of(form).placed[static_cast<std::size_t>(block)],
              begin - layout.local_block(block).begin, shape);
}

TensorView ParamStore::leased(int block, WeightForm form, ParamRange range) const {
  return leased(block, form, range.first, layout(form).fused_shape(range));
}

ConstNf4View ParamStore::Lease::nf4(ParamRange range) const {
  const StoreLayout& layout = store_->layout(WeightForm::kNf4);
  for (ParamIndex i = range.first; i < range.last; ++i) {
    const Shape& shape = layout.local_shape(i);
    expect(shape.count() % kNf4Block == 0, "{} stands before others and ends within a block",
           shape.text());
  }
  const Shape shape = layout.fused_shape(range);
  return Nf4View(
      store_->leased(block_, WeightForm::kNf4, range.first, nf4_codes_shape(shape)),
      store_->leased(block_, WeightForm::kNf4Absmax, range.first, nf4_absmax_shape(shape)), shape);
}

ConstTensorView ParamStore::Lease::weight(ParamRange range) const {
  const ParamMeta& first = store_->params_.at(static_cast<std::size_t>(range.first));
  return store_->leased(block_, first.in_f32 ? WeightForm::kF32 : WeightForm::kCompute, range);
}

ConstQuantizedView ParamStore::Lease::quantized(ParamRange range) const {
  const QuantizedLayout& layout = store_->quantized_;
  const QuantizedDims dims = layout.dims(range);
  const TensorView scales =
      part(store_->scales(), layout.offset(range.first), scales_shape(dims.rows, dims.columns));
  return QuantizedView(store_->leased(block_, WeightForm::kFp8, range), scales, dims.rows,
                       dims.columns, false);
}

ConstQuantizedView ParamStore::Lease::turned(Context& context, ParamRange range) const {
  const QuantizedLayout& layout = store_->quantized_;
  const std::size_t which = layout.turned_of(range.first);
  const QuantizedDims dims = layout.dims(range);
  const TensorView& block = store_->turned_blocks_[static_cast<std::size_t>(block_)];
  const QuantizedView out(
      part(block, layout.turned()[which].begin, codes_shape(dims.columns, dims.rows, true)),
      part(store_->turned_scales_.view(), layout.offset(range.first),
           scales_shape(dims.columns, dims.rows)),
      dims.columns, dims.rows, true);
  char& fresh = store_->turned_fresh_[which];
  if (fresh == 0) reorder(context, out, quantized(range), Transpose::kYes);
  fresh = 1;
  return out;
}

namespace {

/// `first` of `count` that lie behind each other.
ConstQuantizedMatrices matrices_from(const ConstQuantizedView& first, std::int64_t count) {
  const Shape &codes = first.codes.shape, &scales = first.scales.shape;
  return {{first.codes.data, first.codes.dtype, {count, codes[0], codes[1]}},
          {first.scales.data, first.scales.dtype, {count, scales[0], scales[1]}},
          first.rows,
          first.columns,
          first.padded};
}

/// Matrix `index` of a range.
ParamRange matrix_of(ParamRange range, int each, std::int64_t index) {
  const ParamIndex first = range.first + static_cast<int>(index) * each;
  return {first, first + each - 1};
}

}  // namespace

ConstQuantizedMatrices ParamStore::Lease::quantized(ParamRange range, int each) const {
  return matrices_from(quantized(matrix_of(range, each, 0)), (range.last - range.first + 1) / each);
}

ConstQuantizedMatrices ParamStore::Lease::turned(Context& context, ParamRange range,
                                                 int each) const {
  const std::int64_t count = (range.last - range.first + 1) / each;
  for (std::int64_t i = 1; i < count; ++i)
    static_cast<void>(turned(context, matrix_of(range, each, i)));
  return matrices_from(turned(context, matrix_of(range, each, 0)), count);
}

void ParamStore::place_turned(int block, TensorView codes) {
  turned_blocks_.at(static_cast<std::size_t>(block)) = codes;
}

void ParamStore::codes_changed(int block) {
  for (std::size_t i = 0; i < turned_fresh_.size(); ++i)
    if (quantized_.turned()[i].block == block) turned_fresh_[i] = 0;
}

void ParamStore::codes_changed() { std::fill(turned_fresh_.begin(), turned_fresh_.end(), 0); }

ConstTensorView ParamStore::Lease::padded_weight(ParamIndex index) const {
  const ConstTensorView rows = weight(index);
  return {rows.data, rows.dtype, store_->layout_.padded_shape(index)};
}

ParamStore::Lease ParamStore::acquire(int block, int next) const {
  if (provider_ != nullptr) provider_->acquire(block, next);
  return {*this, block};
}

TensorView ParamStore::value(ParamIndex index) const {
  if (!params_[static_cast<std::size_t>(index)].in_values) return {nullptr, DType::kF32, {0}};
  return owned_part(layout_, values_, masters(), index);
}

TensorView ParamStore::owned_weight(WeightForm form, ParamIndex index) const {
  const Form& of = form_of(form);
  return owned_part(of.layout, of.memory, of.layout.zero_stage() < 3 ? In::kLocal : In::kShard,
                    index);
}

TensorView ParamStore::copy(ParamIndex index) const {
  if (!apart() || is_coded(trireme::form_of(params_[static_cast<std::size_t>(index)]))) return {};
  return owned_weight(trireme::form_of(params_[static_cast<std::size_t>(index)]), index);
}

TensorView ParamStore::codes(ParamIndex index) const {
  return owned_weight(WeightForm::kFp8, index);
}

TensorView ParamStore::optimizer_state(std::size_t slot, ParamIndex index) const {
  const StoredState& state = states_.at(slot);
  if (!state.layout.has_room(index)) return {nullptr, contents_.states[slot].dtype, {0}};
  return owned_part(state.layout, state.memory, state.layout.sharded() ? In::kShard : In::kLocal,
                    index);
}

TensorView ParamStore::optimizer_state(std::string_view name, ParamIndex index) const {
  for (std::size_t slot = 0; slot < states_.size(); ++slot) {
    if (contents_.states[slot].name == name && states_[slot].layout.has_room(index))
      return optimizer_state(slot, index);
  }
  throw InternalError("{} has no state {}", params_[static_cast<std::size_t>(index)].name, name);
}

TensorView ParamStore::block_weights(int block, WeightForm form) const {
  const Slice span = layout(form).local_block(block);
  return part(weights(form), span.begin, {span.size});
}

TensorView ParamStore::block_weight_shard(int block, MeshView view, WeightForm form) const {
  const Slice span = layout(form).shard_block(block, view);
  return part(weights(form), span.begin, {span.size});
}

void ParamStore::place_weights(int block, WeightForm form, TensorView weights) {
  forms_[static_cast<std::size_t>(form)].placed.at(static_cast<std::size_t>(block)) = weights;
}

void ParamStore::clear_padding(Context& context, int block) {
  const ParamRange range = layout_.block_params(block);
  for (ParamIndex i = range.first; i <= range.last; ++i) {
    const std::int64_t rows = layout_.local_shape(i)[0], all = layout_.padded_shape(i)[0];
    if (all == rows) continue;
    TensorView weights = leased(block, WeightForm::kCompute, {i, i});  // no other form has padding
    weights.shape.set(0, all);
    clear(context, weights.rows(rows, all - rows));
  }
}

void ParamStore::make_values(float* values, ParamIndex index, std::uint64_t key,
                             const CutPart& part) const {
  constexpr std::int64_t kBlock = 1 << 14;
  const ParamMeta& param = params_[static_cast<std::size_t>(index)];
  const Shape local = (param.base ? base_layout(index) : layout_).owned_shape(index);
  const bool matrix = param.shape.rank() == 2;
  const std::int64_t global_row = matrix ? param.shape[1] : 1;
  const std::int64_t local_row = matrix ? local[1] : 1;
  const std::int64_t width = matrix ? part.box.shape[1] : 1;
  const std::int64_t first_column = matrix ? part.box.offset[1] : 0;
  const std::int64_t at_column = matrix ? part.at[1] : 0;
  // Where rows are whole, all of them are one run.
  const bool one_run = width == global_row && width == local_row;
  const std::int64_t runs = one_run ? 1 : part.box.shape[0];
  const std::int64_t run = one_run ? part.box.shape[0] * width : width;
  const std::int64_t blocks = ceil_div(run, kBlock);
#pragma omp parallel for schedule(static) if (runs * run > kBlock)
  for (std::int64_t i = 0; i < runs * blocks; ++i) {
    const std::int64_t row = i / blocks, begin = i % blocks * kBlock;
    const auto first =
        static_cast<std::uint64_t>((part.box.offset[0] + row) * global_row + first_column + begin);
    const std::span<float> block(values + (part.at[0] + row) * local_row + at_column + begin,
                                 static_cast<std::size_t>(std::min(kBlock, run - begin)));
    switch (param.init.kind) {
      case InitKind::kZeros:
        std::fill(block.begin(), block.end(), 0.0F);
        break;
      case InitKind::kOnes:
        std::fill(block.begin(), block.end(), 1.0F);
        break;
      case InitKind::kNormal:
        fill_normal(key, first, param.init.std, block);
        break;
      case InitKind::kUniform:
        fill_uniform(key, first, param.init.std, block);
        break;
    }
  }
}

namespace {

/// `to` = what stands on the host, rounded where it is not fp32.
void bring(Context& context, TensorView to, const TensorView& host) {
  const std::span<const std::byte> bytes(host.data, host.bytes());
  if (to.dtype == DType::kF32) return copy_in(context, to, bytes);
  if (!context.on_gpu()) return cast(context, to, host);
  const Buffer staging(DType::kF32, host.shape, context.device());
  copy_in(context, staging.view(), bytes);
  cast(context, to, staging.view());
}

}  // namespace

void ParamStore::initialise(Context& context, std::uint64_t seed) {
  for (ParamIndex index = 0; index < static_cast<int>(params_.size()); ++index) {
    const ParamMeta& param = params_[static_cast<std::size_t>(index)];
    if (!has_value(index) || param.nf4) continue;
    const TensorView owned = param.base ? base_rows(index) : value(index);
    if (owned.count() == 0 || owned.dtype == DType::kF8E4M3) continue;
    const bool rounded = owned.dtype != DType::kF32;
    Buffer staging;
    if (context.on_gpu() || rounded) staging = Buffer(DType::kF32, owned.shape);
    const StoreLayout& layout = param.base ? base_layout(index) : layout_;
    const TensorView made = staging.view().given() ? staging.view() : owned;
    const auto parts =
        rows_of_parts(local_parts(param.shape, param.cut, layout.distribution(index).tensor),
                      layout.owned(index));
    for (const CutPart& part : parts)
      make_values(made.as<float>(), index, stream_key(seed, param.name), part);
    if (staging.view().given()) bring(context, owned, made);
  }
}

void ParamStore::refresh_copies(Context& context) {
  if (!apart()) return;
  for (ParamIndex i = 0; i < static_cast<int>(params_.size()); ++i) {
    if (has_value(i) && !quantized_.has(i) && value(i).count() > 0)
      cast(context, copy(i), value(i));
  }
}

const StoreLayout& ParamStore::base_layout(ParamIndex index) const {
  const ParamMeta& param = params_[static_cast<std::size_t>(index)];
  return param.in_values ? layout_ : layout(trireme::form_of(param));
}

TensorView ParamStore::base_rows(ParamIndex index) const {
  const ParamMeta& param = params_[static_cast<std::size_t>(index)];
  expect(!param.nf4, "{} has no rows but codes in NF4", param.name);
  return param.in_values ? value(index) : owned_weight(trireme::form_of(param), index);
}

Nf4View ParamStore::base_nf4(ParamIndex index) const {
  const Shape shape = base_shape(index);
  const auto owned = [&](WeightForm form, const Shape& of) {
    const StoreLayout& layout = this->layout(form);
    return part(weights(form),
                layout.zero_stage() < 3 ? layout.local_offset(index) : layout.shard_offset(index),
                of);
  };
  return {owned(WeightForm::kNf4, nf4_codes_shape(shape)),
          owned(WeightForm::kNf4Absmax, nf4_absmax_shape(shape)), shape};
}

ParamStore::Bytes ParamStore::bytes_of(const std::vector<ParamMeta>& declared, DType compute,
                                       const StoreContents& contents,
                                       const ParamDistribution& distribution) {
  using Of = StoreLayout::Of;
  const std::vector<ParamMeta> params = as_computed(declared, compute, contents);
  const auto layout_of = [&](Of of) { return StoreLayout(params, distribution, of); };
  const Sizes sizes = sizes_of(
      layout_of(Of::kValues),
      [&](WeightForm form) { return layout_of(StoreLayout::of_form(form)); },
      stand_apart(compute, contents));
  const QuantizedLayout quantized(params, distribution);
  Bytes bytes;
  bytes.parameters = 4 * sizes.values + 12 * quantized.size();
  for (const WeightForm form : kWeightForms) {
    bytes.parameters += static_cast<std::int64_t>(size_of(trireme::type_of(form, compute))) *
                        sizes.weights[static_cast<std::size_t>(form)];
  }
  if (distribution.zero_stage < 3) bytes.parameters += quantized.turned_size();
  if (contents.gradients) bytes.gradients = Gradients::bytes_of(params, layout_of(Of::kGradients));
  for (const OptimizerState& state : contents.states) {
    bytes.optimizer += static_cast<std::int64_t>(size_of(state.dtype)) *
                       size_of_state(state_layout(params, state, distribution));
  }
  return bytes;
}

}  // namespace trireme
