#pragma once
// The formula of kernels/update/update.h as a scalar loop in double.

#include <vector>

#include "kernels/update/update.h"

namespace trireme::reference {

struct AdamWState {
  std::vector<double> parameter, exp_avg, exp_avg_sq;
};
void adamw_update(AdamWState& state, const std::vector<double>& gradient, double weight_decay,
                  const AdamWConstants& constants, const AdamWScalars& scalars);

}  // namespace trireme::reference
