#include "store/buckets.h"

#include <algorithm>

namespace trireme {

namespace {

// Of all owners' shards: at most a network's stride, at least what is worth a transfer.
constexpr std::int64_t kBucketBytesMax = 16 << 20, kBucketBytesMin = 4 << 20;

struct RingShape {
  std::int64_t part_max, buckets;
};

/// As many buckets as a layer fills, and one: a whole layer is under way while the next is made.
/// The embedding and the head, many times larger, go round the ring in parts of a layer's size.
RingShape ring_shape(const StoreLayout& layout, MeshView view, DType dtype) {
  const int last = layout.valued_blocks() - 1;
  std::int64_t largest = 1, layer = 1;
  for (int block = 0; block < layout.block_count(); ++block) {
    const std::int64_t size = layout.shard_block(block, view).size;
    largest = std::max(largest, size);
    if (block > 0 && block < last) layer = std::max(layer, size);
  }
  const std::int64_t row =
      layout.distribution(view).shard.extent * static_cast<std::int64_t>(size_of(dtype));
  const auto elements = [row](std::int64_t bytes) {
    return std::max<std::int64_t>(16, bytes / row / 16 * 16);
  };
  const std::int64_t part_max =
      std::min(largest, std::clamp(layer, elements(kBucketBytesMin), elements(kBucketBytesMax)));
  return {part_max, 1 + ceil_div(layer, part_max)};
}

}  // namespace

std::int64_t Buckets::bytes_of(const StoreLayout& layout, MeshView view, DType dtype) {
  const RingShape shape = ring_shape(layout, view, dtype);
  return shape.part_max * shape.buckets * layout.distribution(view).shard.extent *
         static_cast<std::int64_t>(size_of(dtype));
}

void Buckets::for_each_part_of(const StoreLayout& layout, MeshView view, DType dtype,
                               const std::function<void(int, Slice)>& f) {
  const std::int64_t part_max = ring_shape(layout, view, dtype).part_max;
  for (int block = 0; block < layout.block_count(); ++block) {
    const std::int64_t size = layout.shard_block(block, view).size;
    for (std::int64_t begin = 0; begin < size; begin += part_max)
      f(block, {begin, std::min(part_max, size - begin)});
  }
}

Buckets::Buckets(const StoreLayout& layout, MeshView view, DType dtype, Device device)
    : layout_(layout),
      view_(view),
      part_max_(ring_shape(layout, view, dtype).part_max),
      memory_(dtype, {bytes_of(layout, view, dtype) / static_cast<std::int64_t>(size_of(dtype))},
              device),
      ring_(static_cast<std::size_t>(ring_shape(layout, view, dtype).buckets)) {}

}  // namespace trireme
