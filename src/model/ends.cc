#include "model/ends.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "tensor/transfer.h"

namespace trireme {

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
  if (!cut) return;
  tensor.reduce(embedding.out_TC);
  const TensorView stream = tensor.residual_rows(embedding.out_TC);
  copy_bytes(context, start.s1_SC.data, stream.data, stream.bytes());
}

void leave_part(Context& context, TensorView out_SC, ConstTensorView branch_SC,
                ConstTensorView residual_SC) {
  copy_bytes(context, out_SC.data, branch_SC.data, branch_SC.bytes());
  accumulate(context, out_SC, residual_SC);
}

}  // namespace trireme
