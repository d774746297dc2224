#include "kernels/common/turns.cuh"
#include "kernels/shards/shards_table.h"

namespace trireme::cuda {
namespace {

constexpr int kTurns = 4;
constexpr int kTile = 8192;  // elements of one owner that a block copies

/// to[0 ... count) = from, by all threads of a block.
template <class T>
__device__ __forceinline__ void copy_run(T* to, const T* from, std::int64_t count) {
  constexpr int kWidth = kWide<T>;
  std::int64_t done = 0;
  if (((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) & 15) == 0) {
    done = count / kWidth * kWidth;
    in_turns<kTurns>(
        threadIdx.x, kTurnThreads, done / kWidth,
        [&](std::int64_t i) { return load<kWidth>(from + i * kWidth); },
        [&](std::int64_t i, const Vector<T, kWidth>& vector) { store(to + i * kWidth, vector); });
  }
  in_turns<kTurns>(
      done + threadIdx.x, kTurnThreads, count, [&](std::int64_t i) { return from[i]; },
      [&](std::int64_t i, const T& value) { to[i] = value; });
}

/// Block (x, y): tile x of the part of owner y. Which tensors lie in it, it finds by looking at
/// all.
template <class T, bool kPack>
__global__ void __launch_bounds__(kTurnThreads) shards_kernel(const ShardsArgs args) {
  const std::int64_t owner = args.first_owner + blockIdx.y;
  const std::int64_t begin = args.begin + std::int64_t{blockIdx.x} * kTile;
  const std::int64_t end = min(begin + kTile, args.begin + args.size);
  T* const shards = static_cast<T*>(args.shards) + blockIdx.y * args.size;
  for (std::int64_t i = 0; i < args.tensor_count; ++i) {
    const ShardedTensor tensor = args.tensors[i];
    std::int64_t first = 0, rows = tensor.rows;
    if (tensor.owner < 0) {
      const std::int64_t each = tensor.rows / args.owners, more = tensor.rows % args.owners;
      first = owner * each + min(owner, more);
      rows = each + (owner < more ? 1 : 0);
    } else if (tensor.owner != owner) {
      continue;
    }
    const std::int64_t from = max(tensor.shard, begin),
                       to = min(tensor.shard + rows * tensor.row_elements, end);
    if (from >= to) continue;
    T* const whole = static_cast<T*>(args.local) + tensor.local + first * tensor.row_elements +
                     from - tensor.shard;
    T* const shard = shards + from - args.begin;
    copy_run(kPack ? shard : whole, kPack ? whole : shard, to - from);
  }
}

template <class T, bool kPack>
void copy_elements(const ShardsArgs& args) {
  launch(shards_kernel<T, kPack>,
         {.grid = {static_cast<unsigned>(blocks_for(args.size, kTile)),
                   static_cast<unsigned>(args.owners_here)},
          .block = kTurnThreads,
          .stream = stream_of(args.exec),
          .name = kPack ? "pack_shards" : "unpack_shards"},
         args);
}

template <bool kPack>
void copy(const ShardsArgs& args) {
  if (size_of(args.dtype) == 2) return copy_elements<std::uint16_t, kPack>(args);
  copy_elements<std::uint32_t, kPack>(args);
}

}  // namespace

const ShardsKernels shards_cuda = {copy<true>, copy<false>};

}  // namespace trireme::cuda
