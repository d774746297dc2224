#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/boxes.h"
#include "checkpoint/manifest.h"
#include "checkpoint/store_file.h"

namespace trireme {

/// Reads stored shards of one checkpoint and verifies each whole, in blocks of bounded size
/// whatever the manifest claims. Any number of threads at once: reading is shared among them by
/// shards, since a hash runs through a shard from its first byte to its last.
class ShardReader {
 public:
  explicit ShardReader(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Reads `shard` of `tensor`, copies what meets each of `targets` (buffers of boxes of the same
  /// tensor) and compares the hash; without targets it verifies. DataError names file, tensor.
  void read(const ManifestTensor& tensor, const ManifestShard& shard,
            const std::vector<BoxBuffer>& targets) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace trireme
