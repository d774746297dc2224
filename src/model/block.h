#pragma once
// One transformer layer: a residual stream s with two branches.
//   s1 = s + x;   o = attention(norm(s1));   s2 = s1 + o;   y = mlp(norm(s2)) or experts(norm(s2))
// x is the branch of the layer before, y that for the next: adds are fused into the norm behind.
// A branch has its norm there, behind its last product, or both (NormPlace).

#include "model/attention.h"
#include "model/experts.h"
#include "model/mlp.h"

namespace trireme {

struct BlockActivations;
struct BlockGradients;

struct BlockWeights {
  AttentionWeights attention;
  BranchWeights mlp;
  ExpertsWeights experts;
};
BlockWeights weights_of(const ParamStore::Lease& lease, const BlockParams& params);
/// `weights` whose adapters leave what backward reads in `acts`, and what W reads in `gradients`;
/// maxima of what products in fp8 read are left in `acts` too.
BlockWeights with_kept(BlockWeights weights, const BlockActivations& acts,
                       const BlockGradients* gradients = nullptr);
/// The gains of adapters with magnitudes, as the weights stand. Their rows of W, which the tensor
/// axis cuts, are met whole.
struct GainsPass {
  Context& context;
  const TensorAxis& tensor;
  AdapterScratch adapters;
  TensorView widened;  ///< LayerPass::widened
};
void find_gains(const GainsPass& pass, const BlockWeights& weights);

/// What backward reads of the forward pass, declared by each branch.
struct BlockActivations {
  AttentionActivations attention;
  BranchActivations mlp;
  ExpertsActivations experts;

  template <class Visit, class... Of>
  static void each(const LayerShape& shape, const Visit& visit, Of&... of) {
    visit(shape.residual(), false, of.attention.norm.s_TC...);
    AttentionActivations::each(shape, visit, of.attention...);
    visit(shape.residual(), shape.recompute == Recompute::kFull, of.mlp.norm.s_TC...);
    BranchActivations::each(shape, mlp_sizes(shape), visit, of.mlp...);
    ExpertsActivations::each(shape, visit, of.experts...);
  }
  /// What W reads as the forward pass or R has left it: `visit(size, view...)`.
  template <class Visit, class... Of>
  static void each_of_weight(const LayerShape& shape, const Visit& visit, Of&... of) {
    AttentionActivations::each_of_weight(shape, visit, of.attention...);
    BranchActivations::each_of_weight(shape, mlp_sizes(shape), visit, of.mlp...);
    ExpertsActivations::each_of_weight(shape, visit, of.experts...);
  }
};
/// Which of them: those that each layer keeps from forward to backward, or those that layers share,
/// as backward recomputes them (full: all but s1; selective: the rotated q and k).
enum class Keep : std::uint8_t { kEachLayer, kShared };
/// `activations` with those laid out; the others stay as they are.
BlockActivations lay_out_activations(ArenaCursor& arena, const LayerShape& shape, Keep which,
                                     BlockActivations activations = {});
/// `activations` with those that are shared replaced by `recomputed`'s.
BlockActivations with_recomputed(const LayerShape& shape, BlockActivations activations,
                                 const BlockActivations& recomputed);

/// What B leaves for W. Where the shape exchanges, some lie in the memory of activations that have
/// no use after B: B writes them to spare memory, which then trades places with the activation.
struct BlockGradients {
  AttentionGradients attention;
  MlpGradients mlp;
  ExpertsGradients experts;

