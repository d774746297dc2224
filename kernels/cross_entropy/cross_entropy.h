#pragma once
// The loss on a chunk of tokens whose logits exist only for the moment, in three ops so that the
// vocabulary may be cut: local statistics, a reduction of two floats for each token elsewhere, then
// loss and gradient.

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Columns [0, valid) of `logits` are the vocabulary entries first, first + 1, ...; columns beyond
/// are padding.
struct VocabularyPart {
  std::int64_t first = 0, valid = 0;
};

/// maximum[t] = max_v logits[t,v];  sum[t] = sum_v exp(logits[t,v] - maximum[t]);
/// target_logit[t] = logits[t, target[t]] where this part holds it, else 0
///
///   maximum, sum, target_logit [T] f32;  logits [T, V] f32;  targets [T] i32, -1 = not counted
/// Deterministic, the same bits for any thread count.
struct CrossEntropyStatistics {
  TensorView maximum_T, sum_T, target_logit_T;
  ConstTensorView logits_TV, targets_T;
  VocabularyPart part;
};
void cross_entropy_statistics(Context& context, const CrossEntropyStatistics& args);

/// loss[t] = maximum + log(sum) - target_logit, 0 where the target is -1;
/// dlogits[t,v] = (exp(logits - maximum) / sum - [v = target]) * scale, 0 where the target is -1
/// and in padding columns
///
///   loss [T] f32, not given when only the gradient is wanted;  statistics over the whole
///   vocabulary dlogits [T, V] f32|bf16, may be logits (f32); not given when only the loss is
///   wanted
struct CrossEntropyFinish {
  TensorView loss_T, dlogits_TV;
  ConstTensorView logits_TV, maximum_T, sum_T, target_logit_T, targets_T;
  VocabularyPart part;
  float scale = 1;
};
void cross_entropy_finish(Context& context, const CrossEntropyFinish& args);

}  // namespace trireme
