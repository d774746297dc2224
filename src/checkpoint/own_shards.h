#pragma once
// Which parts of a state this rank writes. Pure arithmetic, for saving and for `train plan`.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/shape.h"
#include "store/state.h"

namespace trireme {

/// Bounds what a reader of a part of a tensor must hash.
inline constexpr std::int64_t kShardBytesMax = std::int64_t{64} << 20;

/// Where a shard may begin in staging memory.
inline constexpr std::int64_t kShardAlignment = 64;

/// One dataset of this rank's file: a run of elements of a tensor's box, in its row-major order.
struct OwnShard {
  std::size_t tensor = 0;  ///< in the state's list
  Box box;
  std::int64_t begin_bytes = 0, bytes = 0;  ///< of the box of the tensor
};

/// Boxes that several ranks hold are divided among them (share_of_replica), and no shard is
/// larger than `shard_bytes_max`. None is empty. The tensors' memory is not looked at.
std::vector<OwnShard> own_shards(const State& state, std::int64_t shard_bytes_max);

/// The memory in which the shards stand all at once (Staging).
std::int64_t staged_bytes(const std::vector<OwnShard>& shards);

/// The most that any rank of these boxes stages; `train plan` asks none of them.
std::int64_t staged_bytes_max(const State& state);

}  // namespace trireme
