#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"

namespace trireme {

/// One tensor; `begin` is the number of elements before it in the call.
struct AdamWTensorArgs {
  float *parameter, *exp_avg, *exp_avg_sq;
  const float* gradient;
  BFloat16* form;  ///< or null
  std::int64_t begin, count;
  float lr_decay;  ///< lr * weight_decay
};

struct AdamWArgs {
  Exec exec;
  const AdamWTensorArgs* tensors;
  std::int64_t tensor_count, element_count;
  float gradient_scale;
  float one_minus_beta1, beta2, one_minus_beta2;
  float step_size;                 ///< lr / bias_correction1
  float inverse_sqrt_correction2;  ///< 1 / sqrt(bias_correction2)
  float eps;
};

struct AdamWKernels {
  void (*update)(const AdamWArgs&);
};
namespace avx2 {
extern const AdamWKernels adamw_cpu;
}
namespace avx512 {
extern const AdamWKernels adamw_cpu;
}
namespace cuda {
extern const AdamWKernels adamw_cuda;
}

}  // namespace trireme
