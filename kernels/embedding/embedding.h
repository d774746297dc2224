#pragma once

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// out[t, c] = table[ids[t], c] (+ position_table[positions[t], c])
///
///   out             [T, C]  f32|bf16
///   ids, positions  [T]     i32, checked by the loader: 0 <= id < V. Another one is refused on the
///                           CPU; a GPU makes the token's row of out NaN, so that the loss says it
///   table           [V, C]  as out
///   position_table  [P, C]  as out; not given where positions enter elsewhere (RoPE)
/// Deterministic. The sum of two bf16 values is rounded once.
struct EmbeddingForward {
  TensorView out_TC;
  ConstTensorView ids_T, table_VC;
  ConstTensorView positions_T = {}, position_table_PC = {};
};
void embedding_forward(Context& context, const EmbeddingForward& args);

/// dtable[ids[t], c] += dout[t, c], for each row in ascending t.
///
///   dtable [V, C] f32;  ids [T] i32;  dout [T, C] f32|bf16
/// Deterministic for any number of threads, the same bits on every device: rows, not tokens, are
/// shared out. An id outside is refused on the CPU and skipped on a GPU.
void embedding_backward(Context& context, TensorView dtable_VC, ConstTensorView ids_T,
                        ConstTensorView dout_TC);

}  // namespace trireme
