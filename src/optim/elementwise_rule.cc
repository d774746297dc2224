#include "optim/elementwise_rule.h"

#include <cmath>
#include <utility>

#include "kernels/elementwise/elementwise.h"

namespace trireme {

namespace {

/// Views of a tensor that an update changes, in the order in which it keeps them.
std::vector<TensorView> changed_of(const UpdateTensor& tensor) {
  std::vector<TensorView> views{tensor.parameter, tensor.exp_avg};
  if (tensor.exp_avg_sq.given()) views.push_back(tensor.exp_avg_sq);
  return views;
}

}  // namespace

std::vector<OptimizerState> ElementwiseRule::states(OptimizerKind kind) {
  if (kind == OptimizerKind::kLion) return {{"exp_avg"}};
  if (kind == OptimizerKind::kScheduleFree) {
    OptimizerState z{"z"};
    z.begins_with_value = true;
    return {std::move(z), {"exp_avg_sq"}};
  }
  return {{"exp_avg"}, {"exp_avg_sq"}};
}

ElementwiseRule::ElementwiseRule(OptimizerKind kind, const RunConfig::Optimizer& config,
                                 const ParamStore& store, std::span<const UpdatedParam> params)
    : kind_(kind), constants_{config.betas->front(), config.betas->back(), config.eps.value_or(0)} {
  const std::vector<OptimizerState> kept = states(kind);
  for (const UpdatedParam& param : params) {
    const ParamIndex index = param.index;
    if (store.value(index).count() == 0) continue;
    UpdateTensor tensor;
    tensor.parameter = store.value(index);
    tensor.copy = store.copy(index);
    tensor.exp_avg = store.optimizer_state(kept.front().name, index);
    if (kept.size() > 1) tensor.exp_avg_sq = store.optimizer_state(kept.back().name, index);
    tensor.gradient = store.gradients().owned(index);
    tensor.gradient_slots = store.gradients().slots(index);
    tensor.weight_decay = param.weight_decay;
    tensor.lr_scale = param.lr_scale;
    tensors_.push_back(tensor);
    indices_.push_back(index);
  }
}

void ElementwiseRule::update(Context& context, std::span<const UpdateTensor> tensors,
                             const UpdateStep& step) const {
  const auto [beta1, beta2, eps] = constants_;
  if (kind_ == OptimizerKind::kLion)
    return lion_update(context, tensors, {beta1, beta2}, step.lr, step.gradient_scale);
  const auto t = static_cast<double>(step.applied);
  adamw_update(context, tensors, constants_,
               {step.lr, 1 - std::pow(beta1, t), 1 - std::pow(beta2, t), step.gradient_scale});
}

void ElementwiseRule::step(Context& context, const UpdateStep& step) {
  update(context, tensors_, step);
}

void ElementwiseRule::step(Context& context, const UpdateStep& step, BlockMeter& meter) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    meter.measure(context, indices_[i], tensors_[i], [&](const UpdateTensor& rows) {
      update(context, {&rows, 1}, step);
    });
  }
}

std::vector<TensorView> ElementwiseRule::changed() const {
  std::vector<TensorView> views;
  for (const UpdateTensor& tensor : tensors_) {
    const std::vector<TensorView> of_tensor = changed_of(tensor);
    views.insert(views.end(), of_tensor.begin(), of_tensor.end());
  }
  return views;
}

void ElementwiseRule::allow_undo(Device device) {
  std::int64_t count = 0;
  for (const TensorView& view : changed()) count += view.count();
  if (count == 0) return;
  kept_ = Buffer(DType::kF32, {count}, device);
  undoable_ = tensors_;
  std::int64_t begin = 0;
  for (UpdateTensor& tensor : undoable_) {
    const auto views = static_cast<std::int64_t>(changed_of(tensor).size());
    tensor.kept = kept_.view().rows(begin, views * tensor.parameter.count());
    begin += tensor.kept.count();
  }
}

void ElementwiseRule::step_undoable(Context& context, const UpdateStep& step) {
  update(context, undoable_, step);
}

void ElementwiseRule::undo(Context& context) {
  for (const UpdateTensor& tensor : undoable_) {
    std::int64_t begin = 0;
    for (const TensorView& state : changed_of(tensor)) {
      cast(context, state, tensor.kept.rows(begin, state.count()).reshape(state.shape));
      begin += state.count();
    }
  }
}

}  // namespace trireme
