#pragma once
// Where the shards of a checkpoint stand: the manifest lists them, or (a split one) the stores'
// indices do, which are read as they are asked for: a rank that loads what it saved reads one.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace trireme {

/// One stored shard and the tensor it belongs to.
struct StoredShard {
  const ManifestTensor* tensor = nullptr;
  ManifestShard shard;

  [[nodiscard]] std::int64_t bytes() const;
};

/// One thread at a time. `manifest` is kept by reference.
class ShardLists {
 public:
  ShardLists(std::filesystem::path folder, const Manifest& manifest);

  // DataError names a store whose index cannot be read, does not match its hash or names other
  // shards than the manifest's runs.
  /// The shards of `tensor` that share an element with `box`.
  std::vector<ManifestShard> meeting(const ManifestTensor& tensor, const Box& box);
  /// All shards of a store of the manifest; of a split one the index is read anew and not kept.
  [[nodiscard]] std::vector<StoredShard> of_store(const ManifestStore& store) const;

 private:
  using Index = std::map<std::string, std::vector<ManifestShard>, std::less<>>;  // by tensor
  [[nodiscard]] Index read_index(const ManifestStore& store) const;
  const Index& index_of(std::int64_t rank);
  [[nodiscard]] ManifestShard shard_at(const Index& index, const ManifestTensor& tensor,
                                       const ManifestRun& run, std::int64_t piece) const;

  std::filesystem::path folder_;
  const Manifest& manifest_;
  std::map<std::int64_t, const ManifestStore*> stores_;  // of a split manifest, by rank
  std::map<std::int64_t, Index> indices_;                // read so far
};

}  // namespace trireme
