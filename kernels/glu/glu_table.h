#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"
#include "kernels/glu/glu_gate.h"

namespace trireme {

struct GluForwardArgs {
  Exec exec;
  GluGate gate;
  void* act;
  const void* gate_up;
  std::int64_t tokens, ffn;
  DType type;
};

struct GluBackwardArgs {
  Exec exec;
  GluGate gate;
  void *dgate_up, *act;  ///< act may be null
  const void *dact, *gate_up;
  std::int64_t tokens, ffn;
  DType type;
};

struct GluKernels {
  void (*forward)(const GluForwardArgs&);
  void (*backward)(const GluBackwardArgs&);
};
TRIREME_CPU_TABLES(GluKernels, glu_cpu);
namespace cuda {
extern const GluKernels glu_cuda;
}

}  // namespace trireme
