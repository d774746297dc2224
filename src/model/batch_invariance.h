#pragma once

#include "device/context.h"

namespace trireme {

/// While it lives rows of products have the bits that they have alone (kernels/gemm), where
/// `wanted`.
class BatchInvariance {
 public:
  BatchInvariance(Context& context, bool wanted)
      : context_(context), before_(context.batch_invariant()) {
    context.set_batch_invariant(wanted || before_);
  }
  ~BatchInvariance() { context_.set_batch_invariant(before_); }
  BatchInvariance(const BatchInvariance&) = delete;
  BatchInvariance& operator=(const BatchInvariance&) = delete;

 private:
  Context& context_;
  bool before_;
};

}  // namespace trireme
