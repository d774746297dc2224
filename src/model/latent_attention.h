#pragma once
// How the heads of latent attention (kernels/latent_heads) come from n, in place of one product:
//   (a_q, a_kv, r) = n Wdown;   c = norm(a) of q, and of keys and values
//   q = heads of c_q Wq;   k, v = heads of c_kv Wkv and r
// Without a rank of q, c_q is n. The first product and the norms run on the residual rows; latents
// and r are what the tensor axis gathers, and their gradients what it reduces, in place of n and
// its gradient. Heads of all tokens are its ranks'.

#include "model/branch.h"
#include "model/qkv_heads.h"

namespace trireme {

struct AttentionWeights;
struct AttentionActivations;
struct AttentionGradients;
struct KvCache;
using AttentionBranchBackward =
    BranchBackward<AttentionParams, AttentionActivations, AttentionGradients>;

struct LatentActivations {
  TensorView q_TX, kv_TX, rope_TR;    ///< c_q, c_kv, r, of all tokens; no q where c_q is n
  TensorView heads_TX;                ///< q, k and v as attention reads them
  AdapterRows q_adapter, kv_adapter;  ///< of the second products

  template <class Visit, class... Of>
  static void each(const LayerShape& shape, const Visit& visit, Of&... of) {
    each_of_weight(
        shape,
        [&](const TensorSize& size, auto&... view) {
          visit(size, shape.recompute == Recompute::kFull, view...);
        },
        of...);
    const AttentionConfig& config = shape.config.attention;
    const AdapterRanks& ranks = shape.config.adapters;
    const auto adapter = [&](std::int64_t rank, std::int64_t outputs, auto&... rows) {
      if (rank == 0) return;
      visit(shape.wide(rank), false, rows.us_TR...);
      if (!shape.magnitudes) return;
      visit(shape.wide(outputs), false, rows.v_TN...);
      visit(adapter_gain_rows(outputs), false, rows.gains_3N...);
    };
    adapter(ranks.q_up, config.heads * config.latent->query_dim(), of.q_adapter...);
    adapter(ranks.kv_up, config.heads * config.latent->key_value_dim(), of.kv_adapter...);
    visit(shape.wide(config.latent->rope_dim), shape.recompute == Recompute::kFull, of.rope_TR...);
    visit(shape.wide(config.qkv_size()), recomputes_heads(shape), of.heads_TX...);
  }
  /// What W reads.
  template <class Visit, class... Of>
  static void each_of_weight(const LayerShape& shape, const Visit& visit, Of&... of) {
    const LatentConfig& latent = *shape.config.attention.latent;
    if (latent.q_rank > 0) visit(shape.wide(latent.q_rank), of.q_TX...);
    visit(shape.wide(latent.kv_rank), of.kv_TX...);
  }
  /// Without a latent of q selective recomputation has not what heads come from.
  static bool recomputes_heads(const LayerShape& shape) {
    return shape.recompute == Recompute::kFull ||
           (shape.recompute == Recompute::kSelective && shape.config.attention.latent->q_rank > 0);
  }
};

/// What B leaves for W.
struct LatentGradients {
  TensorView up_TX;  ///< of the second products' results: all rows of q's, then of the other's
  TensorView q_du_TR, kv_du_TR;  ///< of adapters of the second products

  template <class Own, class Exchanged, class... Acts>
  static void each(const LayerShape& shape, const Own& own, const Exchanged& exchanged,
                   LatentGradients& of, Acts&... acts) {
    const AttentionConfig& config = shape.config.attention;
    const LatentConfig& latent = *config.latent;
    const AdapterRanks& ranks = shape.config.adapters;
    if (ranks.q_up > 0) own(shape.wide(ranks.q_up), of.q_du_TR);
    if (ranks.kv_up > 0) own(shape.wide(ranks.kv_up), of.kv_du_TR);
    if (shape.exchanges() && !LatentActivations::recomputes_heads(shape)) {
      exchanged(shape.wide(config.qkv_size()), of.up_TX, acts.heads_TX...);
    } else {
      own(shape.wide(config.heads * (latent.query_dim() + latent.key_value_dim())), of.up_TX);
    }
  }
};

struct LatentForwardScratch {
  TensorView q_TX, kv_TX;  ///< the second products' results
};
LatentForwardScratch lay_out_latent_forward(ArenaCursor& arena, const LayerShape& shape);
struct LatentBackwardScratch {
  TensorView dheads_TX;
  TensorView dq_TX, dkv_TX, drope_TR;  ///< of the latents
  TensorView dots_2S;
};
LatentBackwardScratch lay_out_latent_backward(ArenaCursor& arena, const LayerShape& shape);

/// Memory that generation needs beside the cache.
struct LatentDecoding {
  TensorView latents_LX, kv_LX, heads_LX;  ///< of a sequence, in order; heads of k, then of v
  TensorView row_TX, query_TX, sum_TX;     ///< of the tokens of a pass
};
/// Of the layers of `local`, this rank's model, for a sequence of `length` tokens. Nothing without
/// latents, here and below.
LatentDecoding lay_out_latent_sequence(ArenaCursor& arena, const ModelConfig& local,
                                       std::int64_t length, DType compute);
/// `decoding` with what a pass needs.
LatentDecoding lay_out_latent_rows(ArenaCursor& arena, const LayerShape& shape,
                                   LatentDecoding decoding);

/// What a pass makes of its latents.
enum class LatentHeads : std::uint8_t {
  kAll,
  kQueries,  ///< for the keys of a cache, in order
  kNone,     ///< for those of a cache as they lie: q's product alone, in scratch.q
};
/// From n, whose rows without a latent of q are gathered, to heads.
void latent_forward(const LayerPass& pass, const AttentionWeights& weights,
                    const AttentionActivations& acts, const LatentForwardScratch& scratch,
                    TensorView n_TC, LatentHeads which = LatentHeads::kAll);
/// Heads again, from latents that are all here.
void latent_heads_again(const LayerPass& pass, const AttentionWeights& weights,
                        const AttentionActivations& acts, const LatentForwardScratch& scratch);

/// Rows of the tokens, to the cache.
void latent_keep(const LayerPass& pass, const AttentionActivations& acts, const KvCache& cache);
/// Keys and values from rows of a cache.
struct KeysAndValues {
  HeadsView k, v;
};
KeysAndValues latent_expand(const LayerPass& pass, const AttentionWeights& weights,
                            const LatentDecoding& room, const HeadsView& rows);
/// What each token by itself sees in the cache, to acts.attended.
void latent_attend_rows(const LayerPass& pass, const AttentionWeights& weights,
                        const AttentionActivations& acts, const LatentForwardScratch& scratch,
                        const KvCache& cache, float scale);

/// From the gradient of the heads, scratch.dheads, to that of n, whole in its residual rows.
void latent_backward(const AttentionBranchBackward& of, const AttentionWeights& weights,
                     const LatentBackwardScratch& scratch, TensorView spare_TC);
/// W. Without a latent of q all rows of n are here.
void latent_weight(const AttentionBranchBackward& of);

}  // namespace trireme
