#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

struct GeluForwardArgs {
  Exec exec;
  void* act;
  const void* x;
  std::int64_t count;
  DType type;
};

struct GeluBackwardArgs {
  Exec exec;
  void *dx, *act;  ///< act may be null
  const void *dact, *x;
  std::int64_t count;
  DType type;
};

struct GeluKernels {
  void (*forward)(const GeluForwardArgs&);
  void (*backward)(const GeluBackwardArgs&);
};
TRIREME_CPU_TABLES(GeluKernels, gelu_cpu);
namespace cuda {
extern const GeluKernels gelu_cuda;
}

}  // namespace trireme
