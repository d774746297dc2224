#include "model/walk.h"

namespace trireme {

std::vector<int> blocks_read(const ModelParams& params, const ChunkParams& chunk, ActionKind kind) {
  std::vector<int> blocks;
  const auto read = [&](ParamIndex index) { blocks.push_back(params.block_of(index)); };
  const auto layer = [&](const BlockParams& block) { read(block.qkv.weight.first); };
  if (kind == ActionKind::kForward) {
    if (chunk.range.embedding) read(chunk.embedding);
    for (const BlockParams& block : chunk.blocks) layer(block);
    if (!chunk.range.head) return blocks;
    read(chunk.final_norm.weight);
    read(chunk.head);
  } else if (kind == ActionKind::kRecompute) {
    for (const BlockParams& block : chunk.blocks) layer(block);
  } else if (goes_back(kind)) {
    if (chunk.range.head) read(chunk.final_norm.weight);
    for (auto block = chunk.blocks.rbegin(); block != chunk.blocks.rend(); ++block) layer(*block);
  }
  return blocks;
}

ParamStore::Lease WeightReader::next() {
  expect(at_ < blocks_.size(), "an action that reads more than {} blocks", blocks_.size());
  const int block = blocks_[at_++];
  return store_.acquire(block, at_ < blocks_.size() ? blocks_[at_] : -1);
}

ConstTensorView forward_layers(const BlockPass& pass, WeightReader& weights,
                               const ChunkParams& chunk, std::span<const BlockActivations> acts,
                               const BlockForwardScratch& scratch,
                               std::span<const KvCache> caches) {
  ConstTensorView stream;
  for (std::size_t layer = 0; layer < chunk.blocks.size(); ++layer) {
    const ParamStore::Lease lease = weights.next();
    const BlockActivations& own = acts[layer % acts.size()];
    block_forward(pass, weights_of(lease, chunk.blocks[layer], pass.config), own, scratch, stream,
                  caches.empty() ? nullptr : &caches[layer]);
    stream = own.s2_TC;
  }
  return stream;
}

void final_norm_forward(const BlockPass& pass, const NormWeights& weights, const FinalNorm& out,
                        ConstTensorView branch_SC, ConstTensorView residual_SC) {
  NormForward norm = norm_of(pass.config, weights);
  norm.y_TC = out.n_SC;
  norm.sum_TC = out.s_SC;
  norm.mean_T = out.mean_S;
  norm.rstd_T = out.rstd_S;
  norm.x_TC = branch_SC;
  norm.residual_TC = residual_SC;
  norm_forward(pass.context, norm);
}

}  // namespace trireme
