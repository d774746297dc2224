#pragma once
// THE table of parameters: every tensor of every family, its Hugging Face name (of a tensor that a
// file has within another: checkpoint/tensor_parts.h), shape, initial values, place in memory and
// sharding on the tensor axis. Heads, columns of the MLP and rows of
// the vocabulary are dealt out; norms, positions and biases of the residual stream are whole.

#include <algorithm>
#include <span>
#include <vector>

#include "config/model_config.h"
#include "config/run_config.h"
#include "parallel/expert_place.h"
#include "store/param.h"
#include "tensor/quantized_view.h"

namespace trireme {

/// How a product in fp8 sees the columns of its input and output on this rank: parts with scales of
/// their own (blocks are the recipe's), and whether other tensor-parallel ranks have the rest.
struct Fp8Columns {
  ScaleDim in, out;
  TensorCut in_cut, out_cut;  ///< not given: all columns are here
};
/// By what dropout tells the inputs of adapters apart.
struct DropoutStream {
  std::uint64_t key = 0;
  std::int64_t inputs = 0;  ///< of all ranks
};
/// The adapters beside a product (AdapterConfig), each of one projection of the weight's range.
struct AdapterParams {
  struct Part {
    ParamIndex weight = kNoParam;     ///< of the projection
    ParamIndex b = kNoParam;          ///< [its outputs, rank]
    ParamIndex magnitude = kNoParam;  ///< [its outputs], with AdapterConfig::magnitudes
  };
  ParamRange a;  ///< fused [ranks, in]; not given: no adapters
  std::vector<Part> parts;
  float scale = 1;
  bool in_out = false;  ///< LinearParams::in_out
  DropoutStream dropout = {};
};
struct LinearParams {
  ParamRange weight, bias;  ///< fused ranges; bias may be absent
  AdapterParams adapter;
  bool in_out = false;  ///< stored [in, out], else [out, in]
  std::optional<Fp8Columns> fp8 = {};
  bool nf4 = false;  ///< the weight stands in NF4
};
struct NormParams {
  ParamIndex weight = kNoParam, bias = kNoParam;
};
/// A branch of a layer: its norm, the products at its ends.
struct BranchParams {
  NormParams norm, post_norm;  ///< each may be absent (NormPlace)
  LinearParams in, out;
};
/// in: rows q, k, v. With latents: rows of the latent of q, of keys and values, of the keys' dims
/// that rotate; q_up and kv_up make heads of them.
struct AttentionParams : BranchParams {
  NormParams q_norm, k_norm;  ///< or of the latents
  LinearParams q_up, kv_up;
  ParamIndex sinks = kNoParam;  ///< of heads (AttentionConfig::sinks)
};
/// in: rows gate, up; GPT-2: c_fc.
using MlpParams = BranchParams;
/// The adapters beside a product of each of a rank's experts: A [rank, in] of all lie together, and
/// B [out, rank], whose rows are those of the product's `each` weights.
struct ExpertAdapterParams {
  ParamRange a, b;  ///< not given: no adapters
  float scale = 1;
  [[nodiscard]] bool given() const { return a.given(); }
};
/// A product of each of a rank's experts: one fused range of `each` parameters an expert.
struct ExpertLinearParams {
  ParamRange weight, bias;  ///< bias: with ExpertsConfig::biased
  int each = 1;
  std::optional<Fp8Columns> fp8 = {};  ///< of one expert
  ExpertAdapterParams adapter;
  [[nodiscard]] std::int64_t experts() const { return (weight.last - weight.first + 1) / each; }
};
/// The experts of a layer that are on this rank, beside the MLP that all tokens share.
struct ExpertsParams {
  LinearParams router, shared_gate;
  ParamIndex bias = kNoParam;  ///< of the choice (ExpertsConfig::has_bias)
  ExpertLinearParams in, out;  ///< rows gate, up of each expert; down of each
};
struct BlockParams {
  AttentionParams attention;
  MlpParams mlp;
  ExpertsParams experts;

