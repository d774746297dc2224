#include "kernels/common/parallel.h"
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

template <bool kPack>
void copy(const ShardsArgs& args) {
  const auto size = static_cast<std::int64_t>(size_of(args.dtype));
  char* local = static_cast<char*>(args.local);
  // Places of all owners' shards, one shard behind the other.
  parallel_ranges(
      args.exec, args.owners_here * args.size, size, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t at = begin; at < end;) {
          const std::int64_t here = at / args.size;
          const std::int64_t stop = smaller(end, (here + 1) * args.size);
          // Place e of this owner's shard is element e of `shards`.
          char* shards = static_cast<char*>(args.shards) + (here * args.size - args.begin) * size;
          for_each_run(args, args.first_owner + here, at - here * args.size + args.begin,
                       stop - here * args.size + args.begin,
                       [&](std::int64_t of_local, std::int64_t of_shard, std::int64_t count) {
                         char* whole = local + of_local * size;
                         char* shard = shards + of_shard * size;
                         __builtin_memcpy(kPack ? shard : whole, kPack ? whole : shard,
                                          static_cast<std::size_t>(count * size));
                       });
          at = stop;
        }
      });
}

}  // namespace

const ShardsKernels shards_cpu = {copy<true>, copy<false>};

}  // namespace trireme::TRIREME_ISA
