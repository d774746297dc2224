#pragma once

#include "device/context.h"
#include "kernels/common/check_args.h"

namespace trireme {

/// What an update of a parameter reads its gradient by.
struct UpdateGradient {
  ConstTensorView parameter, gradient, slots;
};

/// The gradient has the parameter's elements; or, on a CPU, rows, one of which each slot names.
inline void check_gradient(const ArgumentChecker& check, const Context& context,
                           const UpdateGradient& of) {
  if (context.on_gpu()) check.absent("gradient_slots", of.slots, "on a GPU");
  if (!of.slots.given())
    return check.elements("gradient", of.gradient, DType::kF32, of.parameter.count());
  check.rank("parameter", of.parameter, 2);
  check.rank("gradient", of.gradient, 2);
  const std::int64_t rows = of.gradient.shape[0];
  check.tensor("gradient", of.gradient, DType::kF32, {rows, of.parameter.shape[1]});
  check.tensor("gradient_slots", of.slots, DType::kI32, {of.parameter.shape[0]});
  check.indices("gradient_slots", of.slots, rows);
}

}  // namespace trireme
