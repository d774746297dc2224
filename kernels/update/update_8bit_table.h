#pragma once

#include <cstdint>

#include "kernels/update/moment_codes.h"
#include "kernels/update/update_table.h"

namespace trireme {

/// A warp updates a block of moments; a GPU's block so many.
inline constexpr std::int64_t kMomentBlocksPerBlock = 64;

/// A moment in codes.
struct CodedMomentArgs {
  std::uint8_t* codes;
  float* absmax;  ///< by block of the whole tensor
  std::int32_t*
      next;  ///< the bits of what it becomes, likewise; null: the update finds and stores it
};

/// One tensor, or a part of one: `count` elements in runs of `width`, from element `offset` of the
/// rank's tensor on, of which a run begins every `stride`; in the whole tensor the first is element
/// `begin` and a run begins every `whole_stride`. Without `next` one run, from a block's first
/// element on. Nothing changes from step to step.
struct CodedTensorArgs {
  float* parameter;
  BFloat16* copy;  ///< or null
  const float* gradient;
  const std::int32_t* slots;  ///< or null, as UpdateTensorArgs has them
  std::int64_t row;
  CodedMomentArgs exp_avg, exp_avg_sq;
  std::int64_t offset, width, stride, begin, whole_stride, count;
  std::int64_t first_unit, first_block;  ///< blocks of kMomentBlock elements of it; a GPU's
  double lr_scale, decay;
};

struct CodedUpdateArgs {
  Exec exec;
  const CodedTensorArgs* tensors;  ///< in the device's memory, like the next two
  const UpdateScalars* step;
  const MomentTables* codes;
  std::int64_t tensor_count, unit_count, block_count;
  UpdateConstants constants;
};

enum class CodedPass : std::uint8_t {
  kWhole,   ///< finds and stores magnitudes on the way
  kMaxima,  ///< joins those of the new moments into `next`, and changes nothing else
  kGiven,   ///< codes by `next`
};

struct CodedUpdateKernels {
  void (*adamw)(const CodedUpdateArgs&, CodedPass);
  void (*lion)(const CodedUpdateArgs&, CodedPass);
};
TRIREME_CPU_TABLES(CodedUpdateKernels, update_8bit_cpu);
namespace cuda {
extern const CodedUpdateKernels update_8bit_cuda;
}

}  // namespace trireme
