#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

struct SwigluForwardArgs {
  Exec exec;
  void* act;
  const void* gate_up;
  std::int64_t tokens, ffn;
  DType type;
};

struct SwigluBackwardArgs {
  Exec exec;
  void *dgate_up, *act;  ///< act may be null
  const void *dact, *gate_up;
  std::int64_t tokens, ffn;
  DType type;
};

struct SwigluKernels {
  void (*forward)(const SwigluForwardArgs&);
  void (*backward)(const SwigluBackwardArgs&);
};
TRIREME_CPU_TABLES(SwigluKernels, swiglu_cpu);
namespace cuda {
extern const SwigluKernels swiglu_cuda;
}

}  // namespace trireme
