#pragma once
// AdamW and Lion as kernels/update has them, with moments in 8 bits (kernels/update/moment_codes.h)
// as bitsandbytes' AdamW8bit and Lion8bit keep them:
//
//   m, v = the moments that the codes say;  p, m, v as adamw_update or lion_update make them, in
//   f32;  codes and magnitudes of the new m, v
//
// Magnitudes are those of blocks of the whole tensor, whoever has parts of them: so all bits are
// those of one rank that has everything, in any parts, on a CPU and a GPU (but NaNs', and as
// kernels/update says). Deterministic.

#include <span>

#include "base/math.h"
#include "kernels/update/moment_codes.h"
#include "kernels/update/update.h"

namespace trireme {

struct CodedMoment {
  TensorView codes;   ///< bytes, one for each element
  TensorView absmax;  ///< f32 [blocks]
  TensorView next;    ///< i32 [blocks]: the bits of what absmax becomes; for parts
};

/// Of a rank's tensor, seen as [R, C] (a vector as [R, 1]), these rows and columns: element (r, c)
/// of them is element begin + r stride + c of the whole tensor.
struct MomentPart {
  Slice rows, columns;
  std::int64_t begin, stride;
};

/// Without `parts` the tensor begins with a block of the whole one, and ends with one or with it;
/// absmax has its blocks. With parts, which have each element once, absmax has all blocks of the
/// whole tensor. exp_avg_sq is AdamW's alone; the rest is as in UpdateTensor.
struct CodedTensor {
  TensorView parameter, copy;
  CodedMoment exp_avg, exp_avg_sq;
  ConstTensorView gradient;
  double weight_decay = 0, lr_scale = 1;
  ConstTensorView gradient_slots = {};
  std::span<const MomentPart> parts = {};
};

/// Tensors all with parts, or none. Of those with parts absmax is left as it is, and the codes are
/// those of `next`, which is to take its place behind the call.
void adamw_8bit_update(Context& context, std::span<const CodedTensor> tensors,
                       const AdamWConstants& constants, const AdamWScalars& scalars);
void lion_8bit_update(Context& context, std::span<const CodedTensor> tensors,
                      const LionConstants& constants, double lr, float gradient_scale);

/// next = max(next, bits of |x|) over the elements of each block that the parts have, x the moments
/// that the update with the same arguments would make. NaN above all; any order and grouping of
/// maxima gives the same. Changes nothing else.
void adamw_8bit_maxima(Context& context, std::span<const CodedTensor> tensors,
                       const AdamWConstants& constants, const AdamWScalars& scalars);
void lion_8bit_maxima(Context& context, std::span<const CodedTensor> tensors,
                      const LionConstants& constants, double lr, float gradient_scale);

}  // namespace trireme
