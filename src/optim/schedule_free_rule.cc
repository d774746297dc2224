#include "optim/schedule_free_rule.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace trireme {

namespace {

constexpr const char* kScalars = "schedule_free";

double positive_of(const Json& weights, const char* key) {
  const Json* value = weights.is_object() ? weights.find(key) : nullptr;
  if (value == nullptr || !value->is_number() || !(value->as_double() >= 0) ||
      std::isinf(value->as_double())) {
    throw DataError("the checkpoint's manifest: scalars.{}.{} is not a number from 0 on", kScalars,
                    key);
  }
  return value->as_double();
}

}  // namespace

void ScheduleFreeRule::Weights::add(double lr) {
  if (lr > lr_max) {
    const double before = lr_max / lr;
    sum *= before * before;
    lr_max = lr;
  }
  sum += 1;
}

ScheduleFreeRule::ScheduleFreeRule(const RunConfig::Optimizer& config, const ParamStore& store,
                                   std::span<const UpdatedParam> params)
    : ElementwiseRule(OptimizerKind::kScheduleFree, config, store, params) {
  std::copy_if(tensors().begin(), tensors().end(), std::back_inserter(copied_),
               [](const UpdateTensor& tensor) { return tensor.copy.given(); });
  const std::int64_t bytes = buffer_bytes(store.params(), store.layout());
  if (bytes > 0) read_ = Buffer(DType::kF32, {bytes / std::int64_t{sizeof(float)}}, store.device());
}

std::int64_t ScheduleFreeRule::buffer_bytes(const std::vector<ParamMeta>& params,
                                            const StoreLayout& values) {
  std::int64_t largest = 0;
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
    const ParamMeta& param = params[static_cast<std::size_t>(i)];
    if (param.fp8 && param.trainable && !param.base)
      largest = std::max(largest, values.owned_shape(i).count());
  }
  return largest * std::int64_t{sizeof(float)};
}

void ScheduleFreeRule::update(Context& context, std::span<const UpdateTensor> tensors,
                              const UpdateStep& step) const {
  const auto [beta1, beta2, eps] = constants();
  const double correction2 = 1 - std::pow(beta2, static_cast<double>(step.applied));
  schedule_free_update(context, tensors, {beta1, beta2, eps},
                       {step.lr, correction2, 1 / weights_.sum, step.gradient_scale});
}

void ScheduleFreeRule::step(Context& context, const UpdateStep& step) {
  weights_.add(step.lr);
  ElementwiseRule::step(context, step);
}

void ScheduleFreeRule::step(Context& context, const UpdateStep& step, BlockMeter& meter) {
  weights_.add(step.lr);
  ElementwiseRule::step(context, step, meter);
}

void ScheduleFreeRule::step_undoable(Context& context, const UpdateStep& step) {
  kept_weights_ = weights_;
  weights_.add(step.lr);
  ElementwiseRule::step_undoable(context, step);
}

void ScheduleFreeRule::undo(Context& context) {
  weights_ = kept_weights_;
  ElementwiseRule::undo(context);
}

void ScheduleFreeRule::refresh_copies(Context& context) {
  schedule_free_copy(context, copied_, constants().beta1);
}

TensorView ScheduleFreeRule::read_value(Context& context, ParamIndex index) {
  const auto at = std::find(indices().begin(), indices().end(), index);
  if (at == indices().end()) return {};
  UpdateTensor tensor = tensors()[static_cast<std::size_t>(at - indices().begin())];
  tensor.copy = read_.view().rows(0, tensor.parameter.count()).reshape(tensor.parameter.shape);
  schedule_free_copy(context, {&tensor, 1}, constants().beta1);
  return tensor.copy;
}

void ScheduleFreeRule::save(Json& scalars) const {
  scalars[kScalars] = Json::Object{{"lr_max", weights_.lr_max}, {"weight_sum", weights_.sum}};
}

void ScheduleFreeRule::restore(const Json& scalars) {
  const Json* weights = scalars.find(kScalars);
  weights_ = {};
  if (weights != nullptr)
    weights_ = {positive_of(*weights, "lr_max"), positive_of(*weights, "weight_sum")};
}

}  // namespace trireme
