#include "optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "kernels/elementwise/elementwise.h"
#include "kernels/grad_norm/grad_norm.h"

namespace trireme {

namespace {

/// A vector is so many rows: its elements are dealt out to ranks like the rows of a matrix.
ConstTensorView as_rows(const TensorView& gradient) {
  return gradient.shape.rank() == 1 ? gradient.reshape({gradient.shape[0], 1}) : gradient;
}

}  // namespace

ExactSum sum_of_squares(Context& context, const ParamStore& store) {
  // Many at a time, so that a GPU is waited for seldom; and no call takes memory.
  constexpr std::size_t kMany = 512;
  std::array<ConstTensorView, kMany> gradients;
  const std::size_t count = store.params().size();
  ExactSum sum;
  for (std::size_t first = 0; first < count; first += kMany) {
    const std::size_t part = std::min(kMany, count - first);
    for (std::size_t i = 0; i < part; ++i)
      gradients[i] = as_rows(store.gradients().counted(static_cast<ParamIndex>(first + i)));
    grad_norm_accumulate(context, sum, std::span<const ConstTensorView>(gradients.data(), part));
  }
  return sum;
}

std::string first_non_finite_gradient(Context& context, const ParamStore& store, int block) {
  const ParamRange range = store.layout().block_params(block);
  for (ParamIndex i = range.first; i <= range.last; ++i) {
    ExactSum sum;  // squares of finite f32 are finite in f64
    const ConstTensorView gradient = store.gradients().written(i);
    grad_norm_accumulate(context, sum, {&gradient, 1});
    if (sum.non_finite()) return store.params()[static_cast<std::size_t>(i)].name;
  }
  return "";
}

double clip_coefficient(double norm, double limit) {
  return limit <= 0 ? 1 : std::min(1.0, limit / (norm + 1e-6));
}

namespace {

/// States of the store before the average.
std::size_t moments_of(OptimizerKind kind) { return kind == OptimizerKind::kLion ? 1 : 2; }

}  // namespace

StoreContents Optimizer::contents(const RunConfig::Optimizer& config) {
  StoreContents contents{true, {{"exp_avg"}}};
  if (moments_of(config.kind) > 1) contents.states.push_back({"exp_avg_sq"});
  if (config.ema > 0) contents.states.push_back({kAverageState});
  return contents;
}

double Optimizer::bytes_of_update(const RunConfig::Optimizer& config) {
  // A gradient is cleared, read for the norm and for the update; values and moments are read and
  // written.
  const auto states = static_cast<double>(1 + moments_of(config.kind));
  return 12 + 8 * states + (config.ema > 0 ? 12 : 0);
}

Optimizer::Optimizer(const RunConfig::Optimizer& config, const ParamStore& store)
    : config_(config) {
  const std::size_t moments = moments_of(config.kind);
  for (ParamIndex index = 0; index < static_cast<int>(store.params().size()); ++index) {
    const ParamMeta& param = store.params()[static_cast<std::size_t>(index)];
    if (!store.has_value(index) || !param.trainable || store.value(index).count() == 0) continue;
    UpdateTensor tensor;
    tensor.parameter = store.value(index);
    tensor.copy = store.copy(index);
    tensor.exp_avg = store.optimizer_state(0, index);
    if (moments > 1) tensor.exp_avg_sq = store.optimizer_state(1, index);
    tensor.gradient = store.gradients().owned(index);
    tensor.gradient_slots = store.gradients().slots(index);
    tensor.weight_decay = param.weight_decay.value_or(param.decay ? config.weight_decay : 0);
    tensor.lr_scale = param.lr_scale;
    tensors_.push_back(tensor);
    indices_.push_back(index);
    if (config.ema > 0)
      averages_.push_back({store.optimizer_state(moments, index), tensor.parameter});
  }
}

void Optimizer::update(Context& context, std::span<const UpdateTensor> tensors, double lr,
                       double gradient_scale) const {
  const auto [beta1, beta2] = config_.betas;
  const auto scale = static_cast<float>(gradient_scale);
  if (config_.kind == OptimizerKind::kLion)
    return lion_update(context, tensors, {beta1, beta2}, lr, scale);
  const auto t = static_cast<double>(applied_updates_);
  adamw_update(context, tensors, {beta1, beta2, config_.eps.value_or(0)},
               {lr, 1 - std::pow(beta1, t), 1 - std::pow(beta2, t), scale});
}

void Optimizer::step(Context& context, double lr, double gradient_scale, Undo undo) {
  const bool keeps = undo == Undo::kPossible;
  if (keeps) kept_updates_ = applied_updates_;
  ++applied_updates_;
  update(context, keeps ? undoable_ : tensors_, lr, gradient_scale);
}

void Optimizer::step(Context& context, double lr, double gradient_scale, BlockMeter& meter) {
  ++applied_updates_;
  meter.clear();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    meter.measure(context, indices_[i], tensors_[i], [&](const UpdateTensor& rows) {
      update(context, {&rows, 1}, lr, gradient_scale);
    });
  }
}

void Optimizer::average(Context& context) {
  if (!averages_.empty()) average_update(context, averages_, config_.ema);
}

void Optimizer::begin_averages(Context& context, const std::function<bool(ParamIndex)>& of) {
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    if (of(indices_[i])) cast(context, averages_[i].average, averages_[i].parameter);
  }
}

void Optimizer::allow_undo(const ParamStore& store, Device device) {
  const std::int64_t bytes = undo_bytes(config_, store.params(), store.gradients().layout());
  if (bytes == 0) return;
  kept_ = Buffer(DType::kF32, {bytes / static_cast<std::int64_t>(sizeof(float))}, device);
  undoable_ = tensors_;
  const auto states = static_cast<std::int64_t>(1 + moments_of(config_.kind));
  std::int64_t begin = 0;
  for (UpdateTensor& tensor : undoable_) {
    const std::int64_t count = states * tensor.parameter.count();
    tensor.kept = kept_.view().rows(begin, count);
    begin += count;
  }
}

std::int64_t Optimizer::undo_bytes(const RunConfig::Optimizer& config,
                                   const std::vector<ParamMeta>& params,
                                   const StoreLayout& layout) {
  std::int64_t count = 0;
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
    if (params[static_cast<std::size_t>(i)].shares == kNoParam)
      count += layout.owned_shape(i).count();
  }
  return count * static_cast<std::int64_t>((1 + moments_of(config.kind)) * sizeof(float));
}

void Optimizer::undo(Context& context) {
  for (const UpdateTensor& tensor : undoable_) {
    std::int64_t begin = 0;
    for (const TensorView& state : {tensor.parameter, tensor.exp_avg, tensor.exp_avg_sq}) {
      if (!state.given()) continue;
      cast(context, state, tensor.kept.rows(begin, state.count()).reshape(state.shape));
      begin += state.count();
    }
  }
  applied_updates_ = kept_updates_;
}

}  // namespace trireme
