#include "kernels/update_reference.h"

#include <cmath>

namespace trireme::reference {

void adamw_update(AdamWState& state, const std::vector<double>& gradient, const Rates& rates,
                  const AdamWConstants& constants, const AdamWScalars& scalars) {
  const double lr = scalars.lr * rates.lr_scale;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * scalars.gradient_scale;
    double &p = state.parameter[i], &m = state.exp_avg[i], &v = state.exp_avg_sq[i];
    p -= lr * rates.weight_decay * p;
    m += (1 - constants.beta1) * (g - m);
    v = constants.beta2 * v + (1 - constants.beta2) * g * g;
    p -= lr / scalars.bias_correction1 * m /
         (std::sqrt(v) / std::sqrt(scalars.bias_correction2) + constants.eps);
  }
}

void lion_update(AdamWState& state, const std::vector<double>& gradient, const Rates& rates,
                 const LionConstants& constants, double lr, double gradient_scale) {
  lr *= rates.lr_scale;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * gradient_scale;
    double &p = state.parameter[i], &m = state.exp_avg[i];
    const double u = constants.beta1 * m + (1 - constants.beta1) * g;
    p -= lr * rates.weight_decay * p;
    p -= lr * (u > 0 ? 1 : u < 0 ? -1 : 0);
    m = constants.beta2 * m + (1 - constants.beta2) * g;
  }
}

void schedule_free_update(ScheduleFreeState& state, const std::vector<double>& gradient,
                          const Rates& rates, const ScheduleFreeConstants& constants,
                          const ScheduleFreeScalars& scalars) {
  state.y.resize(gradient.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * scalars.gradient_scale;
    double &x = state.x[i], &z = state.z[i], &v = state.exp_avg_sq[i];
    const double y = constants.beta1 * x + (1 - constants.beta1) * z;
    v = constants.beta2 * v + (1 - constants.beta2) * g * g;
    const double step = g / (std::sqrt(v / scalars.bias_correction2) + constants.eps);
    z -= scalars.lr * rates.lr_scale * (step + rates.weight_decay * y);
    x = (1 - scalars.share) * x + scalars.share * z;
    state.y[i] = constants.beta1 * x + (1 - constants.beta1) * z;
  }
}

}  // namespace trireme::reference
