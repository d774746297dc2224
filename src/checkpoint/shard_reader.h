#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/boxes.h"
#include "checkpoint/manifest.h"
#include "checkpoint/store_file.h"

namespace trireme {

/// Reads stored shards of one checkpoint and verifies each whole, in blocks of bounded size
/// whatever the manifest claims. Keeps the last file open: come in order of files.
class ShardReader {
 public:
  explicit ShardReader(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Reads `shard` of `tensor`, copies what meets each of `targets` (buffers of boxes of the same
  /// tensor) and compares the hash; without targets it only verifies. Throws DataError naming file
  /// and tensor; the targets' contents then mean nothing.
  void read(const ManifestTensor& tensor, const ManifestShard& shard,
            const std::vector<BoxBuffer>& targets);

 private:
  std::filesystem::path folder_;
  std::string file_name_;
  std::unique_ptr<StoreFile> file_;
  std::vector<std::byte> block_;
};

}  // namespace trireme
