#pragma once
// The ends of a part of the model: token ids become the residual stream, which goes on behind.

#include "kernels/cross_entropy/cross_entropy.h"
#include "model/param_table.h"
#include "parallel/tensor_axis.h"
#include "store/param_store.h"

namespace trireme {

struct Tokens {
  ConstTensorView ids_T, positions_T;  ///< [T] i32
  VocabularyPart part;                 ///< the rows of the embedding that are here
  std::int64_t vocabulary = 0;         ///< of all parts
};
/// Where the residual stream begins: [S, C]; [T, C] for partial sums of a sharded vocabulary.
struct StreamStart {
  TensorView s1_SC, scratch_TC;
};
/// s1 = the rows of the embedding and of learned positions. `lease` is of the embedding's block.
void embed_tokens(Context& context, const TensorAxis& tensor, const ParamStore::Lease& lease,
                  const ChunkParams& chunk, const Tokens& tokens, const StreamStart& start);

/// out [S, C] = branch + residual, rounded as the first norm of the part behind would.
void leave_part(Context& context, TensorView out_SC, ConstTensorView branch_SC,
                ConstTensorView residual_SC);

}  // namespace trireme
