#pragma once
// The formulas of kernels/update/update.h as scalar loops in double.

#include <vector>

#include "kernels/update/update.h"

namespace trireme::reference {

struct AdamWState {
  std::vector<double> parameter, exp_avg, exp_avg_sq;
};
/// What a tensor has of its own.
struct Rates {
  double weight_decay = 0, lr_scale = 1;
};
void adamw_update(AdamWState& state, const std::vector<double>& gradient, const Rates& rates,
                  const AdamWConstants& constants, const AdamWScalars& scalars);
/// exp_avg_sq is not looked at.
void lion_update(AdamWState& state, const std::vector<double>& gradient, const Rates& rates,
                 const LionConstants& constants, double lr, double gradient_scale);

struct ScheduleFreeState {
  std::vector<double> x, z, exp_avg_sq, y;
};
/// y comes from x and z.
void schedule_free_update(ScheduleFreeState& state, const std::vector<double>& gradient,
                          const Rates& rates, const ScheduleFreeConstants& constants,
                          const ScheduleFreeScalars& scalars);

}  // namespace trireme::reference
