#pragma once
// Weights in four bits: NF4 (Dettmers et al., "QLoRA", arXiv 2305.14314), with the codes and
// magnitudes that bitsandbytes' quantize_4bit gives for blocks of 64 on a CPU, not nested.
//
//   absmax = max |x| over a block
//   v      = x * (1 / max(absmax, 1e-38))         in f32
//   code   = of the 15 midpoints between neighbouring levels those that are less than v: the
//            nearest level, the lower one of two; 15 of a NaN
//   x'     = level[code] * absmax                 in f32, rounded where it is stored
//
// The levels are 0 and 15 quantiles of a normal distribution, -1 to 1. A byte has the code of an
// even element in its upper half, that of the next in its lower one; behind the last element stands
// 7, zero's code. In a last block of fewer elements v = x / max(absmax, 1e-38), and that maximum is
// what is stored. A block with a value that is not finite has none that is when it comes back.
//
// All bits are the same on a CPU and a GPU, for any number of threads, but for those of a NaN, and
// of a bf16 below 2^-126 (kernels/README.md). Deterministic.

#include "device/context.h"
#include "tensor/nf4_view.h"

namespace trireme {

/// Codes and magnitudes of x, whose memory they do not share.   x of out.shape, f32
void nf4_quantize(Context& context, const Nf4View& out, ConstTensorView x);

/// x' of all codes.   x of from.shape, f32|bf16, in other memory
void nf4_dequantize(Context& context, TensorView x, const ConstNf4View& from);

}  // namespace trireme
