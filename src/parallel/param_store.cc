#include "parallel/param_store.h"

#include <algorithm>

#include "base/math.h"
#include "base/random.h"
#include "kernels/elementwise/elementwise.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

// Groups begin on a cache line, so that vector loads of weights are aligned.
constexpr std::int64_t kAlignmentElements = 16;

std::vector<std::int64_t> layout_offsets(const std::vector<ParamMeta>& params) {
  std::vector<std::int64_t> offsets;
  std::int64_t end = 0;
  for (const ParamMeta& param : params) {
    if (param.fuse == Fuse::kNo) end = round_up(end, kAlignmentElements);
    offsets.push_back(end);
    end += param.shape.count();
  }
  offsets.push_back(round_up(end, kAlignmentElements));
  return offsets;
}

ParamIndex find_tied(const std::vector<ParamMeta>& params) {
  const auto found =
      std::find_if(params.begin(), params.end(), [](const ParamMeta& p) { return p.tied; });
  return found == params.end() ? kNoParam : static_cast<ParamIndex>(found - params.begin());
}

}  // namespace

ParamStore::ParamStore(std::vector<ParamMeta> params, DType compute, StorePurpose purpose,
                       Device device)
    : params_(std::move(params)),
      compute_(compute),
      purpose_(purpose),
      offsets_(layout_offsets(params_)),
      tied_(find_tied(params_)) {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    expect(i == 0 || params_[i].block >= params_[i - 1].block, "{} is declared out of block order",
           params_[i].name);
    block_count_ = std::max(block_count_, params_[i].block + 1);
  }
  const Shape flat{offsets_.back()};
  values_ = Buffer(DType::kF32, flat, device);
  if (compute_ == DType::kBF16) forms_ = Buffer(DType::kBF16, flat, device);
  if (purpose_ == StorePurpose::kTraining) {
    gradients_ = Buffer(DType::kF32, flat, device);
    exp_avg_ = Buffer(DType::kF32, flat, device);
    exp_avg_sq_ = Buffer(DType::kF32, flat, device);
    if (tied_ != kNoParam) second_gradient_ = Buffer(DType::kF32, params_[tied_].shape, device);
  }
}

std::int64_t ParamStore::element_count() const {
  std::int64_t count = 0;
  for (const ParamMeta& param : params_) count += param.shape.count();
  return count;
}

TensorView ParamStore::part_of(const Buffer& buffer, ParamRange range) const {
  expect(
      range.given() && range.first <= range.last && range.last < static_cast<int>(params_.size()),
      "parameters {}..{} of {}", range.first, range.last, params_.size());
  Shape shape = params_[range.first].shape;
  for (ParamIndex i = range.first + 1; i <= range.last; ++i) {
    expect(params_[i].fuse == Fuse::kWithPrevious, "{} does not stand behind {}", params_[i].name,
           params_[i - 1].name);
    shape.set(0, shape[0] + params_[i].shape[0]);
  }
  const TensorView flat = buffer.view();
  expect(flat.given(), "{}: a kind of memory that this store does not hold",
         params_[range.first].name);
  return {flat.data + static_cast<std::size_t>(offsets_[range.first]) * size_of(flat.dtype),
          flat.dtype, shape};
}

ConstTensorView ParamStore::Lease::weight(ParamRange range) const {
  return store_.part_of(store_.compute_ == DType::kBF16 ? store_.forms_ : store_.values_, range);
}

TensorView ParamStore::value(ParamIndex index) const { return part_of(values_, {index, index}); }
TensorView ParamStore::exp_avg(ParamIndex index) const { return part_of(exp_avg_, {index, index}); }
TensorView ParamStore::exp_avg_sq(ParamIndex index) const {
  return part_of(exp_avg_sq_, {index, index});
}

TensorView ParamStore::gradient(ParamRange range, Home home) const {
  if (home == Home::kOwner) return part_of(gradients_, range);
  expect(range.first == tied_ && range.last == tied_,
         "only a tied parameter has a second gradient");
  return second_gradient_.view();
}

TensorView ParamStore::form(ParamIndex index) const {
  return compute_ == DType::kBF16 ? part_of(forms_, {index, index}) : TensorView();
}

