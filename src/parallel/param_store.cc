#include "parallel/param_store.h"

#include <algorithm>

#include "base/math.h"
#include "base/random.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "parallel/state_boxes.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

/// Elements of each kind of memory that a store has, and the sides of the gradient that is held as
/// rows. One function, so that the plan's figure is the allocation.
struct Sizes {
  std::int64_t values = 0, forms = 0, gradients = 0, block_gradient = 0, shared_gradient = 0,
               moments = 0;
  Shape row_gradient = {0, 0};
  std::int64_t looked_up_most = 0;
};

Sizes sizes_of(const std::vector<ParamMeta>& params, const StoreLayout& layout, DType compute,
               StorePurpose purpose) {
  const int stage = layout.place().zero_stage;
  const std::int64_t local = layout.valued_local_size(), shard = layout.valued_shard_size();
  const bool rounded = compute == DType::kBF16;
  Sizes sizes;
  // In fp32 the values are the weights, so that stages 1 and 2 hold them whole.
  sizes.values = stage == 0 || (!rounded && stage < 3) ? local : shard;
  if (rounded) sizes.forms = stage < 3 ? local : shard;
  if (purpose == StorePurpose::kInference) return sizes;
  const bool alone = std::any_of(params.begin(), params.end(),
                                 [](const ParamMeta& param) { return param.leaves_alone; });
  sizes.gradients = stage < 2 ? layout.local_size() - layout.whole_gradients_begin()
                    : alone   ? layout.shard_size()
                              : layout.valued_shard_size();
  if (stage >= 2 && !alone)
    sizes.shared_gradient = layout.local_size() - layout.valued_local_size();
  if (stage >= 2)
    sizes.block_gradient =
        layout.largest_block([&](int block) { return block < layout.valued_blocks(); });
  sizes.moments = stage == 0 ? local : shard;
  if (!params.empty() && params.front().looked_up_most > 0) {
    sizes.row_gradient = layout.local_shape(0);
    sizes.looked_up_most = params.front().looked_up_most;
  }
  return sizes;
}

TensorView part(const TensorView& flat, std::int64_t begin, Shape shape) {
  expect(flat.given(), "a kind of memory that this store does not hold");
  return {flat.data + static_cast<std::size_t>(begin) * size_of(flat.dtype), flat.dtype, shape};
}

}  // namespace

ParamStore::ParamStore(std::vector<ParamMeta> params, DType compute, StorePurpose purpose,
                       Device device, const StorePlace& place)
    : params_(std::move(params)),
      compute_(compute),
      purpose_(purpose),
      layout_(params_, place),
      placed_(static_cast<std::size_t>(layout_.block_count())) {
  const Sizes sizes = sizes_of(params_, layout_, compute, purpose);
  const auto make = [&](std::int64_t count, DType dtype = DType::kF32) {
    return count == 0 ? Buffer() : Buffer(dtype, {count}, device);
  };
  values_ = make(sizes.values);
  forms_ = make(sizes.forms, DType::kBF16);
  gradients_ = make(sizes.gradients);
  block_gradient_ = make(sizes.block_gradient);
  shared_gradient_ = make(sizes.shared_gradient);
  exp_avg_ = make(sizes.moments);
  exp_avg_sq_ = make(sizes.moments);
  if (sizes.looked_up_most == 0) return;
  expect(device.kind == DeviceKind::kCpu, "gradients in rows are of a CPU");
  row_gradient_.emplace(sizes.row_gradient[0], sizes.row_gradient[1], sizes.looked_up_most);
}

std::int64_t ParamStore::element_count() const {
  std::int64_t count = 0;
  for (const ParamMeta& param : params_) {
    if (param.shares == kNoParam && param.home.index == 0) count += param.shape.count();
  }
  return count;
}

TensorView ParamStore::local_part(const TensorView& flat, std::int64_t origin,
                                  ParamRange range) const {
  expect(
      range.given() && range.first <= range.last && range.last < static_cast<int>(params_.size()),
      "parameters {}..{} of {}", range.first, range.last, params_.size());
  Shape shape = layout_.local_shape(range.first);
  for (ParamIndex i = range.first + 1; i <= range.last; ++i) {
    const ParamMeta& param = params_[static_cast<std::size_t>(i)];
    expect(param.fuse == Fuse::kWithPrevious, "{} does not stand behind {}", param.name,
           params_[static_cast<std::size_t>(i) - 1].name);
    shape.set(0, shape[0] + layout_.local_shape(i)[0]);
  }
  return part(flat, layout_.local_offset(range.first) - origin, shape);
}

