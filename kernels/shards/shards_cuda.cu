#include "kernels/common/turns.cuh"
#include "kernels/shards/shards_table.h"

namespace trireme::cuda {
namespace {

constexpr int kTurns = 4;
constexpr int kTile = 8192;  // elements of one owner that a block copies

/// To itself: bytes, not numbers, so that a NaN keeps its payload.
template <class To, class From>
__device__ __forceinline__ To converted(const From& from) {
  return from_float<To>(to_float(from));
}
template <>
__device__ __forceinline__ float converted<float, float>(const float& from) {
  return from;
}
template <>
__device__ __forceinline__ bf16 converted<bf16, bf16>(const bf16& from) {
  return from;
}

template <>
__device__ __forceinline__ std::uint8_t converted<std::uint8_t, std::uint8_t>(
    const std::uint8_t& from) {
  return from;
}

/// to[0 ... count) = from, by all threads of a block.
template <class To, class From>
__device__ __forceinline__ void copy_run(To* to, const From* from, std::int64_t count) {
  constexpr int kWidth = kWide<From> < kWide<To> ? kWide<From> : kWide<To>;
  std::int64_t done = 0;
  if (((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) & 15) == 0) {
    done = count / kWidth * kWidth;
    in_turns<kTurns>(
        threadIdx.x, kTurnThreads, done / kWidth,
        [&](std::int64_t i) { return load<kWidth>(from + i * kWidth); },
        [&](std::int64_t i, const Vector<From, kWidth>& in) {
          Vector<To, kWidth> out;
#pragma unroll
          for (int k = 0; k < kWidth; ++k) out.at[k] = converted<To>(in.at[k]);
          store(to + i * kWidth, out);
        });
  }
  in_turns<kTurns>(
      done + threadIdx.x, kTurnThreads, count, [&](std::int64_t i) { return from[i]; },
      [&](std::int64_t i, const From& value) { to[i] = converted<To>(value); });
}

/// Block (x, y): tile x of the part of owner y. Which tensors lie in it, it finds by looking at
/// all.
template <bool kPack, class Shard, class Local>
__global__ void __launch_bounds__(kTurnThreads) shards_kernel(const ShardsArgs args) {
  const std::int64_t owner = args.first_owner + blockIdx.y;
  const std::int64_t begin = args.begin + std::int64_t{blockIdx.x} * kTile;
  const std::int64_t end = min(begin + kTile, args.begin + args.size);
  Shard* const shards = static_cast<Shard*>(args.shards) + blockIdx.y * args.size;
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
    Local* const whole = static_cast<Local*>(args.local) + tensor.local +
                         first * tensor.row_elements + from - tensor.shard;
    Shard* const shard = shards + from - args.begin;
    if constexpr (kPack) {
      copy_run(shard, whole, to - from);
    } else {
      copy_run(whole, shard, to - from);
    }
  }
}

template <bool kPack, class Shard, class Local>
void copy_elements(const ShardsArgs& args) {
  launch(shards_kernel<kPack, Shard, Local>,
         {.grid = {static_cast<unsigned>(blocks_for(args.size, kTile)),
                   static_cast<unsigned>(args.owners_here)},
          .block = kTurnThreads,
          .stream = stream_of(args.exec),
          .name = kPack ? "pack_shards" : "unpack_shards"},
         args);
}

template <bool kPack>
void copy(const ShardsArgs& args) {
  if (args.shards_type == DType::kF32) return copy_elements<kPack, float, float>(args);
  if (args.local_type == DType::kF32) return copy_elements<kPack, bf16, float>(args);
  if (size_of(args.local_type) == 1) return copy_elements<kPack, std::uint8_t, std::uint8_t>(args);
  copy_elements<kPack, bf16, bf16>(args);
}

}  // namespace

const ShardsKernels shards_cuda = {copy<true>, copy<false>};

}  // namespace trireme::cuda
