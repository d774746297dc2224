#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// Where a tensor of a block lies. Owner o of n has rows [first, first + size) of even_slice(rows,
/// n, o), or all of them or none; they begin at `shard` of its shard.
struct ShardedTensor {
  std::int64_t local;  ///< its first element in the block
  std::int64_t shard;
  std::int64_t rows, row_elements;
  std::int64_t owner;  ///< of all rows; -1: of every rank
};

/// Elements [begin, begin + size) of the shards of `owners_here` owners from first_owner on.
struct ShardsArgs {
  Exec exec;
  void* shards;
  void* local;
  const ShardedTensor* tensors;
  std::int64_t tensor_count, owners, first_owner, owners_here, begin, size;
  DType shards_type, local_type;
};

struct ShardsKernels {
  void (*pack)(const ShardsArgs&);    ///< reads local
  void (*unpack)(const ShardsArgs&);  ///< reads shards
};
TRIREME_CPU_TABLES(ShardsKernels, shards_cpu);
namespace cuda {
extern const ShardsKernels shards_cuda;
}

}  // namespace trireme
