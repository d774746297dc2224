#pragma once

#include <cmath>
#include <span>

#include "comm/communicator.h"
#include "optim/optimizer.h"

namespace trireme {

/// The norm of all gradients of the model: the root of the squares of all ranks. Collective.
inline double gradient_norm(Context& context, const ParamStore& store, Communicator& ranks) {
  ExactSum sum = sum_of_squares(context, store);
  ranks.sum(std::span<std::int64_t>(sum.words()));
  return std::sqrt(sum.value());
}

}  // namespace trireme
