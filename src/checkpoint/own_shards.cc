#include "checkpoint/own_shards.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/math.h"
#include "checkpoint/boxes.h"

namespace trireme {

std::vector<OwnShard> own_shards(const State& state, std::int64_t shard_bytes_max) {
  std::vector<OwnShard> shards;
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const StateTensor& tensor = state.tensors[i];
    const auto element_bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    const Box share =
        share_of_replica({tensor.name, tensor.box, element_bytes, tensor.replica, tensor.replicas});
    for (const Box& box : cut_box(share, shard_bytes_max / element_bytes)) {
      const std::optional<std::int64_t> begin = contiguous_offset(tensor.box, box);
      expect(begin.has_value(), "{}: a shard that is not contiguous", tensor.name);
      shards.push_back({i, box, *begin * element_bytes, box.shape.count() * element_bytes});
    }
  }
  return shards;
}

std::int64_t staged_bytes(const std::vector<OwnShard>& shards) {
  std::int64_t bytes = 0;
  for (const OwnShard& shard : shards) bytes += round_up(shard.bytes, kShardAlignment);
  return bytes;
}

std::int64_t staged_bytes_max(const State& state) {
  // Rows are split evenly, the first never fewer; whole ones go to the replica of their name.
  State first;
  std::map<int, std::int64_t> whole_of_copy;
  for (StateTensor tensor : state.tensors) {
    const auto element_bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    const auto count_of = [&](int copy) {
      return share_of_replica({tensor.name, tensor.box, element_bytes, copy, tensor.replicas})
          .shape.count();
    };
    const std::int64_t all = tensor.box.shape.count(), of_first = count_of(0);
    tensor.replica = 0;
    if (tensor.replicas == 1 || (of_first > 0 && of_first < all)) {
      first.tensors.push_back(std::move(tensor));
      continue;
    }
    int copy = 0;
    while (copy + 1 < tensor.replicas && count_of(copy) == 0) ++copy;
    whole_of_copy[copy] += round_up(all * element_bytes, kShardAlignment);
  }
  std::int64_t most = 0;
  for (const auto& [copy, bytes] : whole_of_copy) most = std::max(most, bytes);
  return staged_bytes(own_shards(first, kShardBytesMax)) + most;
}

}  // namespace trireme
