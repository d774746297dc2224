#pragma once
// Staging memory for collectives over shards. A block of parameters moves in buckets: parts of its
// shard layout, the same part of every owner, each owner's a shard of one reduce-scatter or
// all-gather. What a bucket holds is put there, and taken from there, by one op whatever the number
// of owners. Bucket sizes change no bits: sums are made element by element.

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/memory.h"
#include "kernels/shards/shards.h"
#include "store/store_layout.h"

namespace trireme {

/// A ring of buckets, used and done with in turn.
class Buckets {
 public:
  struct Bucket {
    int block = -1;
    Slice part{};       ///< of the block's shard span
    TensorView shards;  ///< `part.size` elements of each owner
    Pending transfer;
    bool first = true;  ///< of this part in the step
    bool busy = false;

    [[nodiscard]] TensorView shard_of(int owner) const {
      return shards.rows(owner * part.size, part.size);
    }
  };
  /// What a ring is for: the parameters of one view, its elements' type, where it stands. On a GPU
  /// every bucket costs launches, and so it is a third of a layer at least, more where the shards
  /// of many owners would be small; on a CPU, a size that caches and shared pages hold.
  struct Of {
    MeshView view;
    DType dtype;
    DeviceKind device;
  };

  /// `channels`: that its transfers run on, which outlive it. Collective over each.
  Buckets(Context& context, const StoreLayout& layout, MeshView view, DType dtype,
          std::span<Communicator* const> channels);
  /// f(block, part) for all parts of all blocks, in the order that buckets take them.
  static void for_each_part_of(const StoreLayout& layout, Of of,
                               const std::function<void(int, Slice)>& f);
  /// What such a ring takes.
  static std::int64_t bytes_of(const StoreLayout& layout, Of of);

  /// The bucket's shards = what stands in `local`, the block's local span: of all owners, or of
  /// one.
  void pack(Context& context, const Bucket& bucket, ConstTensorView local) const;
  void pack(Context& context, const Bucket& bucket, ConstTensorView local, int owner) const;
  /// The reverse.
  void unpack(Context& context, TensorView local, const Bucket& bucket) const;
  void unpack(Context& context, TensorView local, const Bucket& bucket, int owner) const;

  /// f(part) for the parts that a block moves in.
  template <class F>
  void for_each_part(int block, const F& f) const {
    const std::int64_t size = layout_.shard_block(block, view_).size;
    for (std::int64_t begin = 0; begin < size; begin += part_max_)
      f(Slice{begin, std::min(part_max_, size - begin)});
  }
  /// The next slot of the ring, for `part` of `block`; calls `finish(bucket)` if it is busy.
  template <class F>
  Bucket& take(int block, Slice part, const F& finish) {
    Bucket& bucket = ring_[next_];
    finish_one(bucket, finish);
    next_ = (next_ + 1) % ring_.size();
    bucket.block = block;
    bucket.part = part;
    bucket.shards = {memory_.data() + offset_of(bucket),
                     dtype_,
                     {layout_.distribution(view_).shard.extent * part.size}};
    bucket.busy = true;
    return bucket;
  }
  /// Finishes busy buckets, the oldest first, until `done()`.
  template <class F, class Done>
  void finish_until(const F& finish, const Done& done) {
    for (std::size_t i = 0; i < ring_.size() && !done(); ++i)
      finish_one(ring_[(next_ + i) % ring_.size()], finish);
  }

 private:
  template <class F>
  static void finish_one(Bucket& bucket, const F& finish) {
    if (!bucket.busy) return;
    bucket.transfer.wait();
    bucket.busy = false;
    finish(bucket);
  }
  [[nodiscard]] std::size_t offset_of(const Bucket& bucket) const {
    return static_cast<std::size_t>(&bucket - ring_.data()) * memory_.size() / ring_.size();
  }

  [[nodiscard]] const ShardTable& table_of(const Bucket& bucket) const {
    return tables_[static_cast<std::size_t>(bucket.block)];
  }

  const StoreLayout& layout_;
  const MeshView view_;
  const DType dtype_;
  std::int64_t part_max_;
  std::vector<ShardTable> tables_;  ///< of each block
  Memory memory_;
  std::vector<std::shared_ptr<void>> registrations_;
  std::vector<Bucket> ring_;
  std::size_t next_ = 0;
};

}  // namespace trireme
