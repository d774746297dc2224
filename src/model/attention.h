#pragma once
// The branch of a layer in which tokens see one another:
//   n = norm(s);   q, k, v = n Wqkv;   a = attention(rope(q), rope(k), v);   y = a Wout
// Before RoPE q and k may have norms, of each head or of all (QkNorm); heads may have sinks. Heads
// are those of this tensor-parallel rank; for a norm of all, sums travel between the ranks. Or they
// come by way of latents (latent_attention.h).

#include <algorithm>

#include "kernels/attention/attention_backend.h"
#include "model/branch.h"
#include "model/latent_attention.h"

namespace trireme {

struct AttentionWeights : BranchWeights {
  NormWeights q_norm, k_norm;
  LinearWeights q_up, kv_up;
  ConstTensorView sinks_H;
};
AttentionWeights weights_of(const ParamStore::Lease& lease, const AttentionParams& params);

/// In blocks of fp8, of B and W in one of a layer that is trained: whether RoPE's backward leaves
/// the gradient of q, k and v in codes alone.
inline bool rope_leaves_codes(const LayerConfig& layer, std::int64_t tensor_extent) {
  const AttentionConfig& config = layer.attention;
  const bool alone =
      tensor_extent == 1 && !config.latent && !config.qkv_bias && layer.adapters.attention_in == 0;
  return alone && config.rope && config.qk_norm == QkNorm::kNone && config.head_dim % 8 == 0 &&
         config.v_size() % 8 == 0 && config.rotated_dims() % 16 == 0;
}

/// With in = q, k and v, of which q and k are rotated in place where they have no norm. With
/// latents in is of the residual rows.
struct AttentionActivations : BranchActivations {
  /// Rotated q and k; only with their norms, whose backward needs the unrotated ones.
  TensorView qk_TX;
  TensorView rstd_q_TH, rstd_k_TH;  ///< of norms of heads
  TensorView squares_2T;  ///< of a norm of all, or of latents: the sums of q's and k's squares
  LatentActivations latent;
  TensorView attended_TX, lse_TH;  ///< attended: as the last product reads it

  template <class Visit, class... Of>
  static void each(const LayerShape& shape, const Visit& visit, Of&... of) {
    const AttentionConfig& config = shape.config.attention;
    const bool full = shape.recompute == Recompute::kFull;
    BranchActivations::each(shape, sizes(shape), visit, of...);
    if (config.latent) {
      visit({DType::kF32, {2, shape.residual_tokens}}, full, of.squares_2T...);
      LatentActivations::each(shape, visit, of.latent...);
    }
    if (config.qk_norm != QkNorm::kNone) {
      visit(shape.wide(config.q_size() + config.k_size()), shape.recompute != Recompute::kNone,
            of.qk_TX...);
    }
    if (config.qk_norm == QkNorm::kProjection) visit(shape.of_q_and_k(), full, of.squares_2T...);
    if (config.qk_norm == QkNorm::kHeads) {
      visit(shape.statistic(config.heads), full, of.rstd_q_TH...);
      visit(shape.statistic(config.kv_heads), full, of.rstd_k_TH...);
    }
    visit(shape.wide(config.out_size()), full, of.attended_TX...);
    visit(shape.statistic(config.heads), full, of.lse_TH...);
  }
  /// What W reads.
  template <class Visit, class... Of>
  static void each_of_weight(const LayerShape& shape, const Visit& visit, Of&... of) {
    BranchActivations::each_of_weight(shape, sizes(shape), visit, of...);
    visit(shape.wide(shape.config.attention.out_size()), of.attended_TX...);
    if (shape.config.attention.latent)
      LatentActivations::each_of_weight(shape, visit, of.latent...);
  }
  static BranchSizes sizes(const LayerShape& shape) {
    const AttentionConfig& config = shape.config.attention;
    const AdapterRanks& ranks = shape.config.adapters;
    return {config.latent ? shape.residual(config.in_size()) : shape.wide(config.in_size()),
            ranks.attention_in,
            ranks.attention_out,
            shape.maxima && shape.config.norm_before() && !config.latent,
            shape.maxima,
            shape.maxima && !config.latent ? 3 : 0,
            shape.maxima && shape.has_all_rows()};
  }
};

struct AttentionGradients : BranchGradients {
  static constexpr DropoutPlace kOut = DropoutPlace::kAttentionOut;
  NormGradients q_norm, k_norm;
  NormGradients sinks;  ///< kept as a norm's weights, always: a sum is made before it is added
  LatentGradients latent;