  template <class Own, class Exchanged, class... Acts>
  static void each(const LayerShape& shape, const Own& own, const Exchanged& exchanged,
                   BlockGradients& of, Acts&... acts) {
    AttentionGradients::each(shape, own, exchanged, of.attention, acts.attention...);
    MlpGradients::each(shape, own, exchanged, of.mlp, acts.mlp...);
    ExpertsGradients::each(shape, own, of.experts);
  }
};
/// Layers share memory that is laid out for the largest of each tensor (largest_layer): those of
/// one layer.
BlockActivations fitted(const LayerShape& shape, BlockActivations activations);
BlockGradients fitted(const LayerShape& shape, BlockGradients gradients);
/// All that have memory of their own, but for mlp.dy, the gradient of the layer's output stream.
BlockGradients lay_out_gradients(ArenaCursor& arena, const LayerShape& shape);
/// The activations that are exchanged, once more.
BlockActivations lay_out_spare(ArenaCursor& arena, const LayerShape& shape);
/// `gradients` with the exchanged ones in the memory of `in`: the spare of B, the layer's in W.
BlockGradients exchanged_in(const LayerShape& shape, const BlockActivations& in,
                            BlockGradients gradients);
void exchange(const LayerShape& shape, BlockActivations& activations, BlockActivations& spare);

/// Buffers that live within one pass through a layer; all layers share them.
struct BlockForwardScratch {
  TensorView branch_TC;  ///< x before and y after (residual rows); goes from layer to layer
  TensorView n_TC, act_TF;
  AttentionForwardScratch attention;
};
BlockForwardScratch fitted(const LayerShape& shape, BlockForwardScratch scratch);
BlockForwardScratch lay_out_forward_scratch(ArenaCursor& arena, const LayerShape& shape);

/// `residual_TC` is s (not given for the first layer, whose s1 is already set).
void block_forward(const LayerPass& pass, const BlockWeights& weights, const BlockActivations& acts,
                   const BlockForwardScratch& scratch, ConstTensorView residual_TC,
                   const KvCache* cache = nullptr);

/// In B, or in R before it: recomputes a layer's shared activations with forward's bits.
void block_recompute(const LayerPass& pass, const BlockWeights& weights,
                     const BlockActivations& acts, const BlockForwardScratch& scratch,
                     Recompute recompute);

/// How often a layer goes between residual rows and all rows (TensorAxis), in each direction.
struct LayerTransitions {
  int all_gathers = 0, reduces = 0;
};
/// n of each branch; y of each. Experts read the residual rows, and what they make is reduced with
/// what the shared MLP makes, or where the residual stream has all rows.
inline LayerTransitions forward_transitions(const LayerConfig& layer, bool sequence_parallel) {
  if (!layer.experts) return {2, 2};
  const bool shared = layer.mlp.ffn > 0;
  return {shared ? 2 : 1, shared || !sequence_parallel ? 2 : 1};
}
/// Full: up to the activation; with a norm behind y, that too.
inline LayerTransitions recompute_transitions(const LayerConfig& layer) {
  if (layer.experts) return {layer.mlp.ffn > 0 ? 2 : 1, 1};
  return {2, layer.norm_after() ? 2 : 1};
}
/// dy and n of each branch; dn of each.
inline LayerTransitions backward_transitions(const LayerConfig& layer, bool sequence_parallel) {
  const LayerTransitions forward = forward_transitions(layer, sequence_parallel);
  return {2 * forward.all_gathers, forward.reduces};
}

/// What the backward pass of a layer reads and writes beside its weights.
struct BlockBackwardArgs {
  const BlockActivations& acts;
  const BlockGradients& gradients;
  const Gradients& sink;
  const BlockParams& params;
};
/// B: from gradients.mlp.dy to ds1, the gradient of this layer's input stream.
/// Norm weights (and their few sums) get their gradients here, projections in W.
void block_backward_input(const LayerPass& pass, const BlockWeights& weights,
                          const BlockBackwardArgs& args, const AttentionScratch& scratch,
                          const StreamGradient& ds1);

/// W.
void block_backward_weight(const LayerPass& pass, const BlockBackwardArgs& args);

/// B and W as one, with the same bits: products of W run while what B sends travels.
void block_backward(const LayerPass& pass, const BlockWeights& weights,
                    const BlockBackwardArgs& args, const AttentionScratch& scratch,
                    const StreamGradient& ds1);

}  // namespace trireme
