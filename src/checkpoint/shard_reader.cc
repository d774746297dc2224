#include "checkpoint/shard_reader.h"

#include <algorithm>

#include "base/hash.h"

namespace trireme {

namespace {

// Hash and copy find a block in the cache.
constexpr std::int64_t kBlockBytesMax = std::int64_t{1} << 20;

/// Where a block may be read without a copy: into the only target, where it is one run there.
std::byte* place_in(const std::vector<BoxBuffer>& targets, const Box& block,
                    std::size_t element_bytes) {
  if (targets.size() != 1 || intersect(block, targets[0].box) != block) return nullptr;
  const auto offset = contiguous_offset(targets[0].box, block);
  return offset ? targets[0].data + static_cast<std::size_t>(*offset) * element_bytes : nullptr;
}

}  // namespace

void ShardReader::read(const ManifestTensor& tensor, const ManifestShard& shard,
                       const std::vector<BoxBuffer>& targets) const {
  const StoreFile file(folder_ / shard.file);
  std::int64_t at = shard.byte_offset;  // blocks come in the order of their bytes
  const std::size_t element_bytes = size_of(tensor.dtype);
  StreamingHash hash;
  std::vector<std::byte> buffer;
  for (const Box& block :
       cut_box(shard.box, kBlockBytesMax / static_cast<std::int64_t>(element_bytes))) {
    const std::size_t bytes = static_cast<std::size_t>(block.shape.count()) * element_bytes;
    std::byte* const place = place_in(targets, block, element_bytes);
    if (place == nullptr) buffer.resize(std::max(buffer.size(), bytes));
    const std::span<std::byte> content(place != nullptr ? place : buffer.data(), bytes);
    file.read(at, content);
    at += static_cast<std::int64_t>(bytes);
    hash.update(content);
    if (place != nullptr) continue;
    for (const BoxBuffer& target : targets) {
      copy_box({content.data(), block}, target, intersect(block, target.box), element_bytes);
    }
  }
  if (hash.hex() != shard.hash) {
    throw DataError(
        "{}: {}: the data at {} do not match their hash (the file was changed or damaged)",
        (folder_ / shard.file).string(), tensor.name, shard.box.offset.text());
  }
}

}  // namespace trireme
