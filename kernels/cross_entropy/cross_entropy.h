#pragma once
// The loss of a chunk of tokens, whose logits need not outlive it, over a vocabulary that may be
// sharded: statistics of each shard, merged once they have been gathered, then loss and gradient.

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Columns [0, valid) of `logits` are entries first, first + 1, ...; others are padding.
struct VocabularyPart {
  std::int64_t first = 0, valid = 0;
};

///   maximum[t] = max_v logits[t,v]
///   sum[t] = sum_v exp(logits[t,v] - maximum[t])
///   target_logit[t] = logits[t, target[t]] where this part holds it, else 0
///
///   maximum, sum, target_logit  [T]     f32
///   logits                      [T, V]  f32|bf16
///   targets                     [T]     i32, -1 = not counted
///
/// Without a column, or where all are -inf, maximum is -inf and sum 0. NaN makes it NaN.
struct CrossEntropyStatistics {
  TensorView maximum_T, sum_T, target_logit_T;
  ConstTensorView logits_TV, targets_T;
  VocabularyPart part;
};
void cross_entropy_statistics(Context& context, const CrossEntropyStatistics& args);

/// The statistics of the whole vocabulary from those of its R parts:
///   maximum[t] = max_r maximum[r,t]
///   sum[t] = sum_r sum[r,t] exp(maximum[r,t] - maximum[t])
///   target_logit[t] = sum_r target_logit[r,t]   (one part holds it)
///
///   maximum, sum, target_logit  [T]        f32, outside of parts
///   parts                       [R, 3, T]  f32, of each part maximum, sum and target_logit; R >= 1
/// Sums in order of r.
/// A single part is copied. Deterministic, the same bits for any thread count.
struct CrossEntropyMerge {
  TensorView maximum_T, sum_T, target_logit_T;
  ConstTensorView parts_R3T;
};
void cross_entropy_merge(Context& context, const CrossEntropyMerge& args);

///   lse[t] = maximum[t] + log(sum[t])
///   loss[t] = lse[t] - target_logit[t]
///   square[t] = lse[t]^2
///   dlogits[t,v] = (exp(logits[t,v] - maximum[t]) / sum[t] (1 + 2 z lse[t]) - [v = target[t]])
///   scale
///
/// all 0 where the target is -1, and dlogits in padding columns. So dlogits is the gradient of
/// (loss + z square) scale, z = z_loss (PaLM's auxiliary loss, Chowdhery et al. 2022, section 5);
/// z = 0 has the bits of the formula without it.
///
///   maximum, sum, target_logit  [T]     f32, of the whole vocabulary
///   loss                        [T]     f32, not given when only the gradient is wanted
///   square                      [T]     f32, not given, or with loss; may be target_logit
///   logits                      [T, V]  f32|bf16
///   dlogits                     [T, V]  f32|bf16, bf16 where logits are; may be logits of its
///                                       type; not given when only the loss is wanted
///   scale                       [1]     f32, in the device's memory; given with dlogits
struct CrossEntropyFinish {
  TensorView loss_T, dlogits_TV;
  ConstTensorView logits_TV, maximum_T, sum_T, target_logit_T, targets_T;
  VocabularyPart part;
  ConstTensorView scale = {};
  float z_loss = 0;
  TensorView square_T = {};
};
void cross_entropy_finish(Context& context, const CrossEntropyFinish& args);

}  // namespace trireme