TensorView ParamStore::owned_part(const Buffer& buffer, In in, ParamIndex index) const {
  const Shape shape = layout_.owned_shape(index);
  if (in == In::kShard) return part(buffer.view(), layout_.shard_offset(index), shape);
  const Piece rows = layout_.owned(index);
  return local_part(buffer.view(), 0, {index, index}).rows(rows.begin, rows.size);
}

ParamStore::In ParamStore::masters() const {
  const int stage = layout_.place().zero_stage;
  return stage == 0 || (compute_ == DType::kF32 && stage < 3) ? In::kLocal : In::kShard;
}

ParamStore::Lease::~Lease() {
  if (store_ != nullptr && store_->source_ != nullptr) store_->source_->release(block_);
}

ConstTensorView ParamStore::Lease::weight(ParamRange range) const {
  expect(store_->params_.at(static_cast<std::size_t>(range.first)).block == block_,
         "{} is not of block {}", store_->params_[static_cast<std::size_t>(range.first)].name,
         block_);
  if (store_->layout_.place().zero_stage == 3) {
    return store_->local_part(store_->placed_[static_cast<std::size_t>(block_)],
                              store_->layout_.local_block(block_).begin, range);
  }
  const Buffer& weights = store_->compute_ == DType::kBF16 ? store_->forms_ : store_->values_;
  return store_->local_part(weights.view(), 0, range);
}

ConstTensorView ParamStore::Lease::padded_weight(ParamIndex index) const {
  const ConstTensorView rows = weight(index);
  return {rows.data, rows.dtype, store_->layout_.padded_shape(index)};
}

ParamStore::Lease ParamStore::acquire(int block, int next) const {
  if (source_ != nullptr) source_->acquire(block, next);
  return {*this, block};
}

TensorView ParamStore::value(ParamIndex index) const {
  return owned_part(values_, masters(), index);
}

TensorView ParamStore::form(ParamIndex index) const {
  if (compute_ != DType::kBF16) return {};
  return owned_part(forms_, layout_.place().zero_stage < 3 ? In::kLocal : In::kShard, index);
}

TensorView ParamStore::owned_gradient(ParamIndex index) const {
  if (in_rows(index)) return row_gradient_->table();
  if (!keeps_gradients()) return owned_part(gradients_, In::kShard, index);
  const Piece rows = layout_.owned(index);
  return kept_gradient({index, index}).rows(rows.begin, rows.size);
}

ConstTensorView ParamStore::gradient_slots(ParamIndex index) const {
  return in_rows(index) ? row_gradient_->slots() : ConstTensorView();
}

TensorView ParamStore::kept_gradient(ParamRange range) const {
  expect(!in_rows(range.first), "the gradient of {} is held as rows", params_.front().name);
  return local_part(gradients_.view(), layout_.whole_gradients_begin(), range);
}

TensorView ParamStore::exp_avg(ParamIndex index) const {
  return owned_part(exp_avg_, layout_.sharded() ? In::kShard : In::kLocal, index);
}

TensorView ParamStore::exp_avg_sq(ParamIndex index) const {
  return owned_part(exp_avg_sq_, layout_.sharded() ? In::kShard : In::kLocal, index);
}

TensorView ParamStore::counted_gradient(ParamIndex index) const {
  const StorePlace& place = layout_.place();
  const int same_part = params_[static_cast<std::size_t>(index)].cut.copies(place.tensor.extent);
  if (!has_value(index) || params_[static_cast<std::size_t>(index)].home.index > 0) {
    Shape nothing = layout_.owned_shape(index);  // it is counted with the owner's
    nothing.set(0, 0);
    return {gradients_.view().data, DType::kF32, nothing};
  }
  const TensorView owned = in_rows(index) ? row_gradient_->looked_up() : owned_gradient(index);
  const Piece rows =
      even_piece(owned.shape[0], same_part * place.copy.extent,
                 place.tensor.index % same_part * place.copy.extent + place.copy.index);
  return owned.rows(rows.begin, rows.size);
}

TensorView ParamStore::gradient(ParamRange range) const {
  if (keeps_gradients()) return kept_gradient(range);
  if (waits_for_owner(range.first))
    return local_part(shared_gradient_.view(), layout_.valued_local_size(), range);
  const ParamMeta& param = params_.at(static_cast<std::size_t>(range.first));
  expect(param.block == open_block_, "a gradient of {} while block {} is open", param.name,
         open_block_);
  return local_part(block_gradient_.view(), layout_.local_block(open_block_).begin, range);
}

TensorView ParamStore::padded_gradient(ParamIndex index) const {
  const TensorView rows = gradient(index);
  return {rows.data, rows.dtype, layout_.padded_shape(index)};
}

