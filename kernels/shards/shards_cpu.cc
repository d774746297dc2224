#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/shards/shards_table.h"

namespace trireme::TRIREME_ISA {
namespace {

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// f(element of local, element of the owner's shard, count) for what [begin, end) of it holds.
template <class F>
void for_each_run(const ShardsArgs& args, std::int64_t owner, std::int64_t begin, std::int64_t end,
                  const F& f) {
  for (std::int64_t i = 0; i < args.tensor_count; ++i) {
    const ShardedTensor& tensor = args.tensors[i];
    std::int64_t first = 0, rows = tensor.rows;
    if (tensor.owner < 0) {
      const std::int64_t each = tensor.rows / args.owners, more = tensor.rows % args.owners;
      first = owner * each + smaller(owner, more);
      rows = each + (owner < more ? 1 : 0);
    } else if (tensor.owner != owner) {
      continue;
    }
    const std::int64_t from = larger(tensor.shard, begin),
                       to = smaller(tensor.shard + rows * tensor.row_elements, end);
    if (from < to)
      f(tensor.local + first * tensor.row_elements + from - tensor.shard, from, to - from);
  }
}

template <class To, class From>
void copy_run(To* to, const From* from, std::int64_t count) {
  for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
    F32::load(from + i, lanes).store(to + i, lanes);
  });
}
/// Bytes, not numbers: a NaN keeps its payload.
template <class T>
void copy_run(T* to, const T* from, std::int64_t count) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}

template <bool kPack, class Shard, class Local>
void copy_of(const ShardsArgs& args) {
  Local* local = static_cast<Local*>(args.local);
  // Places of all owners' shards, one shard behind the other.
  parallel_ranges(
      args.exec, args.owners_here * args.size, 4, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin; at < end;) {
          const std::int64_t here = at / args.size;
          const std::int64_t stop = smaller(end, (here + 1) * args.size);
          // Place e of this owner's shard is element e of `shards`.
          Shard* shards = static_cast<Shard*>(args.shards) + here * args.size - args.begin;
          for_each_run(args, args.first_owner + here, at - here * args.size + args.begin,
                       stop - here * args.size + args.begin,
                       [&](std::int64_t of_local, std::int64_t of_shard, std::int64_t count) {
                         if constexpr (kPack) {
                           copy_run(shards + of_shard, local + of_local, count);
                         } else {
                           copy_run(local + of_local, shards + of_shard, count);
                         }
                       });
          at = stop;
        }
      });
}

template <bool kPack>
void copy(const ShardsArgs& args) {
  if (args.shards_type == DType::kF32) return copy_of<kPack, float, float>(args);
  if (args.local_type == DType::kF32) return copy_of<kPack, BFloat16, float>(args);
  if (size_of(args.local_type) == 1) return copy_of<kPack, std::uint8_t, std::uint8_t>(args);
  copy_of<kPack, BFloat16, BFloat16>(args);
}

}  // namespace

const ShardsKernels shards_cpu = {copy<true>, copy<false>};

}  // namespace trireme::TRIREME_ISA