  /// The four products, and those that make heads of latents.
  template <class Self, class F>
  static void each_linear(Self& block, const F& f) {
    f(block.attention.in);
    f(block.attention.q_up);
    f(block.attention.kv_up);
    f(block.attention.out);
    f(block.mlp.in);
    f(block.mlp.out);
  }
};

/// Which experts of each layer of a model a rank of the expert axis has.
struct ExpertSet {
  AxisRank expert;
  const std::vector<ExpertPlaces>* places = nullptr;  ///< of each layer; null: neighbours together
};
/// Of each layer of a model, by default or as `rank_of` has it: [layers][experts].
std::vector<ExpertPlaces> expert_places(const ModelConfig& config, int extent,
                                        const std::vector<std::vector<std::int32_t>>& rank_of = {});

/// A part of the model that follows one after the other: a virtual stage of a pipeline.
struct ChunkRange {
  std::int64_t first_layer = 0, layers = 0;
  bool embedding = true, head = true;
};
inline ChunkRange whole_model(const ModelConfig& config) {
  return {0, config.layer_count(), true, true};
}

/// The parameters of a chunk; kNoParam for what it has not.
struct ChunkParams {
  ChunkRange range;
  ParamIndex embedding = kNoParam, position_embedding = kNoParam;
  std::vector<BlockParams> blocks;
  NormParams final_norm;
  ParamIndex head = kNoParam;  ///< where tied the embedding, or its copy on the last pipeline rank
  ParamIndex head_gradient = kNoParam;  ///< the head's own
  AdapterParams head_adapter;           ///< its B has the rows of padding that the head has
};

struct ModelParams {
  std::vector<ParamMeta> metas;
  std::vector<ChunkParams> chunks;
  /// Nothing below this layer of the model is trained, and no gradient goes there: beside adapters,
  /// the first layer that has any; the number of layers where the head alone has one.
  std::int64_t first_trained_layer = 0;
  /// Of the layers of a chunk; their number where none is.
  [[nodiscard]] std::int64_t first_trained(const ChunkRange& range) const {
    return std::clamp<std::int64_t>(first_trained_layer - range.first_layer, 0, range.layers);
  }
  [[nodiscard]] int block_of(ParamIndex index) const {
    return metas[static_cast<std::size_t>(index)].block;
  }
};

/// In memory the vocabulary's rows of a rank are rounded up to a multiple of this: rows of logits
/// then begin on 32 bytes in bf16, as tensor cores and TMA ask. Megatron rounds to 128 for whole
/// tiles; a partial tile costs no more, and a vocabulary of 257 bytes would grow by half.
inline constexpr std::int64_t kVocabularyRowAlignment = 16;

/// The parameters of chunks that are held together, in order of the model. A block is the
/// embedding, a layer, the final norm or the head; a tied one comes last: its gradient, or its
/// copy. Initial values: weights N(0, init_std), GPT-2's two residual projections N(0,
/// init_std / sqrt(2 L)), GPT-OSS's sinks and routers' biases as weights, biases 0, norms 1 less
/// their offset (transformers' _init_weights for each family).
///
/// Of the experts a rank has those that `experts` names, by default all. With adapters
/// (ModelConfig::adapters) these alone are trained: A uniform in +-1/sqrt(in), B 0, as peft draws
/// them, magnitudes 0 (Stage::begin_magnitudes); named "MODULE.lora_A.weight",
/// "MODULE.lora_B.weight", "MODULE.lora_magnitude_vector"; of experts one after the other
/// (expert_adapter_name). All else is their base.
ModelParams declare_params(const ModelConfig& config, std::span<const ChunkRange> chunks,
                           const ExpertSet& experts = {});
/// Of the whole model.
ModelParams declare_params(const ModelConfig& config);

/// Declares the products of layers to be in fp8, but for the first and last layers of the model
/// that `precision` leaves in bf16: those of experts too, not of routers and gates.
void declare_fp8(ModelParams& params, const ModelConfig& config, const Fp8Precision& precision,
                 AxisRank tensor, AxisRank expert_tensor = {});
/// Declares the weights of layers' products to be in NF4 where they are the base of adapters; those
/// of experts, routers and gates are not.
void declare_nf4(ModelParams& params);
/// Indices that share a scale: of either dim of a weight, of other operands along their sums. 0:
/// all.
constexpr std::int64_t fp8_block(Fp8Recipe recipe) { return recipe == Fp8Recipe::kBlock ? 128 : 0; }

/// The model that a tensor-parallel rank's layers compute: its heads and columns of the MLP, and of
/// experts. KV heads fewer than ranks are held by several. The extents divide (plan/resolve).
ModelConfig config_of_rank(const ModelConfig& config, AxisRank rank, AxisRank expert_tensor = {});

}  // namespace trireme
