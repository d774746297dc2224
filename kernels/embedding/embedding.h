#pragma once

#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// out[t, c] = table[ids[t], c] (+ position_table[positions[t], c])
///
///   out             [T, C]  f32|bf16
///   ids, positions  [T]     i32, checked by the loader: 0 <= id < vocabulary. Any other is
///                           refused on the CPU; on a GPU the token's row of out becomes NaN, and
///                           so does the loss
///   table           [V, C]  as out
///   position_table  [P, C]  as out; not given where positions enter elsewhere (RoPE)
/// The table may be a shard of the vocabulary, its rows first_row .. first_row + V - 1. A token
/// whose id is in another shard gets zeros, without its position's row, so that the sum over shards
/// in any order is what the whole table gives. V may be 0; a shard's padding rows are not among the
/// V. Deterministic. The sum of two bf16 values is rounded once.
struct EmbeddingForward {
  TensorView out_TC;
  ConstTensorView ids_T, table_VC;
  ConstTensorView positions_T = {}, position_table_PC = {};
  std::int64_t first_row = 0;
  std::int64_t vocabulary = 0;  ///< 0: V, the table is the whole
};
void embedding_forward(Context& context, const EmbeddingForward& args);

/// dtable[ids[t] - first_row, c] += dout[t, c], rows in ascending t; other shards' ids add nothing.
///
///   dtable [V, C] f32;  ids [T] i32;  dout [T, C] f32|bf16
/// Deterministic for any number of threads, the same bits on every device: rows, not tokens, are
/// dealt out. An id outside the vocabulary is refused on the CPU and skipped on a GPU.
void embedding_backward(Context& context, TensorView dtable_VC, ConstTensorView ids_T,
                        ConstTensorView dout_TC, std::int64_t first_row = 0,
                        std::int64_t vocabulary = 0);

}  // namespace trireme
