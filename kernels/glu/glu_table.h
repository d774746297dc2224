#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"
#include "kernels/glu/glu_gate.h"
#include "kernels/quantize/quantize_table.h"

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

/// Of bf16; ffn is a multiple of 8.
struct GluForwardCodesArgs {
  Exec exec;
  GluGate gate;
  RowCodes act;
  const void* gate_up;
  std::int64_t tokens, ffn;
};

struct GluBackwardCodesArgs {
  GluGate gate;
  const void *dact, *gate_up;
  std::int64_t ffn;
  QuantizeBothArgs dgate_up;  ///< gate's columns and up's, each from the beginning of a block
  QuantizeArgs act;           ///< across
};

struct GluKernels {
  void (*forward)(const GluForwardArgs&);
  void (*backward)(const GluBackwardArgs&);
  void (*forward_codes)(const GluForwardCodesArgs&);
  void (*backward_codes)(const GluBackwardCodesArgs&);
};
TRIREME_CPU_TABLES(GluKernels, glu_cpu);
namespace cuda {
extern const GluKernels glu_cuda;
}

}  // namespace trireme
