#pragma once
// Heads of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). A token's keys and values
// are products of one short row, its latent, and a key's last R dims, which alone rotate, are
// shared by all heads:
//   q_h = (a_h, rope(b_h))         of [T, H (N + R)], for each head N dims a and R dims b
//   k_h = (k'_h, rope(r)),  v_h    of [T, H (N + V)], for each head N dims k' and V values; r [T,
//   R]
// Training expands them (LatentQueries, LatentKeys). A cache keeps a latent and rope(r) alone
// (latent_row): a query meets the latents themselves where the product that expands keys is moved
// to its side of the score, and that of values behind the sum (LatentAbsorbed).

#include "device/context.h"
#include "tensor/heads_view.h"

namespace trireme {

/// Dims of a head.
struct LatentDims {
  std::int64_t nope = 0;   ///< N, which do not rotate
  std::int64_t rope = 0;   ///< R, even, may be 0
  std::int64_t value = 0;  ///< V
};

/// For j < R/2, c = cos[p,j], s = sin[p,j] and p = positions[t]:
///   out[j] = y c - z s,   out[j + R/2] = z c + y s
/// with (y, z) = (in[2j], in[2j + 1]) where pairs are interleaved, else (in[j], in[j + R/2]).
///
///   positions  [T]     i32, in [0, P); on a GPU the caller has made sure of that
///   cos_sin    [P, R]  f32, as kernels/rope has them
/// Without positions nothing rotates: what would is copied in the order that it has. With R = 0
/// nothing is looked at.
struct LatentRope {
  ConstTensorView positions_T, cos_sin_PR;
  bool interleaved = true;
};

/// q[t,h] = (a, rope(b), 0...)
///
///   q      heads [T, H, D]      f32|bf16, all of one type; D >= N + R, zeros behind
///   in     [T, H (N + R)]
/// Arithmetic in f32, rounded once. No output overlaps an input, here and below. Deterministic.
struct LatentQueries {
  HeadsView q;
  ConstTensorView in_TX;
  LatentDims dims;
  LatentRope rope;
};
void latent_queries(Context& context, const LatentQueries& args);

/// k[t,h] = (k', rope(r), 0...),   v[t,h] = (v, 0...)
///
///   k      heads [T, H, D]      D >= N + R
///   v      heads [T, H, Dv]     Dv >= V
///   in     [T, H (N + V)]
///   r      heads [T, 1, R]      left out where R = 0, as dr below; without positions, rotated
struct LatentKeys {
  HeadsView k, v;
  ConstTensorView in_TX;
  ConstHeadsView r;
  LatentDims dims;
  LatentRope rope;
};
void latent_keys(Context& context, const LatentKeys& args);

/// Gradients of the inputs from those of the heads; dims of D behind are not looked at.
///   din    [T, H (N + R)]       dq  heads [T, H, D], alike
struct LatentQueriesBackward {
  TensorView din_TX;
  ConstHeadsView dq;
  LatentDims dims;
  LatentRope rope;
};
void latent_queries_backward(Context& context, const LatentQueriesBackward& args);

/// dr[t] = the rotation back of sum_h dk[t,h,N..N+R): in f32, h ascending, rounded once.
///   din    [T, H (N + V)]       dr  heads [T, 1, R]
struct LatentKeysBackward {
  TensorView din_TX;
  HeadsView dr;
  ConstHeadsView dk, dv;
  LatentDims dims;
  LatentRope rope;
};
void latent_keys_backward(Context& context, const LatentKeysBackward& args);

/// What a cache keeps of a token: out[t] = (latent[t], rope(r[t])).
///   out  heads [T, 1, L + R]    latent [T, L]    r  heads [T, 1, R]
struct LatentRow {
  HeadsView out;
  ConstTensorView latent_TL;
  ConstHeadsView r;
  LatentRope rope;
};
void latent_row(Context& context, const LatentRow& args);

/// A query that meets such rows: with the weight W of the product that expands latents,
///   out[t,h] = (sum_n a[t,h,n] W[h (N + V) + n], rope(b[t,h]))
/// so that out . row = q . k. Of few tokens, as generation has them: W is read once for each 8. A
/// token has the same bits alone and among others.
///
///   out  heads [T, H, L + R]    in  [T, H (N + R)]    w  [H (N + V), L]
/// Sums in f32, rounded once.
struct LatentAbsorbedQueries {
  HeadsView out;
  ConstTensorView in_TX, w_XL;
  LatentDims dims;
  LatentRope rope;
};
void latent_absorbed_queries(Context& context, const LatentAbsorbedQueries& args);

/// Values from the weighted sum u of rows' latents that attention has made of them:
///   o[t,h,d] = sum_l u[t,h,l] W[h (N + V) + N + d, l]
///
///   o    heads [T, H, V]        u   heads [T, H, L]
/// As above.
struct LatentAbsorbedValues {
  HeadsView o;
  ConstHeadsView u;
  ConstTensorView w_XL;
  LatentDims dims;
};
void latent_absorbed_values(Context& context, const LatentAbsorbedValues& args);

}  // namespace trireme
