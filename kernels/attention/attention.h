#pragma once
// Exact attention without a T x T matrix, by blocks with a running maximum (Dao et al.,
// FlashAttention 1 and 2). The contract serves whole sequences, pieces of one (context parallelism)
// and a key/value cache alike: queries and keys come with the global positions they stand at.

#include <span>

#include "device/context.h"
#include "kernels/quantize/quantize.h"
#include "tensor/heads_view.h"

namespace trireme {

/// `count` consecutive tokens that stand at positions first, first + 1, ...
struct PositionRange {
  std::int64_t first, count;
};

/// Which query sees which key. Within one sequence query i stands at position p(i), key j at
/// position r(j), and i sees j iff first_key[i] <= r(j) <= p(i) and p(i) - r(j) < window.
struct AttentionMask {
  std::int64_t sequences = 1;  ///< B; q holds B * Tq tokens, k and v B * Tk, sequence by sequence
  std::span<const PositionRange> q;   ///< the same for every sequence; counts sum to Tq
  std::span<const PositionRange> kv;  ///< likewise, Tk
  ConstTensorView first_key_T;  ///< [B * Tq] i32: where the query's document begins; not given: 0
  std::int64_t window = 0;      ///< positions that a query sees, its own the last; 0: all
};

/// Dropout of probabilities (Srivastava et al. 2014) whose choice is a function of the sample, the
/// head and the positions of query and key: no mask is stored, and any cut of heads and tokens over
/// ranks or calls drops the same pairs. With d = round(share 2^16), at most 2^16 - 1:
///
///   P~[i,j] = P[i,j] 2^16 / (2^16 - d) where r(s, h, p(i), r(j)) >= d, else 0
///
/// r(s, h, i, j) = 16 bits of Philox-4x32-10 (base/random.h) of `key` and the counter
///   2^32 s + 8 floor(i / 32) + i mod 8,   2^32 h + 8 floor(j / 16) + j mod 8
/// of word floor(i / 8) mod 4 the lower half where floor(j / 8) is even, else the upper one: a
/// number of 128 bits is for the 4 x 2 pairs of 32 queries and 16 keys that one lane of a GPU's
/// products holds. s: the sample of the sequence; h: the query head, of all ranks' heads.
struct AttentionDropout {
  double share = 0;  ///< dropped, to the next 2^-16; in [0, 1). Below 2^-17 nothing is
  std::uint64_t key = 0;
  /// i32 [R, 2], of sequence b row b R / B: its first number is the sample (DropoutChoice::tokens).
  ConstTensorView numbers_R2 = {};
  std::int64_t first_head = 0;  ///< of all ranks' heads that of q's first
};

///   S[i,j] = scale q_i . k_j   over the keys j that query i sees
///   LSE_i = log sum_j exp S[i,j]
///   O_i = sum_j P~[i,j] v_j,   P[i,j] = exp(S[i,j] - LSE_i)
///
/// P~ is P without `dropout`, whose LSE stays that of P. A query that sees no key gets O = 0, LSE =
/// -inf, so that `attention_merge` can add the rest.
///
///   q      heads [B*Tq, H, D]    f32|bf16, all of one type
///   k      heads [B*Tk, G, D]    H % G == 0: query head h reads key head h / (H/G)
///   v      heads [B*Tk, G, Dv]   of as many dims as keys, or fewer (latent attention: 128 of 192)
///   o      heads [B*Tq, H, Dv]
///   lse    [B*Tq, H]  f32
/// D and Dv any multiples of 2, Dv <= D <= 256; scale > 0; o overlaps no operand. Arithmetic and
/// sums in f32. Deterministic, and the same bits for any thread count.
/// `quantized` is of o's rows, which heads then fill; one part.
///
/// On a GPU: f32 operands are multiplied in f32 (no TF32). bf16 ones go through tensor cores with
/// sums in f32, and P is rounded to bf16 for its product with v (its sum is not): o is off by up to
/// 2^-9 of the largest |v| besides its own rounding. A query has the same bits whatever queries
/// stand around it; others, on Hopper, where all heads lie in rows of multiples of 16 bytes (a
/// kernel of its own, by TMA and wgmma). A v that is not finite may reach queries that do not see
/// it (0 inf is NaN).
///
/// Dropout is served by the kernels of any GPU, in tiles of 64, 128 or 256 columns, not by Hopper's
/// own nor a library's, which it refuses. P~ is rounded to bf16 before its factor.
///
/// Where a library computes a GPU's attention (attention_backend.h), both passes take bf16 heads in
/// rows of multiples of 16 bytes, whole sequences (one range from 0 for queries and keys), no
/// first_key and no window; else they refuse. Sums are in f32; dq, dk, dv are rounded to bf16, then
/// added.
struct AttentionForward {
  HeadsView o;
  TensorView lse_TH;
  ConstHeadsView q, k, v;
  AttentionMask mask;
  float scale = 1;
  QuantizedOutput quantized = {};
  AttentionDropout dropout = {};
};
void attention_forward(Context& context, const AttentionForward& args);
/// `quantized` by passes of their own, where o comes of several calls.
void leave_quantized(Context& context, const QuantizedOutput& quantized, const ConstHeadsView& o);

/// Tokens of a page of a key/value cache.
inline constexpr std::int64_t kAttentionPage = 64;

/// Attention of single tokens over what their sequences have seen, kept in pages of
/// kAttentionPage tokens (Kwon et al. 2023, PagedAttention): key j of sequence s is row
/// pages[s, j / kAttentionPage] kAttentionPage + j mod kAttentionPage of k and v. Row t is a query
/// of sequence[t] at position[t] and sees the keys 0 to position[t] of it, or the last `window` of
/// them; O and LSE as above. A row has the same bits alone and among any others, and for any pages.
/// D up to 1024; v may be k or the first dims of its one head, as over rows of latents
/// (kernels/latent_heads).
///
///   q         heads [T, H, D]      f32|bf16, all of one type
///   o         heads [T, H, Dv]
///   k         heads [rows of all pages, G, D]
///   v         heads [rows of all pages, G, Dv]
///   pages     [S, P] i32;  sequence, position  [T] i32;  lse  [T, H] f32, may be left out
struct CachedAttention {
  HeadsView o;
  ConstHeadsView q, k, v;
  ConstTensorView pages_SP, sequence_T, position_T;
  std::int64_t longest = 0;  ///< the largest position, and 1
  float scale = 1;
  std::int64_t window = 0;  ///< 0: no limit
  TensorView lse_TH = {};
};
void attention_cached(Context& context, const CachedAttention& args);

/// Joins results over two disjoint sets of keys; o and lse take the whole, an exact softmax:
///   L = log(exp lse + exp lse2),  o = o exp(lse - L) + o2 exp(lse2 - L)
void attention_merge(Context& context, HeadsView o, TensorView lse_TH, ConstHeadsView o2,
                     ConstTensorView lse2_TH);

/// Joins a sink, a score of a head that all its queries see and that has no value (Xiao et al.
/// 2023; gpt-oss learns it):
///   L = log(exp lse + exp sink),  o = o exp(lse - L),  lse = L
/// Called once, when lse is over all keys. The backward pass stays what it is, with this lse and
/// the delta of this o.
///
///   sink [H] as o;  o, lse as above
/// In f32, o rounded once more. Deterministic; a row's bits do not depend on the others.
void attention_sinks(Context& context, HeadsView o, TensorView lse_TH, ConstTensorView sink_H);

/// terms[i,h] = -exp(sink[h] - lse[i,h]) delta[i,h]: summed over i the gradient of a sink.
///
///   terms, lse, delta [T, H] f32, the last two with the sink;  sink [H] f32|bf16
void attention_sink_terms(Context& context, TensorView terms_TH, ConstTensorView sink_H,
                          ConstTensorView lse_TH, ConstTensorView delta_TH);

///   delta[i,h] = sum_d dO[i,h,d] O[i,h,d]
///
/// Called once, however many backward passes over parts of the keys follow. delta [B*Tq, H] f32.
void attention_delta(Context& context, TensorView delta_TH, ConstHeadsView d_o, ConstHeadsView o);

///   P[i,j] = exp(S[i,j] - lse_i),   dS[i,j] = (P~[i,j] dO_i . v_j - P[i,j] delta_i) scale
///   dQ_i += sum_j dS[i,j] k_j
///   dK_j += sum_i dS[i,j] q_i,      dV_j += sum_i P~[i,j] dO_i
///
/// with P~ as above, of the forward pass's `dropout`, whose o delta is of; the sums of a key head
/// run over its H/G query heads too.
///
///   dq     heads [B*Tq, H, D]    f32, accumulated as dk and dv are: the caller clears them
///   dk     heads [B*Tk, G, D]
///   dv     heads [B*Tk, G, Dv]
///   d_o    heads [B*Tq, H, Dv]   as o
///   q, k, v, mask, scale as in the forward pass; lse and delta final (over all keys)
/// Deterministic for a given number of threads; no output overlaps an operand.
///
/// On a GPU deterministic without atomics: a kernel over keys gives dk and dv, one over queries dq,
/// so that S and dP are made twice (7 products in place of 5). With bf16 operands P and dS are
/// rounded to bf16 for their products. first_key is read on the GPU alone.
///
/// Where the context does not ask for determinism, a GPU makes bf16 gradients in one pass over the
/// keys (5 products): dk and dv have the same bits as otherwise, dq is the same sum in an order
/// that differs from run to run, by f32 atomics. f32 operands, and a GPU whose blocks have too
/// little shared memory for it (sm_86 and sm_89, heads of 97 to 128), stay with the above.
///
/// Hopper has kernels of one pass for bf16 heads of 40 to 256 in rows of multiples of 16 bytes,
/// gradients in such rows too. They serve both: for equal bits their blocks add to each dq in one
/// order of the keys' tiles.
struct AttentionBackward {
  HeadsView dq, dk, dv;
  ConstHeadsView d_o, q, k, v;
  ConstTensorView lse_TH, delta_TH;
  AttentionMask mask;
  float scale = 1;
  ConstHeadsView o = {};  ///< of the forward pass; a library needs it, ours takes delta
  /// Heads of the operands' type. Where they are given the gradients are written there and nothing
  /// is added; dq, dk and dv get any values.
  struct Written {
    HeadsView dq, dk, dv;
    [[nodiscard]] bool given() const { return dq.data != nullptr; }
  } written = {};
  AttentionDropout dropout = {};
};
void attention_backward(Context& context, const AttentionBackward& args);

/// Whether attention_backward serves `args.written`, and what of it reads. Not with dropout.
enum class AttentionWrites : std::uint8_t {
  kNo,         ///< gradients are added
  kFromDelta,  ///< Hopper's kernels of whole sequences: dk and dv are one block's alone there
  kFromOutput  ///< a library, which rounds gradients before it could add them: o; delta is not read
};
/// May measure who is the faster (kernel_choices.h), with `args` as they are: dq, dk, dv and what
/// is written get any values.
AttentionWrites attention_backward_writes(Context& context, const AttentionBackward& args);

}  // namespace trireme
