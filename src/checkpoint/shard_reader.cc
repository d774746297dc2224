#include "checkpoint/shard_reader.h"

#include "base/hash.h"

namespace trireme {

namespace {
constexpr std::int64_t kBlockBytesMax = std::int64_t{16} << 20;
}  // namespace

void ShardReader::read(const ManifestTensor& tensor, const ManifestShard& shard,
                       const std::vector<BoxBuffer>& targets) {
  if (file_ == nullptr || file_name_ != shard.file) {
    file_.reset();
    file_ = std::make_unique<StoreFile>(folder_ / shard.file);
    file_name_ = shard.file;
  }
  std::int64_t at = shard.byte_offset;  // blocks come in the order of their bytes
  const std::size_t element_bytes = size_of(tensor.dtype);
  StreamingHash hash;
  for (const Box& block :
       cut_box(shard.box, kBlockBytesMax / static_cast<std::int64_t>(element_bytes))) {
    const std::size_t bytes = static_cast<std::size_t>(block.shape.count()) * element_bytes;
    block_.resize(std::max(block_.size(), bytes));
    file_->read(at, std::span(block_).first(bytes));
    at += static_cast<std::int64_t>(bytes);
    hash.update({block_.data(), bytes});
    for (const BoxBuffer& target : targets) {
      copy_box({block_.data(), block}, target, intersect(block, target.box), element_bytes);
    }
  }
  if (hash.hex() != shard.hash) {
    throw DataError(
        "{}: {}: the data at {} do not match their hash (the file was changed or damaged)",
        (folder_ / shard.file).string(), tensor.name, shard.box.offset.text());
  }
}

}  // namespace trireme
