#include "store/buckets.h"

#include <algorithm>
#include <span>

namespace trireme {

namespace {

// Of all owners' shards on a CPU: at most a network's stride, at least what is worth a transfer.
constexpr std::int64_t kBucketBytesMax = 16 << 20, kBucketBytesMin = 4 << 20;
// On a GPU: a layer's parts; the least that a bucket should be, and, where a layer has as much, the
// piece of one owner.
constexpr std::int64_t kLayerParts = 3, kGpuBucketBytesMin = 32 << 20, kPieceBytesMin = 256 << 10;

struct RingShape {
  std::int64_t part_max, buckets;
};

/// As many buckets as a layer fills, and one: a whole layer is under way while the next is made.
/// The embedding and the head, many times larger, go round the ring in parts of a layer's size.
RingShape ring_shape(const StoreLayout& layout, Buckets::Of of) {
  const int last = layout.valued_blocks() - 1;
  std::int64_t largest = 1, layer = 1;
  for (int block = 0; block < layout.block_count(); ++block) {
    const std::int64_t size = layout.shard_block(block, of.view).size;
    largest = std::max(largest, size);
    if (block > 0 && block < last) layer = std::max(layer, size);
  }
  const std::int64_t owners = layout.distribution(of.view).shard.extent;
  const std::int64_t row = owners * static_cast<std::int64_t>(size_of(of.dtype));
  const auto elements = [row](std::int64_t bytes) {
    return std::max<std::int64_t>(16, bytes / row / 16 * 16);
  };
  std::int64_t part = 0;
  if (of.device == DeviceKind::kCuda) {
    const std::int64_t of_pieces = std::min(layer, elements(owners * kPieceBytesMin));
    part = std::max(
        {round_up(ceil_div(layer, kLayerParts), 16), of_pieces, elements(kGpuBucketBytesMin)});
  } else {
    part = std::clamp(layer, elements(kBucketBytesMin), elements(kBucketBytesMax));
  }
  part = std::min(part, largest);
  return {part, 1 + ceil_div(layer, part)};
}

}  // namespace

std::int64_t Buckets::bytes_of(const StoreLayout& layout, Of of) {
  const RingShape shape = ring_shape(layout, of);
  return shape.part_max * shape.buckets * layout.distribution(of.view).shard.extent *
         static_cast<std::int64_t>(size_of(of.dtype));
}

void Buckets::for_each_part_of(const StoreLayout& layout, Of of,
                               const std::function<void(int, Slice)>& f) {
  const std::int64_t part_max = ring_shape(layout, of).part_max;
  for (int block = 0; block < layout.block_count(); ++block) {
    const std::int64_t size = layout.shard_block(block, of.view).size;
    for (std::int64_t begin = 0; begin < size; begin += part_max)
      f(block, {begin, std::min(part_max, size - begin)});
  }
}

Buckets::Buckets(Context& context, const StoreLayout& layout, MeshView view, DType dtype,
                 std::span<Communicator* const> channels)
    : layout_(layout), view_(view), dtype_(dtype) {
  const Of of{view, dtype, context.device().kind};
  const RingShape shape = ring_shape(layout, of);
  part_max_ = shape.part_max;
  memory_ = channels.front()->transfer_memory(context.device(),
                                              static_cast<std::size_t>(bytes_of(layout, of)));
  for (Communicator* channel : channels)
    registrations_.push_back(channel->register_memory({memory_.data(), memory_.size()}));
  ring_.resize(static_cast<std::size_t>(shape.buckets));
  for (int block = 0; block < layout.block_count(); ++block) {
    const std::vector<ShardedTensor> tensors = layout.sharded_tensors(block, view);
    ShardTable& table = tables_.emplace_back();
    table.owners = layout.distribution(view).shard.extent;
    table.count = static_cast<int>(tensors.size());
    if (tensors.empty()) continue;
    table.tensors = reinterpret_cast<const ShardedTensor*>(
        context.device_constant(std::as_bytes(std::span(tensors))));
  }
}

namespace {

/// Of `owners` owners, `part.size` elements of each.
TensorView rows_of_owners(TensorView shards, Slice part) {
  return {shards.data, shards.dtype, {part.size == 0 ? 0 : shards.count() / part.size, part.size}};
}

}  // namespace

void Buckets::pack(Context& context, const Bucket& bucket, ConstTensorView local) const {
  pack_shards(context, rows_of_owners(bucket.shards, bucket.part), local,
              {table_of(bucket), bucket.part});
}
void Buckets::pack(Context& context, const Bucket& bucket, ConstTensorView local, int owner) const {
  pack_shards(context, rows_of_owners(bucket.shard_of(owner), bucket.part), local,
              {table_of(bucket), bucket.part, owner});
}
void Buckets::unpack(Context& context, TensorView local, const Bucket& bucket) const {
  unpack_shards(context, local, rows_of_owners(bucket.shards, bucket.part),
                {table_of(bucket), bucket.part});
}
void Buckets::unpack(Context& context, TensorView local, const Bucket& bucket, int owner) const {
  unpack_shards(context, local, rows_of_owners(bucket.shard_of(owner), bucket.part),
                {table_of(bucket), bucket.part, owner});
}

}  // namespace trireme
