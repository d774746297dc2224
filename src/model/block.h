#pragma once
// One transformer layer: norm, attention, norm, MLP, each branch added to the residual stream s.
//   s1 = s + x;   n1 = norm(s1);   q, k, v = n1 Wqkv;   a = attention(rope(q), rope(k), v)
//   o = a Wo;   s2 = s1 + o;   n2 = norm(s2);   h = act(n2 Wup);   y = h Wdown
// x is the branch of the layer before and y the branch for the next, so that each add is fused into
// the norm behind it.
//
// Heads and MLP columns are those of this tensor-parallel rank. n1, n2 (and dy, ds2 backward) are
// all-gathered, o, y (and dn1, dn2) reduced, as TensorAxis says. T: all tokens; S: those of this
// rank's residual rows.

#include "kernels/attention/attention_backend.h"
#include "kernels/norm/norm.h"
#include "model/linear.h"
#include "parallel/context_axis.h"
#include "parallel/tensor_axis.h"
#include "tensor/arena.h"

namespace trireme {

inline NormOp norm_op(const ModelConfig& config) {
  return config.norm == NormKind::kLayer ? NormOp::kLayer : NormOp::kRms;
}

struct NormWeights {
  ConstTensorView weight, bias;
};
NormWeights weights_of(const ParamStore::Lease& lease, const NormParams& params);

/// A norm of the model, without its operands.
NormForward norm_of(const ModelConfig& config, const NormWeights& weights);

struct BlockWeights {
  NormWeights attention_norm, mlp_norm, q_norm, k_norm;
  LinearWeights qkv, out, up, down;
};
BlockWeights weights_of(const ParamStore::Lease& lease, const BlockParams& params,
                        const ModelConfig& config);

/// Where B leaves a norm's sums for W, which adds them to the parameters' gradients: f32, cleared
/// by B. A block's gradients are open while its W runs, at ZeRO stages 2 and 3 only then.
struct NormGradients {
  TensorView weight, bias;
};
struct BlockNormGradients {
  NormGradients attention, mlp, q, k;
};
NormGradients lay_out_norm_gradients(ArenaCursor& arena, const ModelConfig& config,
                                     std::int64_t size);
BlockNormGradients lay_out_block_norm_gradients(ArenaCursor& arena, const ModelConfig& config);
/// Where a norm's backward pass adds: to `kept`, cleared now, or where that is not given to the
/// parameters' gradients.
NormGradients norm_gradients(Context& context, const Gradients& sink, const NormParams& params,
                             const NormGradients& kept);

/// Sizes of a layer's buffers.
struct BlockShape {
  const ModelConfig& config;               ///< with this rank's heads and MLP columns
  std::int64_t sequences = 1, tokens = 1;  ///< T of all sequences
  std::int64_t residual_tokens = 1;        ///< S
  DType compute = DType::kF32;
  int context_extent = 1;
  ContextMethod context_method = ContextMethod::kRing;
  Recompute recompute = Recompute::kNone;
};

/// What backward reads of the forward pass. X = q, k and v columns; U = 2F with SwiGLU, F with
/// GELU. n1, n2 and h are not among them: backward makes them again on its way, bit for bit.
struct BlockActivations {
  TensorView s1_TC, mean1_T, rstd1_T;  ///< [S, C], [S]; so are s2, mean2, rstd2
  TensorView qkv_TX;                   ///< q and k rotated in place where they have no norm
  TensorView
      qk_TX;  ///< rotated q and k; only with q/k norm, whose backward needs the unrotated ones
  TensorView rstd_q_TH, rstd_k_TH;
  TensorView attended_TX, lse_TH;
  TensorView s2_TC, mean2_T, rstd2_T;
  TensorView up_TU;
};
/// Which of them: those that each layer keeps from forward to backward, or those that layers share,
/// as backward makes them anew (with full recomputation all but s1; with selective the rotated q
/// and k).
enum class Keep : std::uint8_t { kEachLayer, kShared };
/// `activations` with those laid out; the others stay as they are.
BlockActivations lay_out_activations(ArenaCursor& arena, const BlockShape& shape, Keep which,
                                     BlockActivations activations = {});

/// `activations` with their places taken by those that `recomputed` has.
BlockActivations with_recomputed(BlockActivations activations, const BlockActivations& recomputed);

/// What B leaves for W. Those of width C have room for all tokens; B fills the
/// residual rows, and W gathers the rest of n1 and n2.
struct BlockGradients {
  TensorView dy_TC;  ///< gradient of the residual stream behind this layer; its input
  TensorView dup_TU, ds2_TC, dqkv_TX;
  TensorView act_TF, n2_TC, n1_TC;  ///< h, n2, n1 again; each holds its gradient before that
  BlockNormGradients norms;         ///< given where B and W are apart
};
/// Those of the type and shape of an activation that has no use after B, with which they may be
/// exchanged (dup of up, dqkv of qkv, and where residual rows are all rows n1 of s1 and n2 of s2),
/// the others, or both.
enum class GradientPart { kBoth, kExchanged, kOthers };
/// All of that part but dy.
BlockGradients lay_out_gradients(ArenaCursor& arena, const BlockShape& shape, GradientPart part);
/// `gradients` with their places taken by those that `exchanged` has.
BlockGradients with_exchanged(BlockGradients gradients, const BlockGradients& exchanged);
/// Trades places between what B has left in `exchanged` and those activations.
void exchange(BlockActivations& activations, BlockGradients& exchanged);
/// `exchanged` after that trade: where W finds them.
BlockGradients exchanged_in(const BlockActivations& activations, const BlockGradients& exchanged);

/// Buffers that live within one pass through a layer; all layers share them.
struct BlockForwardScratch {
  TensorView branch_TC;  ///< x before and y after (residual rows); goes from layer to layer
  TensorView n_TC, act_TF;
  ContextAxis::Buffers attention;
};
BlockForwardScratch lay_out_forward_scratch(ArenaCursor& arena, const BlockShape& shape);
struct BlockBackwardScratch {
  TensorView dattended_TX, delta_TH;
  TensorView dqkv_f32_TX;  ///< attention's sums; the bf16 gradients are rounded from it
  ContextAxis::Buffers attention;
};
BlockBackwardScratch lay_out_backward_scratch(ArenaCursor& arena, const BlockShape& shape);

/// Where keys and values of earlier tokens wait during generation. k, v: [capacity, kv columns].
struct KvCache {
  TensorView k, v;
};

/// The same for all layers of a pass.
struct BlockPass {
  Context& context;
  const ModelConfig& config;  ///< with this rank's heads and MLP columns
  const TensorAxis& tensor;
  ContextAxis& context_axis;
  ConstTensorView cos_sin;    ///< with RoPE
  ConstTensorView positions;  ///< [T] i32
  AttentionMask mask;
};

/// A layer's attention over heads that lie as the buffers above have them. `config` is that of the
/// tensor rank.
AttentionLayout attention_layout(const ModelConfig& config, std::int64_t sequences,
                                 std::int64_t tokens, bool deterministic);

/// `residual_TC` is s (not given for the first layer, whose s1 is already set). With a cache, the
/// tokens stand at mask.q's first range and see the cache up to their own position.
void block_forward(const BlockPass& pass, const BlockWeights& weights, const BlockActivations& acts,
                   const BlockForwardScratch& scratch, ConstTensorView residual_TC,
                   const KvCache* cache = nullptr);

/// In B, or in R before it: makes the shared activations of a layer again, with the bits that
/// forward left.
void block_recompute(const BlockPass& pass, const BlockWeights& weights,
                     const BlockActivations& acts, const BlockForwardScratch& scratch,
                     Recompute recompute);

/// How often a layer goes between residual rows and all rows (TensorAxis), in each direction: for
/// what a step sends.
struct LayerTransitions {
  int all_gathers = 0, reduces = 0;
};
inline constexpr LayerTransitions kForwardTransitions{2, 2};    // n1, n2; o, y
inline constexpr LayerTransitions kRecomputeTransitions{2, 1};  // full: up to the activation, not y
inline constexpr LayerTransitions kBackwardTransitions{4, 2};   // dy, ds2, n1, n2; dn1, dn2

/// What B of a layer reads and writes beside its weights.
struct BlockBackwardArgs {
  const BlockActivations& acts;
  const BlockGradients& gradients;
  const BlockBackwardScratch& scratch;
  const Gradients& sink;
  const BlockParams& params;
  TensorView ds1_TC;
};
/// B: from gradients.dy to ds1, the gradient of this layer's input stream, written to `ds1_TC`.
/// Norm weights (and their few sums) get their gradients here, projections in W.
void block_backward_input(const BlockPass& pass, const BlockWeights& weights,
                          const BlockBackwardArgs& args);

/// W.
void block_backward_weight(const BlockPass& pass, const BlockActivations& acts,
                           const BlockGradients& gradients, const Gradients& sink,
                           const BlockParams& params);

/// B and W with the same bits, where nobody waits between them: products of W run while what B
/// sends to other ranks travels.
void block_backward(const BlockPass& pass, const BlockWeights& weights,
                    const BlockBackwardArgs& args);

}  // namespace trireme