  template <class Own, class Exchanged, class... Acts>
  static void each(const LayerShape& shape, const Own& own, const Exchanged& exchanged,
                   AttentionGradients& of, Acts&... acts) {
    const AttentionConfig& config = shape.config.attention;
    own(shape.wide(shape.hidden), of.dy_TC);
    BranchGradients::each(shape, AttentionActivations::sizes(shape), own, exchanged, of, acts...);
    if (config.latent) LatentGradients::each(shape, own, exchanged, of.latent, acts.latent...);
    if (config.sinks) NormGradients::each({}, config.heads, own, of.sinks);
    if (!shape.split) return;
    if (config.latent) {
      if (config.latent->q_rank > 0) NormGradients::each({}, config.latent->q_rank, own, of.q_norm);
      NormGradients::each({}, config.latent->kv_rank, own, of.k_norm);
    }
    if (config.qk_norm == QkNorm::kNone) return;
    const bool all = config.qk_norm == QkNorm::kProjection;
    NormGradients::each({}, all ? config.q_size() : config.head_dim, own, of.q_norm);
    NormGradients::each({}, all ? config.k_size() : config.head_dim, own, of.k_norm);
  }
};

/// What lives within one forward pass.
struct AttentionForwardScratch {
  LatentForwardScratch latent;
  ContextAxis::Buffers axis;
};
AttentionForwardScratch lay_out_attention_forward(ArenaCursor& arena, const LayerShape& shape);
/// What lives within one backward pass.
struct AttentionScratch {
  TensorView dattended_TX, delta_TH;
  TensorView dots_2T;  ///< of a norm of all q and k
  TensorView sink_terms_TH;
  TensorView dqkv_f32_TX;  ///< the op's sums; the bf16 gradients are rounded from it
  LatentBackwardScratch latent;
  ContextAxis::Buffers axis;
};
AttentionScratch lay_out_attention_scratch(ArenaCursor& arena, const LayerShape& shape);

/// A layer's attention over heads as the activations have them. `config` is the tensor rank's.
AttentionLayout attention_layout(const AttentionConfig& config, std::int64_t sequences,
                                 std::int64_t tokens, bool deterministic);

/// The tokens of a pass among those of their sequences, for all layers: of several sequences, each
/// row seen alone, or of one by itself.
struct CachedTokens {
  ConstTensorView row_T;                     ///< [T] i32: of the cache, for keys and values
  std::span<const std::int32_t> positions;   ///< [T], on the host
  ConstTensorView sequence_T, pages_SP;      ///< of several: as attention_cached has them
  std::span<const std::int32_t> pages = {};  ///< of one: its own, on the host

  [[nodiscard]] std::int64_t longest() const {
    return std::int64_t{*std::max_element(positions.begin(), positions.end())} + 1;
  }
};
/// Where keys and values of earlier tokens of a layer wait during generation. Of latents there is
/// k alone: [rows, columns of latent_row].
struct KvCache {
  TensorView k, v;                  ///< [rows of all pages, kv columns]
  TensorView ordered_k, ordered_v;  ///< [length of a sequence, kv columns]: scratch
  const CachedTokens& tokens;
  const LatentDecoding* latent = nullptr;
};

/// From n, gathered on the way, to a, as the last product reads it next. With a cache, the tokens
/// are its.
ProductInput attend_forward(const LayerPass& pass, const AttentionWeights& weights,
                            const AttentionActivations& acts,
                            const AttentionForwardScratch& scratch, const NormedRows& n,
                            const KvCache* cache);
/// Selective recomputation: q, k (and v) as attention reads them, again.
void recompute_heads(const LayerPass& pass, const AttentionWeights& weights,
                     const AttentionActivations& acts, const AttentionForwardScratch& scratch);

/// From dy, while it is gathered, to the gradient of q, k and v. With latents that of the heads, in
/// scratch: latent_backward goes on. Where both products of it follow it may be given in codes, and
/// stand nowhere else.
BothOrders attend_backward(const AttentionBranchBackward& of, const AttentionWeights& weights,
                           const AttentionScratch& scratch, Pending dy,
                           Halves halves = Halves::kInput);

}  // namespace trireme
