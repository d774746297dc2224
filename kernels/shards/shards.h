#pragma once
// Between the two layouts of tensors that ZeRO cuts: whole, as a model reads and writes them, and
// in shards, as one collective moves them. A block of a thousand shards is one call.

#include "base/math.h"
#include "device/context.h"
#include "kernels/shards/shards_table.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// The tensors of a block, in memory of the context's device, and how many ranks own their rows.
struct ShardTable {
  const ShardedTensor* tensors = nullptr;
  int count = 0;
  int owners = 1;
};

/// Places [part.begin, part.begin + part.size) of the shards of some owners.
struct ShardPart {
  const ShardTable& table;
  Slice part;
  int first_owner = 0;
};

/// shards[o, e - part.begin] = the element that stands at place e of the shard of owner
/// first_owner + o, for e of the part. Places that belong to no element are left as they are.
///   shards [O, part.size], local: the block;  both f32|bf16|e4m3|e5m2, or bf16 shards of an f32
///   block, rounded to nearest even;  asynchronous on a GPU
void pack_shards(Context& context, TensorView shards_ON, ConstTensorView local,
                 const ShardPart& of);
/// The reverse: those elements of `local` = shards. All others stay.
void unpack_shards(Context& context, TensorView local, ConstTensorView shards_ON,
                   const ShardPart& of);

}  // namespace trireme
