#include "checkpoint/shard_lists.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/math.h"
#include "checkpoint/store_file.h"

namespace trireme {

namespace {

bool share_elements(const Box& a, const Box& b) { return intersect(a, b).shape.count() > 0; }

/// Which pieces of the run may share a row with `box`: the first and the one behind the last.
std::pair<std::int64_t, std::int64_t> pieces_meeting(const ManifestRun& run, const Box& box) {
  if (!share_elements(run.box, box)) return {0, 0};
  if (run.count == 1) return {0, 1};
  const Box common = intersect(run.box, box);
  const std::int64_t rows = run.box.shape[0] / run.count;
  const std::int64_t begin = common.offset[0] - run.box.offset[0];
  return {begin / rows, ceil_div(begin + common.shape[0], rows)};
}

/// The piece of the run that the store of `rank` holds, -1 for none.
std::int64_t piece_of_rank(const ManifestRun& run, std::int64_t rank) {
  if (run.count == 1) return run.rank == rank ? 0 : -1;
  const std::int64_t beyond = rank - run.rank;
  if (beyond < 0 || beyond % run.stride != 0) return -1;
  return beyond / run.stride < run.count ? beyond / run.stride : -1;
}

}  // namespace

std::int64_t StoredShard::bytes() const {
  return shard.box.shape.count() * static_cast<std::int64_t>(size_of(tensor->dtype));
}

ShardLists::ShardLists(std::filesystem::path folder, const Manifest& manifest)
    : folder_(std::move(folder)), manifest_(manifest) {
  if (!manifest.split) return;
  for (const ManifestStore& store : manifest.stores)
    stores_[rank_of_store_name(store.file)] = &store;
}

ShardLists::Index ShardLists::read_index(const ManifestStore& store) const {
  const std::string source = (folder_ / store.file).string();
  std::string text(static_cast<std::size_t>(store.index->bytes), '\0');
  StoreFile(folder_ / store.file)
      .read(store.index->byte_offset, std::as_writable_bytes(std::span(text)));
  if (xxh3_128_hex(text) != store.index->hash)
    throw DataError("{}: its index does not match its hash (the file was changed or damaged)",
                    source);
  Index index;
  for (ManifestTensor& tensor : parse_contents(text, source + " (index)").tensors) {
    const ManifestTensor* known = manifest_.find(tensor.name);
    if (known == nullptr || known->dtype != tensor.dtype || known->shape != tensor.shape)
      throw DataError("{}: its index names {}, which the manifest has not", source, tensor.name);
    for (const ManifestShard& shard : tensor.shards) {
      const std::int64_t bytes = StoredShard{known, shard}.bytes();
      if (shard.file != store.file || bytes > store.bytes ||
          shard.byte_offset > store.bytes - bytes) {
        throw DataError("{}: its index names a shard of {} beyond this file", source, tensor.name);
      }
    }
    index.emplace(tensor.name, std::move(tensor.shards));
  }
  return index;
}

const ShardLists::Index& ShardLists::index_of(std::int64_t rank) {
  const auto found = indices_.find(rank);
  if (found != indices_.end()) return found->second;
  return indices_.emplace(rank, read_index(*stores_.at(rank))).first->second;
}

ManifestShard ShardLists::shard_at(const Index& index, const ManifestTensor& tensor,
                                   const ManifestRun& run, std::int64_t piece) const {
  const Box box = run.piece(piece);
  const auto shards = index.find(tensor.name);
  if (shards != index.end()) {
    for (const ManifestShard& shard : shards->second) {
      if (shard.box == box) return shard;
    }
  }
  throw DataError("{}: its index does not name the shard {} at {} of {}",
                  (folder_ / store_name(run.rank_of(piece))).string(), box.shape.text(),
                  box.offset.text(), tensor.name);
}

std::vector<ManifestShard> ShardLists::meeting(const ManifestTensor& tensor, const Box& box) {
  std::vector<ManifestShard> met;
  for (const ManifestShard& shard : tensor.shards) {
    if (share_elements(shard.box, box)) met.push_back(shard);
  }
  for (const ManifestRun& run : tensor.runs) {
    const auto [begin, end] = pieces_meeting(run, box);
    for (std::int64_t i = begin; i < end; ++i)
      met.push_back(shard_at(index_of(run.rank_of(i)), tensor, run, i));
  }
  return met;
}

std::vector<StoredShard> ShardLists::of_store(const ManifestStore& store) const {
  std::vector<StoredShard> shards;
  for (const ManifestTensor& tensor : manifest_.tensors) {
    for (const ManifestShard& shard : tensor.shards) {
      if (shard.file == store.file) shards.push_back({&tensor, shard});
    }
  }
  if (!manifest_.split) return shards;
  const std::int64_t rank = rank_of_store_name(store.file);
  const Index index = read_index(store);
  std::size_t listed = 0;
  for (const auto& [name, list] : index) listed += list.size();
  for (const ManifestTensor& tensor : manifest_.tensors) {
    for (const ManifestRun& run : tensor.runs) {
      const std::int64_t piece = piece_of_rank(run, rank);
      if (piece >= 0) shards.push_back({&tensor, shard_at(index, tensor, run, piece)});
    }
  }
  if (shards.size() != listed) {
    throw DataError("{}: its index names {} shards, the manifest knows {} of them",
                    (folder_ / store.file).string(), listed, shards.size());
  }
  return shards;
}

}  // namespace trireme
