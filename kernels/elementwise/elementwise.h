#pragma once

#include "device/context.h"
#include "tensor/heads_view.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// destination = source, converted between f32 and bf16 (nearest even), or copied for equal types.
/// Here and everywhere: a CPU with AVX512_BF16 rounds what is below 2^-126 to a bf16 of 0.
void cast(Context& context, TensorView destination, ConstTensorView source);

/// destination[t] = source[t], byte for byte; row strides may differ. Sizes and types agree.
void copy_heads(Context& context, HeadsView destination, ConstHeadsView source);

/// destination[rows[t]] = source[t], byte for byte.   rows [T] i32, no two equal, each a row of
/// destination: not looked at.
void put_heads(Context& context, HeadsView destination, ConstHeadsView source,
               ConstTensorView rows_T);

/// All bytes zero.
void clear(Context& context, TensorView destination);

/// destination += source: f32 += f32|bf16, or bf16 += bf16 (added in f32, rounded once).
void accumulate(Context& context, TensorView destination, ConstTensorView source);

/// x *= factor, in f32 and rounded once to x's type, f32|bf16.
void scale(Context& context, TensorView x, float factor);

/// own = the sum over ranks as a tree of neighbours (comm/rank_order_sum.h), added in f32 and
/// rounded once (its bits, but for subnormal bf16); `own` is rank `rank`'s, `others` the others'. A
/// GPU adds up to 65,536 ranks.
///   own [N];  others [ranks - 1, N] of own's type, f32|bf16;  0 <= rank < ranks
void sum_ranks(Context& context, TensorView own_N, ConstTensorView others_PN, int rank);
/// The row of `others` that rank `other` fills for rank `rank`.
constexpr int row_among_others(int other, int rank) { return other < rank ? other : other - 1; }

/// sum[n] += sum_t x[t,n]: the gradient of a bias.   sum [N] f32;  x [T, N] f32|bf16
/// Deterministic for any number of threads: columns are shared out, tokens added in ascending order
/// in f32 over blocks of 64, the blocks in order. On a GPU the pieces of tokens, and the order they
/// are added in, follow from the shape alone: the same bits on every GPU for equally aligned x.
void column_sum(Context& context, TensorView sum_N, ConstTensorView x_TN);

/// sum[0] += ((c[0] + c[1]) + c[2]) + ..., where c[i] = ((x[i] + x[i + 32]) + x[i + 64]) + ...: 32
/// chains of f64 additions, so that every device gives the same bits and none waits for each sum.
///   sum [1] f64;  x [T] f32
void sum_in_order(Context& context, TensorView sum, ConstTensorView x_T);

}  // namespace trireme