std::span<float> ParamStore::block_gradients(int block) const {
  const auto in_block = [&](const ParamMeta& param) { return param.block == block; };
  const auto first = std::find_if(params_.begin(), params_.end(), in_block);
  const auto last = std::find_if_not(first, params_.end(), in_block);
  const std::int64_t begin = offsets_[first - params_.begin()],
                     end = offsets_[last - params_.begin()];
  return {gradients_.view().as<float>() + begin, static_cast<std::size_t>(end - begin)};
}

void ParamStore::initialise(Context& context, std::uint64_t seed) {
  constexpr std::int64_t kBlock = 1 << 14;
  Buffer staging;
  for (ParamIndex index = 0; index < static_cast<int>(params_.size()); ++index) {
    const ParamMeta& param = params_[index];
    const std::uint64_t key = stream_key(seed, param.name);
    if (context.on_gpu()) staging = Buffer(DType::kF32, param.shape);
    float* values = context.on_gpu() ? staging.view().as<float>() : value(index).as<float>();
    const std::int64_t count = param.shape.count();
#pragma omp parallel for schedule(static) if (count > kBlock)
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      const std::span<float> block(values + begin,
                                   static_cast<std::size_t>(std::min(kBlock, count - begin)));
      switch (param.init.kind) {
        case InitKind::kZeros:
          std::fill(block.begin(), block.end(), 0.0F);
          break;
        case InitKind::kOnes:
          std::fill(block.begin(), block.end(), 1.0F);
          break;
        case InitKind::kNormal:
          fill_normal(key, static_cast<std::uint64_t>(begin), param.init.std, block);
          break;
      }
    }
    if (context.on_gpu()) copy_in(context, value(index), std::as_bytes(std::span(values, count)));
  }
}

void ParamStore::refresh_forms(Context& context) {
  if (compute_ == DType::kBF16) cast(context, forms_.view(), values_.view());
}

void ParamStore::clear_gradients(Context& context) {
  for (ParamIndex i = 0; i < static_cast<int>(params_.size()); ++i) {
    if (!params_[i].set_by_product) clear(context, gradient(i));
  }
}

void ParamStore::add_tied_gradients(Context& context) {
  if (tied_ != kNoParam) accumulate(context, gradient(tied_), second_gradient_.view());
}

State ParamStore::state(int replica, int replicas) const {
  State state;
  const auto add = [&](const char* format_prefix, const char* suffix, const ParamMeta& param,
                       const TensorView& data) {
    StateTensor tensor;
    tensor.name = fmt::format("{}/{}{}", format_prefix, param.name, suffix);
    tensor.dtype = data.dtype;
    tensor.global_shape = param.shape;
    tensor.box = {param.shape, param.shape};
    for (int dim = 0; dim < param.shape.rank(); ++dim) tensor.box.offset.set(dim, 0);
    tensor.data = data.data;
    tensor.replica = replica;
    tensor.replicas = replicas;
    state.tensors.push_back(std::move(tensor));
  };
  for (ParamIndex i = 0; i < static_cast<int>(params_.size()); ++i)
    add("parameters", "", params_[i], value(i));
  if (purpose_ == StorePurpose::kTraining) {
    for (ParamIndex i = 0; i < static_cast<int>(params_.size()); ++i) {
      add("optimizer", "/exp_avg", params_[i], exp_avg(i));
      add("optimizer", "/exp_avg_sq", params_[i], exp_avg_sq(i));
    }
  }
  return state;
}

ParamStore::Bytes ParamStore::bytes_of(const std::vector<ParamMeta>& params, DType compute,
                                       StorePurpose purpose) {
  const std::int64_t flat = layout_offsets(params).back();
  Bytes bytes;
  bytes.parameters = flat * (compute == DType::kBF16 ? 6 : 4);
  if (purpose == StorePurpose::kTraining) {
    const ParamIndex tied = find_tied(params);
    bytes.gradients = 4 * (flat + (tied == kNoParam ? 0 : params[tied].shape.count()));
    bytes.optimizer = 8 * flat;
  }
  return bytes;
}

}  // namespace trireme
