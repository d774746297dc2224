#include "optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "kernels/grad_norm/grad_norm.h"

namespace trireme {

namespace {

/// f(views of gradients, index of the first) for all parameters, many at a time: no call takes
/// memory.
template <class F>
void for_many_gradients(const ParamStore& store, F f) {
  constexpr std::size_t kMany = 512;
  std::array<ConstTensorView, kMany> gradients;
  const std::size_t count = store.params().size();
  for (std::size_t first = 0; first < count; first += kMany) {
    const std::size_t part = std::min(kMany, count - first);
    for (std::size_t i = 0; i < part; ++i)
      gradients[i] = store.gradient(static_cast<ParamIndex>(first + i));
    f(std::span<const ConstTensorView>(gradients.data(), part), first);
  }
}

}  // namespace

double gradient_norm(Context& context, const ParamStore& store) {
  ExactSum sum;
  for_many_gradients(store, [&](std::span<const ConstTensorView> gradients, std::size_t) {
    grad_norm_accumulate(context, sum, gradients);
  });
  return std::sqrt(sum.value());
}

std::string first_non_finite_gradient(Context& context, const ParamStore& store) {
  std::string name;
  for_many_gradients(store, [&](std::span<const ConstTensorView> gradients, std::size_t first) {
    for (std::size_t i = 0; i < gradients.size() && name.empty(); ++i) {
      ExactSum sum;  // squares of finite f32 are finite in f64
      grad_norm_accumulate(context, sum, gradients.subspan(i, 1));
      if (sum.non_finite()) name = store.params()[first + i].name;
    }
  });
  return name;
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
