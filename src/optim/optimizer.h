#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/exact_sum.h"
#include "comm/communicator.h"
#include "config/run_config.h"
#include "kernels/adamw/adamw.h"
#include "parallel/param_store.h"

namespace trireme {

/// The norm of all gradients of the model: sqrt of the exact sum of squares, each row summed by one
/// of the ranks that hold it, tied parameters once (their accumulators are added before). The bits
/// do not depend on which rank that is. Not finite where any element is not. Collective.
double gradient_norm(Context& context, const ParamStore& store, Communicator& world);

/// The first parameter of a block with a non-finite gradient where the model wrote it, in order of
/// the model; empty where there is none.
std::string first_non_finite_gradient(Context& context, const ParamStore& store, int block);

/// PyTorch's clip_grad_norm_: min(1, limit / (norm + 1e-6)); 1 where limit is 0.
double clip_coefficient(double norm, double limit);

/// AdamW over the rows that a store owns.
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
