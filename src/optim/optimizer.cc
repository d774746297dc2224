#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/grad_norm/grad_norm.h"

namespace trireme {

double gradient_norm(Context& context, const ParamStore& store) {
  ExactSum sum;
  for (ParamIndex index = 0; index < static_cast<int>(store.params().size()); ++index) {
    grad_norm_accumulate(context, sum, store.gradient(index));
  }
  return std::sqrt(sum.value());
}

std::string first_non_finite_gradient(const ParamStore& store) {
  for (ParamIndex index = 0; index < static_cast<int>(store.params().size()); ++index) {
    const TensorView gradient = store.gradient(index);
    const float* values = gradient.as<float>();
    const bool finite = std::all_of(values, values + gradient.count(),
                                    [](float value) { return std::isfinite(value); });
    if (!finite) return store.params()[static_cast<std::size_t>(index)].name;
  }
  return "";
}

double clip_coefficient(double norm, double limit) {
  return limit <= 0 ? 1 : std::min(1.0, limit / (norm + 1e-6));
}

Optimizer::Optimizer(const RunConfig::Optimizer& config, const ParamStore& store)
    : constants_{config.betas[0], config.betas[1], config.eps} {
  for (ParamIndex index = 0; index < static_cast<int>(store.params().size()); ++index) {
    AdamWTensor tensor;
    tensor.parameter = store.value(index);
    tensor.form = store.form(index);
    tensor.exp_avg = store.exp_avg(index);
    tensor.exp_avg_sq = store.exp_avg_sq(index);
    tensor.gradient = store.gradient(index);
    tensor.weight_decay =
        store.params()[static_cast<std::size_t>(index)].decay ? config.weight_decay : 0;
    tensors_.push_back(tensor);
  }
}

void Optimizer::step(Context& context, double lr, double gradient_scale) {
  ++applied_updates_;
  AdamWScalars scalars;
  scalars.lr = lr;
  scalars.bias_correction1 = 1 - std::pow(constants_.beta1, static_cast<double>(applied_updates_));
  scalars.bias_correction2 = 1 - std::pow(constants_.beta2, static_cast<double>(applied_updates_));
  scalars.gradient_scale = static_cast<float>(gradient_scale);
  adamw_update(context, tensors_, constants_, scalars);
}

}  // namespace trireme