void ParamStore::add_looked_up(Context& context, ParamIndex embedding, ConstTensorView ids_T,
                               ConstTensorView dout_TC, std::int64_t first_row,
                               std::int64_t vocabulary) {
  if (in_rows(embedding)) return row_gradient_->add(context, ids_T, dout_TC, first_row, vocabulary);
  embedding_backward(context, gradient(embedding), ids_T, dout_TC, first_row, vocabulary);
}

ConstTensorView ParamStore::written_gradient(ParamIndex index) const {
  return in_rows(index) ? row_gradient_->looked_up() : gradient(index);
}

void ParamStore::open_gradients(Context& context, int block) {
  if (keeps_gradients() || block == open_block_) return;
  open_block_ = block;
  const ParamRange range = layout_.block_params(block);
  for (ParamIndex i = range.first; i <= range.last; ++i) {
    if (!params_[static_cast<std::size_t>(i)].set_by_product) clear(context, gradient(i));
  }
}

void ParamStore::clear_gradients(Context& context) {
  open_block_ = -1;
  if (!keeps_gradients()) return;
  if (row_gradient_) row_gradient_->clear(context);
  for (ParamIndex i = row_gradient_ ? 1 : 0; i < static_cast<int>(params_.size()); ++i) {
    if (!params_[static_cast<std::size_t>(i)].set_by_product) clear(context, gradient(i));
  }
}

void ParamStore::add_tied_gradients(Context& context) {
  for (ParamIndex i = 0; i < static_cast<int>(params_.size()); ++i) {
    if (keeps_gradients() ? has_value(i) : !waits_for_owner(i)) continue;
    accumulate(context, gradient(params_[static_cast<std::size_t>(i)].shares), gradient(i));
  }
}

void ParamStore::add_tied_sums(Context& context) {
  for (ParamIndex i = 0; i < static_cast<int>(params_.size()); ++i) {
    if (keeps_gradients() || has_value(i) || waits_for_owner(i)) continue;
    if (owned_gradient(i).count() == 0) continue;
    accumulate(context, owned_gradient(params_[static_cast<std::size_t>(i)].shares),
               owned_gradient(i));
  }
}

TensorView ParamStore::block_gradients(int block) const {
  if (keeps_gradients()) {
    const Piece span = layout_.whole_gradients(block);
    return part(gradients_.view(), span.begin - layout_.whole_gradients_begin(), {span.size});
  }
  const Piece span = layout_.local_block(block);
  expect(block == open_block_, "the gradients of block {} while {} is open", block, open_block_);
  return part(block_gradient_.view(), 0, {span.size});
}

TensorView ParamStore::block_gradient_shard(int block) const {
  const Piece span = layout_.shard_block(block);
  return part(gradients_.view(), span.begin, {span.size});
}

TensorView ParamStore::block_weights(int block) const {
  const Piece span = layout_.local_block(block);
  return part((compute_ == DType::kBF16 ? forms_ : values_).view(), span.begin, {span.size});
}

TensorView ParamStore::block_weight_shard(int block) const {
  const Piece span = layout_.shard_block(block);
  return part((compute_ == DType::kBF16 ? forms_ : values_).view(), span.begin, {span.size});
}

void ParamStore::place_weights(int block, TensorView weights) {
  placed_.at(static_cast<std::size_t>(block)) = weights;
}

void ParamStore::clear_padding(Context& context, int block) {
  const ParamRange range = layout_.block_params(block);
  for (ParamIndex i = range.first; i <= range.last; ++i) {
    const std::int64_t rows = layout_.local_shape(i)[0], all = layout_.padded_shape(i)[0];
    if (all == rows) continue;
    TensorView weights = local_part(placed_[static_cast<std::size_t>(block)],
                                    layout_.local_block(block).begin, {i, i});
    weights.shape.set(0, all);
    clear(context, weights.rows(rows, all - rows));
  }
}

void ParamStore::make_values(float* values, ParamIndex index, std::uint64_t key,
                             const CutPart& part) const {
  constexpr std::int64_t kBlock = 1 << 14;
  const ParamMeta& param = params_[static_cast<std::size_t>(index)];
  const Shape local = layout_.owned_shape(index);
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
    }
  }
}

