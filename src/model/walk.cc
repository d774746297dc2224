#include "model/walk.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "tensor/transfer.h"

namespace trireme {

std::vector<int> blocks_read(const ModelParams& params, const ChunkParams& chunk, ActionKind kind) {
  std::vector<int> blocks;
  const auto read = [&](ParamIndex index) { blocks.push_back(params.block_of(index)); };
  const auto layer = [&](const BlockParams& block) { read(block.attention.in.weight.first); };
  const auto first_trained = chunk.blocks.begin() + params.first_trained(chunk.range);
  if (kind == ActionKind::kForward) {
    if (chunk.range.embedding) read(chunk.embedding);
    for (const BlockParams& block : chunk.blocks) layer(block);
    if (!chunk.range.head) return blocks;
    read(chunk.final_norm.weight);
    read(chunk.head);
  } else if (kind == ActionKind::kRecompute) {
    std::for_each(first_trained, chunk.blocks.end(), layer);
  } else if (goes_back(kind)) {
    if (chunk.range.head && first_trained != chunk.blocks.end()) read(chunk.final_norm.weight);
    for (auto block = chunk.blocks.end(); block != first_trained;) layer(*--block);
  }
  return blocks;
}

ParamStore::Lease WeightReader::next() {
  expect(at_ < blocks_.size(), "an action that reads more than {} blocks", blocks_.size());
  const int block = blocks_[at_++];
  return store_.acquire(block, at_ < blocks_.size() ? blocks_[at_] : -1);
}

ConstTensorView forward_layers(const ModelPass& pass, WeightReader& weights,
                               const ChunkParams& chunk, const LayerActivations& acts,
                               const BlockForwardScratch& scratch,
                               std::span<const KvCache> caches) {
  ConstTensorView stream;
  for (std::size_t layer = 0; layer < chunk.blocks.size(); ++layer) {
    const ParamStore::Lease lease = weights.next();
    const LayerPass layer_pass =
        pass.layer(chunk.range.first_layer + static_cast<std::int64_t>(layer));
    const LayerShape shape = acts.shape.of(layer_pass.config);
    const BlockActivations own = fitted(shape, acts[layer]);
    block_forward(layer_pass, with_kept(weights_of(lease, chunk.blocks[layer]), own), own,
                  fitted(shape, scratch), stream, caches.empty() ? nullptr : &caches[layer]);
    stream = own.mlp.norm.s_TC;
  }
  return stream;
}

void final_norm_forward(const ModelPass& pass, const NormWeights& weights,
                        const NormActivations& acts, TensorView n_SC, ConstTensorView branch_SC,
                        ConstTensorView residual_SC) {
  NormForward norm = forward_of(pass.config.norm, weights, acts);
  norm.y_TC = n_SC;
  norm.x_TC = branch_SC;
  norm.residual_TC = residual_SC;
  norm_forward(pass.context, norm);
}

void embed_tokens(Context& context, const TensorAxis& tensor, const ParamStore::Lease& lease,
                  const ChunkParams& chunk, const Tokens& tokens, const StreamStart& start) {
  const bool cut = tensor.extent() > 1;
  EmbeddingForward embedding;
  embedding.out_TC = cut ? start.scratch_TC : start.s1_SC;
  embedding.ids_T = tokens.ids_T;
  embedding.table_VC = lease.weight(chunk.embedding);
  embedding.first_row = tokens.part.first;
  embedding.vocabulary = tokens.vocabulary;
  if (chunk.position_embedding != kNoParam) {
    embedding.positions_T = tokens.positions_T;
    embedding.position_table_PC = lease.weight(chunk.position_embedding);
  }
  embedding_forward(context, embedding);
  if (cut) {
    tensor.reduce(embedding.out_TC);
    const TensorView stream = tensor.residual_rows(embedding.out_TC);
    copy_bytes(context, start.s1_SC.data, stream.data, stream.bytes());
  }
  if (tokens.scale != 1) scale(context, start.s1_SC, tokens.scale);
}

float embedding_scale(const ModelConfig& config, DType compute) {
  const auto scale = static_cast<float>(config.embedding_scale);
  return compute == DType::kBF16 ? to_float(to_bfloat16(scale)) : scale;
}

void drop_stream(const ModelPass& pass, TensorView rows_SC) {
  const double share = pass.config.embedding_dropout;
  if (!pass.dropout.given() || share == 0) return;
  dropout(pass.context, rows_SC, rows_SC,
          {share, pass.dropout.key_of(0, DropoutPlace::kEmbedding),
           pass.tensor.residual_rows(pass.dropout.numbers_T2), 0});
}

void leave_part(Context& context, TensorView out_SC, ConstTensorView branch_SC,
                ConstTensorView residual_SC) {
  copy_bytes(context, out_SC.data, branch_SC.data, branch_SC.bytes());
  accumulate(context, out_SC, residual_SC);
}

}  // namespace trireme
