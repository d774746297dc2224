#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"
#include "kernels/router/router_rule.h"

namespace trireme {

/// Tokens of a sequence follow each other.
struct RouterRows {
  std::int64_t tokens, experts, first_token, tokens_per_sequence;
};

/// load, balance and bias may be null.
struct RouterForwardArgs {
  Exec exec;
  std::int32_t* chosen;
  float* weights;
  std::int32_t *load, *balance;
  const float *logits, *bias;
  RouterRows rows;
  RouterRule rule;
};

/// balance and losses may be null.
struct RouterBackwardArgs {
  Exec exec;
  void* dlogits;
  double* losses;
  const float* logits;
  const std::int32_t* chosen;
  const float *dweights, *balance;
  RouterRows rows;
  RouterRule rule;
  float z;
  float* token_losses;  ///< scratch, [2, tokens]: <balance, p>, logsumexp
  DType type;           ///< of dlogits
};

struct RouterKernels {
  void (*forward)(const RouterForwardArgs&);
  void (*backward)(const RouterBackwardArgs&);
};
TRIREME_CPU_TABLES(RouterKernels, router_cpu);
namespace cuda {
extern const RouterKernels router_cuda;
}

}  // namespace trireme