void ParamStore::initialise(Context& context, std::uint64_t seed) {
  for (ParamIndex index = 0; index < static_cast<int>(params_.size()); ++index) {
    if (!has_value(index)) continue;
    const ParamMeta& param = params_[static_cast<std::size_t>(index)];
    const TensorView owned = value(index);
    if (owned.count() == 0) continue;
    Buffer staging;
    if (context.on_gpu()) staging = Buffer(DType::kF32, owned.shape);
    float* values = (context.on_gpu() ? staging.view() : owned).as<float>();
    const auto parts = rows_of_parts(local_parts(param.shape, param.cut, layout_.place().tensor),
                                     layout_.owned(index));
    for (const CutPart& part : parts)
      make_values(values, index, stream_key(seed, param.name), part);
    if (context.on_gpu())
      copy_in(context, owned,
              std::as_bytes(std::span(values, static_cast<std::size_t>(owned.count()))));
  }
}

void ParamStore::refresh_forms(Context& context) {
  if (compute_ != DType::kBF16) return;
  for (ParamIndex i = 0; i < static_cast<int>(params_.size()); ++i) {
    if (has_value(i) && value(i).count() > 0) cast(context, form(i), value(i));
  }
}

namespace {

enum class Saved : std::uint8_t { kValue, kExpAvg, kExpAvgSq };

std::string saved_name(Saved what, const ParamMeta& param) {
  if (what == Saved::kValue) return "parameters/" + param.name;
  return fmt::format("optimizer/{}/exp_avg{}", param.name, what == Saved::kExpAvg ? "" : "_sq");
}

/// `data_of(what, index)`: the owned rows in memory, null where there is none.
template <class DataOf>
State state_of(const std::vector<ParamMeta>& params, const StoreLayout& layout,
               StorePurpose purpose, const DataOf& data_of) {
  const StorePlace& place = layout.place();
  State state;
  const auto add = [&](Saved what, ParamIndex index) {
    const ParamMeta& param = params[static_cast<std::size_t>(index)];
    if (param.shares != kNoParam) return;
    const int same_part = param.cut.copies(place.tensor.extent);
    const Shape owned = layout.owned_shape(index);
    const std::int64_t row = owned.count() == 0 ? 0 : owned.count() / owned[0];
    std::byte* data = data_of(what, index);
    const auto parts =
        rows_of_parts(local_parts(param.shape, param.cut, place.tensor), layout.owned(index));
    for (const CutPart& part : parts) {
      StateTensor tensor;
      tensor.name = saved_name(what, param);
      tensor.dtype = DType::kF32;
      tensor.global_shape = param.shape;
      tensor.box = part.box;
      const std::int64_t column = part.at.rank() == 2 ? part.at[1] : 0;
      if (data != nullptr)
        tensor.data = data + static_cast<std::size_t>(part.at[0] * row + column) * sizeof(float);
      tensor.row_stride = row;
      const int copies = same_part * place.copy.extent;
      tensor.replica = param.home.index * copies +
                       place.tensor.index % same_part * place.copy.extent + place.copy.index;
      tensor.replicas = param.home.extent * copies;
      state.tensors.push_back(std::move(tensor));
    }
  };
  const auto count = static_cast<int>(params.size());
  for (ParamIndex i = 0; i < count; ++i) add(Saved::kValue, i);
  if (purpose != StorePurpose::kTraining) return state;
  for (ParamIndex i = 0; i < count; ++i) {
    add(Saved::kExpAvg, i);
    add(Saved::kExpAvgSq, i);
  }
  return state;
}

}  // namespace

State ParamStore::state() const {
  return state_of(params_, layout_, purpose_, [this](Saved what, ParamIndex index) {
    const TensorView owned = what == Saved::kValue    ? value(index)
                             : what == Saved::kExpAvg ? exp_avg(index)
                                                      : exp_avg_sq(index);
    return owned.data;
  });
}

State state_boxes(const std::vector<ParamMeta>& params, StorePurpose purpose,
                  const StorePlace& place) {
  return state_of(params, StoreLayout(params, place), purpose,
                  [](Saved, ParamIndex) -> std::byte* { return nullptr; });
}

ParamStore::Bytes ParamStore::bytes_of(const std::vector<ParamMeta>& params, DType compute,
                                       StorePurpose purpose, const StorePlace& place) {
  const Sizes sizes = sizes_of(params, StoreLayout(params, place), compute, purpose);
  Bytes bytes;
  bytes.parameters = 4 * sizes.values + 2 * sizes.forms;
  bytes.gradients = 4 * (sizes.gradients + sizes.block_gradient + sizes.shared_gradient);
  if (sizes.looked_up_most > 0) {
    bytes.gradients +=
        RowGradient::bytes_of(sizes.row_gradient[0], sizes.row_gradient[1], sizes.looked_up_most);
  }
  bytes.optimizer = 8 * sizes.moments;
  return bytes;
}

}  // namespace trireme
