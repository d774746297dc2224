#include "kernels/update_reference.h"

#include <cmath>

namespace trireme::reference {

void adamw_update(AdamWState& state, const std::vector<double>& gradient, double weight_decay,
                  const AdamWConstants& constants, const AdamWScalars& scalars) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * scalars.gradient_scale;
    double &p = state.parameter[i], &m = state.exp_avg[i], &v = state.exp_avg_sq[i];
    p -= scalars.lr * weight_decay * p;
    m += (1 - constants.beta1) * (g - m);
    v = constants.beta2 * v + (1 - constants.beta2) * g * g;
    p -= scalars.lr / scalars.bias_correction1 * m /
         (std::sqrt(v) / std::sqrt(scalars.bias_correction2) + constants.eps);
  }
}

}  // namespace trireme::reference
