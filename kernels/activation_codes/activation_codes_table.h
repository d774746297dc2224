#pragma once

#include <cstdint>

#include "device/exec.h"
#include "kernels/activation_codes/activation_kind.h"
#include "kernels/common/cpu_tables.h"
#include "kernels/quantize/quantize_table.h"

namespace trireme {

/// Of bf16; ffn is a multiple of 8.
struct ActivationForwardCodesArgs {
  Exec exec;
  ActivationKind kind;
  RowCodes act;
  const void* x;
  std::int64_t tokens, ffn;
};

struct ActivationBackwardCodesArgs {
  ActivationKind kind;
  const void *dact, *x;
  void* rows;  ///< dx's, may be null or x
  std::int64_t ffn;
  QuantizeBothArgs dx;  ///< its parts, each from the beginning of a block
  QuantizeArgs act;     ///< across
};

struct ActivationCodesKernels {
  void (*forward)(const ActivationForwardCodesArgs&);
  void (*backward)(const ActivationBackwardCodesArgs&);
};
TRIREME_CPU_TABLES(ActivationCodesKernels, activation_codes_cpu);
namespace cuda {
extern const ActivationCodesKernels activation_codes_cuda;
}

}  // namespace trireme
