#pragma once
// Rows of tokens by expert and back (permute and unpermute). A token t has k slots, each of which
// names an expert; a slot whose expert is here has a row. Rows lie by expert, those of an expert
// by token: segments of an expert are the tokens of a source, in order of sources.

#include <cstdint>

#include "device/context.h"
#include "kernels/glu/glu_gate.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// The table of rows.
///   begins    [G P + 1] i32: segment (g, p), of expert g's rows those of source p's tokens, is
///   rows
///             [begins[g P + p], begins[g P + p + 1]); the last is R, the number of rows
///   row_slot  [most] i32: row r is slot row_slot[r] % k of token row_slot[r] / k; most >= R,
///             what is behind R is left as it is
///   slot_row  [T, k] i32: the row of a slot, -1 where its expert is not here
///   chosen    [T, k] i32: experts, of all      place   [E] i32: 0 ... G - 1, which expert here; -1
///   sources   [P + 1] i32: source p has tokens [sources[p], sources[p + 1]), the last is T' <= T:
///             slots of tokens behind have no row
/// No token names an expert twice. G is at most 1,024, k 32. Deterministic, as is all below.
struct ExpertRows {
  TensorView begins, row_slot, slot_row_Tk;
  ConstTensorView chosen_Tk, place_E, sources;
};
void expert_rows(Context& context, const ExpertRows& args);

/// rows[r] = x[row_slot[r] / k] for r < R, R the last of `begins`; rows behind stay as they are.
/// Without `begins` for all rows. Bits are copied as they are.
///   rows [most, C] f32|bf16;  x [T, C] alike
void gather_rows(Context& context, TensorView rows_RC, ConstTensorView x_TC,
                 ConstTensorView row_slot, ConstTensorView begins, std::int64_t slots);

/// y[t] = (addend[t] +) sum_j rows[slot_row[t, j]], in order of slots from the first, of those >=
/// 0, in f32 and rounded once; the addend comes last.
///   y, addend [T, C], rows [most, C] f32|bf16, one type; addend may be y, or absent
void combine_rows(Context& context, TensorView y_TC, ConstTensorView rows_RC,
                  ConstTensorView slot_row_Tk, ConstTensorView addend_TC = {});

/// Gated linear units whose result has a weight for each row:
///   h[r, f] = w_r a(gate) u,  gate = gate_up[r, f], u = gate_up[r, F + f],  w_r = weights[slot]
///   h [most, F], gate_up [most, 2F] f32|bf16; weights [slots] f32, row_slot as above: w_r is
///   weights[row_slot[r]]; without row_slot and begins weights[r], for all rows
/// With biases of experts, where x = gate_up + b_g for the rows of expert g, it is clamped SwiGLU
/// (gpt-oss) in place of the gate's:
///   gate = min(x[r, f], limit),  u = min(max(x[r, F + f], -limit), limit)
///   h = w_r gate sigmoid(alpha gate) (u + 1)
///   bias [G, 2F] as h, with row_slot and begins of `sources` segments each; nothing flows back
///   beyond a limit
struct BiasedGlu {
  ConstTensorView bias_G2F;
  float alpha = 0, limit = 0;
  std::int64_t sources = 1;  ///< P of begins
};
struct WeightedGlu {
  GluGate gate = {};
  ConstTensorView gate_up_R2F, weights, row_slot, begins;
  BiasedGlu biased = {};
};
void weighted_glu_forward(Context& context, TensorView h_RF, const WeightedGlu& args);

/// dgate_up = w_r x glu's gradient at dh; dweights[r] = sum_f dh a(gate) u, by rows; h again.
///   dgate_up may be gate_up, h may be dh; dweights [most] f32
void weighted_glu_backward(Context& context, TensorView dgate_up_R2F, TensorView dweights_R,
                           TensorView h_RF, ConstTensorView dh_RF, const WeightedGlu& args);

/// The bias of a product behind such units, which a row's weight multiplies as it does the unit:
///   forward   y[r] += w_r b_g           for the rows r of expert g
///   backward  dweights[r] += <dy[r], b_g>
///   y, dy [most, C] f32|bf16;  bias [G, C] alike;  weights, row_slot, begins as above, G P + 1
///   begins;  dweights [most] f32. Rows behind the last stay as they are.
/// db_g is grouped_gemm_weights of dy and row_factors with weights; that of a bias before a unit,
/// of dgate_up and row_factors without.
struct ExpertBias {
  ConstTensorView bias_GC, weights, row_slot, begins;
  std::int64_t sources = 1;
};
void expert_bias_forward(Context& context, TensorView y_RC, const ExpertBias& args);
void expert_bias_backward(Context& context, TensorView dweights_R, ConstTensorView dy_RC,
                          const ExpertBias& args);

/// factors[r] = w_r = weights[row_slot[r]] of the rows there are, or without weights 1 for all.
///   factors [most, 1] f32|bf16;  weights [slots] f32;  row_slot, begins as above, with weights
void row_factors(Context& context, TensorView factors_R1, ConstTensorView weights = {},
                 ConstTensorView row_slot = {}, ConstTensorView begins = {});

}  // namespace trireme
