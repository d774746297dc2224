#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// A GPU's blocks take so many elements each.
inline constexpr std::int64_t kMuonElementsPerBlock = 4096;

/// One tensor. Nothing changes from step to step: a GPU keeps the table, found by its bytes.
struct MuonTensorArgs {
  float* state;    ///< momentum, or the parameter
  const void* in;  ///< gradient f32, or the update
  void* out;       ///< the update, or the copy in bf16; or null
  /// Elements before it in the call; blocks of kMuonElementsPerBlock before it, none shared.
  std::int64_t begin, first_block;
  std::int64_t count;
  double step, decay;  ///< of an update: times its rate
};

struct MuonArgs {
  Exec exec;
  const MuonTensorArgs* tensors;  ///< in the device's memory
  std::int64_t tensor_count, element_count, block_count;
  DType update_type;
  float momentum, one_minus_momentum, gradient_scale;  ///< of the momentum
  double lr;                                           ///< of an update
};

struct NewtonSchulzOperandArgs {
  Exec exec;
  void* operand;
  float* sum;
  std::int64_t count;
  float scale, factor;
  DType operand_type;
};

struct NewtonSchulzPolynomialArgs {
  Exec exec;
  void* gram;
  const float* square;
  std::int64_t count;
  float linear, quadratic;
  DType gram_type;
};

struct MuonKernels {
  void (*momentum)(const MuonArgs&);
  void (*update)(const MuonArgs&);
  void (*operand)(const NewtonSchulzOperandArgs&);
  void (*polynomial)(const NewtonSchulzPolynomialArgs&);
};
TRIREME_CPU_TABLES(MuonKernels, muon_cpu);
namespace cuda {
extern const MuonKernels muon_cuda;
}

}  // namespace trireme
