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

StoreContents Optimizer::contents() { return {true, {{"exp_avg"}, {"exp_avg_sq"}}}; }

Optimizer::Optimizer(const RunConfig::Optimizer& config, const ParamStore& store)
    : constants_{config.betas[0], config.betas[1], config.eps} {
  for (ParamIndex index = 0; index < static_cast<int>(store.params().size()); ++index) {
    const ParamMeta& param = store.params()[static_cast<std::size_t>(index)];
    if (!store.has_value(index) || !param.trainable || store.value(index).count() == 0) continue;
    UpdateTensor tensor;
    tensor.parameter = store.value(index);
    tensor.copy = store.copy(index);
    tensor.exp_avg = store.optimizer_state(0, index);
    tensor.exp_avg_sq = store.optimizer_state(1, index);
    tensor.gradient = store.gradients().owned(index);
    tensor.gradient_slots = store.gradients().slots(index);
    tensor.weight_decay = param.weight_decay.value_or(param.decay ? config.weight_decay : 0);
    tensor.lr_scale = param.lr_scale;
    tensors_.push_back(tensor);
  }
}

void Optimizer::step(Context& context, double lr, double gradient_scale, Undo undo) {
  const bool keeps = undo == Undo::kPossible;
  if (keeps) kept_updates_ = applied_updates_;
  ++applied_updates_;
  AdamWScalars scalars;
  scalars.lr = lr;
  scalars.bias_correction1 = 1 - std::pow(constants_.beta1, static_cast<double>(applied_updates_));
  scalars.bias_correction2 = 1 - std::pow(constants_.beta2, static_cast<double>(applied_updates_));
  scalars.gradient_scale = static_cast<float>(gradient_scale);
  adamw_update(context, keeps ? undoable_ : tensors_, constants_, scalars);
}

void Optimizer::allow_undo(const ParamStore& store, Device device) {
  const std::int64_t bytes = undo_bytes(store.params(), store.gradients().layout());
  if (bytes == 0) return;
  kept_ = Buffer(DType::kF32, {bytes / static_cast<std::int64_t>(sizeof(float))}, device);
  undoable_ = tensors_;
  std::int64_t begin = 0;
  for (UpdateTensor& tensor : undoable_) {
    const std::int64_t count = 3 * tensor.parameter.count();
    tensor.kept = kept_.view().rows(begin, count);
    begin += count;
  }
}

std::int64_t Optimizer::undo_bytes(const std::vector<ParamMeta>& params,
                                   const StoreLayout& layout) {
  std::int64_t count = 0;
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
    if (params[static_cast<std::size_t>(i)].shares == kNoParam)
      count += 3 * layout.owned_shape(i).count();
  }
  return count * static_cast<std::int64_t>(sizeof(float));
}

void Optimizer::undo(Context& context) {
  for (const UpdateTensor& tensor : undoable_) {
    std::int64_t begin = 0;
    for (const TensorView& state : {tensor.parameter, tensor.exp_avg, tensor.exp_avg_sq}) {
      cast(context, state, tensor.kept.rows(begin, state.count()).reshape(state.shape));
      begin += state.count();
    }
  }
  applied_updates_ = kept_updates_;
}

}  // namespace trireme
