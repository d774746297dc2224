#pragma once
// The way of an action through the blocks of a chunk: which weights it reads, in which order, and
// the forward pass that training, evaluation and generation have in common.

#include <span>
#include <vector>

#include "model/block.h"
#include "pipeline/schedule.h"

namespace trireme {

/// The blocks whose weights an action of a chunk reads, in order. W reads none.
std::vector<int> blocks_read(const ModelParams& params, const ChunkParams& chunk, ActionKind kind);

/// Leases of these blocks in this order. Each names the block behind it, which is gathered
/// meanwhile (WeightGather).
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

/// F of the layers of a chunk, from the residual stream in acts[0].s1 to the stream that it
/// returns, whose last branch stands in `scratch`. Layer i has acts[i % size] and, in generation,
/// caches[i].
ConstTensorView forward_layers(const BlockPass& pass, WeightReader& weights,
                               const ChunkParams& chunk, std::span<const BlockActivations> acts,
                               const BlockForwardScratch& scratch,
                               std::span<const KvCache> caches = {});

/// What the norm behind the layers makes and keeps: n = norm(s), s = stream + branch. [S, C], [S].
struct FinalNorm {
  TensorView n_SC, s_SC, mean_S, rstd_S;
};
void final_norm_forward(const BlockPass& pass, const NormWeights& weights, const FinalNorm& out,
                        ConstTensorView branch_SC, ConstTensorView residual_SC);

}  // namespace trireme
