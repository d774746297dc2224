#pragma once
// The way of an action through the blocks of a chunk: which weights it reads, in which order, and
// the forward pass that training, evaluation and generation have in common.

#include <span>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "model/block.h"
#include "model/rope_table.h"
#include "pipeline/schedule.h"

namespace trireme {

/// The blocks whose weights an action of a chunk reads, in order. W reads none, and B none below
/// the first layer that is trained.
std::vector<int> blocks_read(const ModelParams& params, const ChunkParams& chunk, ActionKind kind);

/// Leases of these blocks in order. Each names the next, to be gathered (WeightGather).
class WeightReader {
 public:
  /// `blocks` must outlive it.
  WeightReader(const ParamStore& store, std::span<const int> blocks)
      : store_(store), blocks_(blocks) {}
  [[nodiscard]] ParamStore::Lease next();

 private:
  const ParamStore& store_;
  std::span<const int> blocks_;
  std::size_t at_ = 0;
};

/// The same for all layers of a micro-batch.
struct ModelPass {
  Context& context;
  const ModelConfig& config;  ///< with this rank's heads and MLP columns
  const TensorAxis& tensor;
  ContextAxis& context_axis;
  const RopeTables& ropes;
  ConstTensorView positions;  ///< [T] i32
  AttentionMask mask;
  const Fp8Products* fp8 = nullptr;
  TensorView widened = {};
  const ExpertsPass* experts = nullptr;
  AdapterScratch adapters = {};
  PassDropout dropout = {};
  /// Layer `index` of the model.
  [[nodiscard]] LayerPass layer(std::int64_t index) const {
    return {context,
            tensor,
            context_axis,
            config.layer(index),
            ropes.of_layer(index),
            positions,
            mask,
            fp8,
            widened,
            experts,
            adapters,
            index,
            dropout};
  }
};

/// Where the layers of a chunk keep their activations: layer i in all[slots[i % their number]],
/// laid out for `shape`.
struct LayerActivations {
  const LayerShape& shape;
  std::span<const BlockActivations> all;
  std::span<const std::int32_t> slots;
  const BlockActivations& operator[](std::size_t layer) const {
    return all[static_cast<std::size_t>(slots[layer % slots.size()])];
  }
};

/// F of the layers of a chunk, from the residual stream in acts[0].attention's s to the one
/// returned, its branch in `scratch`. In generation layer i has caches[i].
ConstTensorView forward_layers(const ModelPass& pass, WeightReader& weights,
                               const ChunkParams& chunk, const LayerActivations& acts,
                               const BlockForwardScratch& scratch,
                               std::span<const KvCache> caches = {});

/// Behind the layers: n = norm(s), s = stream + branch. [S, C].
void final_norm_forward(const ModelPass& pass, const NormWeights& weights,
                        const NormActivations& acts, TensorView n_SC, ConstTensorView branch_SC,
                        ConstTensorView residual_SC);

struct Tokens {
  ConstTensorView ids_T, positions_T;  ///< [T] i32
  VocabularyPart part;                 ///< the rows of the embedding that are here
  std::int64_t vocabulary = 0;         ///< of all parts
  float scale = 1;                     ///< of the rows
};
/// The factor of looked-up rows, and of their gradient, as their type has it.
float embedding_scale(const ModelConfig& config, DType compute);
/// Where the residual stream begins: [S, C]; [T, C] for partial sums of a sharded vocabulary.
struct StreamStart {
  TensorView s1_SC, scratch_TC;
};
/// s1 = the rows of the embedding, scaled, and of learned positions (never both). `lease` is of the
/// embedding's block.
void embed_tokens(Context& context, const TensorAxis& tensor, const ParamStore::Lease& lease,
                  const ChunkParams& chunk, const Tokens& tokens, const StreamStart& start);

/// Dropout of the stream's first rows, or of their gradient, in place.
void drop_stream(const ModelPass& pass, TensorView rows_SC);

/// out [S, C] = branch + residual, rounded as the first norm of the part behind would.
void leave_part(Context& context, TensorView out_SC, ConstTensorView branch_SC,
                ConstTensorView residual_SC);

}  // namespace trireme
