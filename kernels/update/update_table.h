#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// A GPU's blocks update so many elements each.
inline constexpr std::int64_t kUpdateElementsPerBlock = 4096;

/// One tensor. Nothing changes from step to step: a GPU keeps the table, found by its bytes. Of an
/// average `parameter` is read, and `exp_avg` is what changes.
struct UpdateTensorArgs {
  float *parameter, *exp_avg, *exp_avg_sq;
  const float* gradient;
  BFloat16* copy;   ///< or null
  float* copy_f32;  ///< or null
  float* kept;      ///< or null
  /// Or null: rows of `row` elements have their gradients at gradient + slots[r] row.
  const std::int32_t* slots;
  std::int64_t row;
  /// Elements before it in the call; blocks of kUpdateElementsPerBlock before it, none shared.
  std::int64_t begin, first_block;
  std::int64_t count;
  double lr_scale, decay;  ///< both times the step's rate; decay: weight_decay * lr_scale
};

/// What changes from step to step: in the memory of the device, where the update reads it.
struct UpdateScalars {
  double lr, step_size;  ///< step_size: AdamW's lr / bias_correction1, others' lr
  float gradient_scale;
  float inverse_sqrt_correction2;  ///< 1 / sqrt(bias_correction2)
  float share;                     ///< schedule-free's
};

/// Of an average and of a copy one_minus_beta1 alone.
struct UpdateConstants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
};

struct UpdateArgs {
  Exec exec;
  const UpdateTensorArgs* tensors;  ///< in the device's memory
  const UpdateScalars* step;        ///< likewise; null for averages and copies
  std::int64_t tensor_count, element_count, block_count;
  UpdateConstants constants;
};

struct UpdateKernels {
  /// *to = step, in the order of the stream; `to` in the device's memory.
  void (*write_step)(const Exec& exec, UpdateScalars* to, const UpdateScalars& step);
  void (*adamw)(const UpdateArgs&);
  void (*lion)(const UpdateArgs&);
  void (*schedule_free)(const UpdateArgs&);
  void (*schedule_free_copy)(const UpdateArgs&);
  void (*average)(const UpdateArgs&);
};
TRIREME_CPU_TABLES(UpdateKernels, update_cpu);
namespace cuda {
extern const UpdateKernels update_cuda;
}

}  // namespace trireme
