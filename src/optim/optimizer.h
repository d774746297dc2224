#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/exact_sum.h"
#include "config/run_config.h"
#include "kernels/adamw/adamw.h"
#include "parallel/param_store.h"

namespace trireme {

/// The norm of all gradients: sqrt of the exact sum of squares, tied parameters once (their
/// accumulators are added before). Not finite where any element is not.
double gradient_norm(Context& context, const ParamStore& store);

/// The first parameter with a non-finite gradient, in order of the model; empty where there is
/// none.
std::string first_non_finite_gradient(Context& context, const ParamStore& store);

/// PyTorch's clip_grad_norm_: min(1, limit / (norm + 1e-6)); 1 where limit is 0.
double clip_coefficient(double norm, double limit);

/// AdamW over every parameter of a store.
class Optimizer {
 public:
  Optimizer(const RunConfig::Optimizer& config, const ParamStore& store);
  /// One update with gradients * `gradient_scale`; rounds the bf16 forms on the way.
  void step(Context& context, double lr, double gradient_scale);

  /// Updates applied so far: AdamW's t. Saved and restored with a checkpoint.
  [[nodiscard]] std::int64_t applied_updates() const { return applied_updates_; }
  void set_applied_updates(std::int64_t count) { applied_updates_ = count; }

 private:
  AdamWConstants constants_;
  std::vector<AdamWTensor> tensors_;
  std::int64_t applied_updates_ = 0;
};

}  // namespace trireme
