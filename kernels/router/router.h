#pragma once
// Which experts a token goes to, and how much of each (Shazeer et al. 2017; transformers'
// modeling_qwen3_moe, modeling_mixtral, modeling_deepseek_v3).
//
//   s = softmax_E(l) or sigmoid(l);   c = s + bias, -inf outside the best groups
//   chosen = the k largest of c, of equal ones those of the lowest index; in ascending order
//   w_i = scale s_i, or scale s_i / sum_chosen s where normalized (+ 1e-20 with sigmoid)
//
// A group is E / groups neighbours; its score is the sum of its two largest s + bias (the largest,
// where it has one), and the `groups_chosen` best count, of equal ones those of the lowest index.

#include "device/context.h"
#include "kernels/router/router_rule.h"
#include "tensor/tensor_view.h"

namespace trireme {

///   chosen   [T, k] i32, ascending in a row       weights  [T, k] f32, of those
///   load     [B, E] i32, added to, or absent: tokens of each sequence that chose an expert. Token
///   t
///            is of sequence (first_token + t) / sequence_tokens; 0: all are of one
///   balance  [B, E] i32, added to, or absent: the same of the k largest s alone, without bias and
///            groups
///   logits   [T, E] f32, E at most 1,024          bias     [E] f32, or absent
/// All in f32. A NaN among a token's logits makes its weights NaN; experts are chosen all the same,
/// with NaN and -inf for the least of c. Deterministic; a token has the same bits alone and among
/// any others.
struct RouterForward {
  TensorView chosen_Tk, weights_Tk;
  TensorView load_BE, balance_BE;
  ConstTensorView logits_TE, bias_E;
  RouterRule rule;
  std::int64_t first_token = 0, sequence_tokens = 0;
};
void router_forward(Context& context, const RouterForward& args);

/// dlogits of  <dweights, w> + sum_t <balance[b(t)], p_t> + z sum_t logsumexp(l_t)^2,  where p is
/// s, with sigmoid s / (sum_E s + 1e-20). Counts, the choice and groups are constants.
///
///   normalized   ds_i = scale / S (dw_i - sum_j dw_j s_j / S), S = sum_chosen s (+ 1e-20)
///   otherwise    ds_i = scale dw_i
///   softmax      dl = s (ds - <s, ds>)            sigmoid   dl = s (1 - s) ds
///
///   dlogits   [T, E] f32|bf16       losses  [2] f64, added to, or absent: the last two of the sum
///   dweights  [T, k] f32            balance [B, E] f32, or absent
/// A token's losses are added in f64, in an order that T alone decides. Deterministic, as above.
struct RouterBackward {
  TensorView dlogits_TE, losses;
  ConstTensorView logits_TE, chosen_Tk, dweights_Tk, balance_BE;
  float z = 0;
  RouterRule rule;
  std::int64_t first_token = 0, sequence_tokens = 0;  ///< which row of `balance` a token has
};
void router_backward(Context& context, const RouterBackward& args);

}  // namespace trireme
