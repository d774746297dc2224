#pragma once
// Attention forward for Hopper, bf16, by TMA and wgmma (the plan is FlashAttention 3's, Shah et al.
// 2024): a producer warp brings tiles, warpgroups of 64 queries each multiply and soften them,
// blocks stay and take tile after tile of queries.
//
// Of a tile of queries the producer finds the tiles of keys that it sees, and says with each
// whether some pair in it is hidden: consumers look at no ranges and no documents. Values come one
// step behind keys, as they are used: S(j) = Q K(j)^T is issued before O += P(j-1) V(j-1), and the
// softmax of S(j) runs under that product. P stays in registers.
//
// Floor: 2 D + 2 Dv operations a visible pair and head, 4096 a cycle and multiprocessor; its
// exponential, 16 a cycle, takes 128 / (D + Dv) of that time beside it.

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_sweep_sm90.cuh"
#include "kernels/quantize/quantize_rows.cuh"

namespace trireme::cuda::attention {

struct HopperForwardMaps {
  TensorMap q, k, v, o;
};

// ---- the producer ----

/// Brings tiles of keys and values to their rings, by one warp.
template <class F>
class KeyFeed {
 public:
  __device__ __forceinline__ KeyFeed(typename F::Smem& s, const HopperForwardMaps& maps)
      : s_(s), maps_(maps) {}

  __device__ __forceinline__ void bring_keys(const Tile& keys, const HeadAt& of, bool hides,
                                             bool last) {
    if (threadIdx.x == 0) {
      std::uint64_t* const full = &s_.k_full[k_.stage];
      ptx::mbarrier_wait(&s_.k_empty[k_.stage], k_.parity ^ 1);
      s_.keys[k_.stage] = {keys.position, keys.position + keys.count, hides, last};
      ptx::mbarrier_arrive_expect_tx(full, static_cast<int>(sizeof s_.k[0]));
      bring_heads<F::kD, F::kKeys>(s_.k[k_.stage], maps_.k, {of.head, keys.index, of.sequence},
                                   full);
    }
    k_.advance();
  }
  /// Values of keys from `index` on.
  __device__ __forceinline__ void bring_values(int index, const HeadAt& of) {
    if (threadIdx.x == 0) {
      std::uint64_t* const full = &s_.v_full[v_.stage];
      ptx::mbarrier_wait(&s_.v_empty[v_.stage], v_.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, static_cast<int>(sizeof s_.v[0]));
      bring_heads<F::kV, F::kKeys>(s_.v[v_.stage], maps_.v, {of.head, index, of.sequence}, full);
    }
    v_.advance();
  }

 private:
  typename F::Smem& s_;
  const HopperForwardMaps& maps_;
  Ring<F::kStages> k_, v_;
};

template <class F>
__device__ __forceinline__ void bring_queries(typename F::Smem& s, const TensorMap& map,
                                              const typename F::Work& work, int turn) {
  if (threadIdx.x != 0) return;
  ptx::mbarrier_wait(&s.q_empty, (turn & 1) ^ 1);
  s.work[turn & 1] = work;
  ptx::mbarrier_arrive_expect_tx(&s.q_full, static_cast<int>(sizeof s.q));
  bring_heads<F::kD, F::kQueries>(s.q, map, {work.head, work.queries.index, work.sequence},
                                  &s.q_full);
}

/// By one warp.
template <class F>
__device__ __forceinline__ void find_bounds(typename F::Smem& s, const AttentionGpuForward& args,
                                            const Tile& queries, int sequence) {
  const std::int32_t* const first_key =
      args.first_key == nullptr ? nullptr
                                : args.first_key + sequence * args.shape.q_tokens + queries.index;
  const QueryBounds bounds = query_bounds(queries, 0, F::kQueries, first_key, args.reach);
  __syncwarp();
  if (threadIdx.x == 0) s.bounds = bounds;
  __syncwarp();
}

template <class F>
__device__ __forceinline__ void produce(typename F::Smem& s, const AttentionGpuForward& args,
                                        const HopperForwardMaps& maps, const BlockOrder& order,
                                        HeadsOfTile together) {
  const int heads = static_cast<int>(args.shape.heads),
            sharing = heads / static_cast<int>(args.shape.kv_heads), groups = together.token(heads);
  KeyFeed<F> feed(s, maps);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(maps.q);
    ptx::prefetch_tensor_map(maps.k);
    ptx::prefetch_tensor_map(maps.v);
  }
  int turn = 0;
  for (unsigned item = blockIdx.x; item < order.blocks(); item += gridDim.x, ++turn) {
    const BlockOrder::Place place = order.place(item);
    const int head = together.rows(place.group % groups), sequence = place.group / groups;
    const Tile queries = tile_at(args.q_ranges, place.tile, together.token(F::kQueries));
    find_bounds<F>(s, args, queries, sequence);
    const HeadAt of{head / sharing, 0, sequence};
    TileScan scan(args.kv_ranges, F::kKeys);
    const auto next_tile = [&] {
      return scan.next([&](const Tile& keys, int) { return s.bounds.meets(keys); });
    };
    const auto bring_keys = [&](const Tile& keys, const Tile& next) {
      feed.bring_keys(keys, of, !s.bounds.covers(keys) || keys.count < F::kKeys, next.count == 0);
    };
    Tile keys = next_tile(), next = {0, 0, 0};
    const bool sees = keys.count > 0;
    if (sees) {  // room for keys comes earlier than for queries
      next = next_tile();
      bring_keys(keys, next);
    }
    const bool last = order.blocks() - item <= gridDim.x;
    bring_queries<F>(s, maps.q, {queries, together, head, sequence, sees, last}, turn);
    int values = keys.index;
    while (next.count > 0) {
      keys = next;
      next = next_tile();
      bring_keys(keys, next);
      feed.bring_values(values, of);
      values = keys.index;
    }
    if (sees) feed.bring_values(values, of);
  }
}

// ---- the consumers ----

/// O and LSE of this thread's rows from their sums; O to the warpgroup's rows of the tile.
template <class F>
__device__ __forceinline__ void finish_rows(bf16* tile, const typename F::Out& out,
                                            const ForwardRows& rows,
                                            const AttentionGpuForward& args,
                                            const typename F::Work& work, int row) {
  const int lane = static_cast<int>(threadIdx.x % 32), turn = lane / 4;  // the row's, of eight
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = quad_sum(rows.sum[h]);
    const float factor = sum == 0 ? 0 : 1 / sum;  // a NaN stays one
    const int tile_row = row + 8 * h;
    bf16* const to = tile + tile_row * kBlockColumns + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < F::kV / 8; ++n) {
      const std::uint32_t pair = pack(out[n * 4 + 2 * h] * factor, out[n * 4 + 2 * h + 1] * factor);
      bf16* const at = to + n / 8 * kBlockElements<F::kQueries> + (n % 8 ^ turn) * 8;
      store(reinterpret_cast<std::uint32_t*>(at), Vector<std::uint32_t, 1>{pair});
    }
    const int of_tile = work.heads.token(tile_row);
    if (lane % 4 != 0 || of_tile >= work.queries.count) continue;
    const std::int64_t token = work.sequence * args.shape.q_tokens + work.queries.index + of_tile;
    const float largest = rows.max[h];
    const float shift = largest == -INFINITY ? 0 : __fmul_rn(largest, args.scale * kLog2E);
    args.lse[token * args.shape.heads + work.head + work.heads.head(tile_row)] =
        sum == 0 ? -INFINITY : fmaf(shift, kLn2, logf(sum));
  }
}

/// Eight columns of a row of the tile.
template <class F>
__device__ __forceinline__ Vector<bf16, 8> chunk_of(const bf16* tile, int row, int chunk) {
  return load<8>(tile + chunk / 8 * kBlockElements<F::kQueries> + row * kBlockColumns +
                 (chunk % 8 ^ row % 8) * 8);
}

/// Rows [first, first + count) of the tile to global memory, 16 bytes a thread.
template <class F>
__device__ __forceinline__ void copy_rows(const bf16* tile, const AttentionGpuForward& args,
                                          const typename F::Work& work, int first, int count) {
  const int chunks = static_cast<int>(args.shape.value_dim) / 8;
  const std::int64_t token = work.sequence * args.shape.q_tokens + work.queries.index;
  bf16* const to = static_cast<bf16*>(args.o.data) + token * args.o.stride +
                   std::int64_t{work.head} * args.shape.value_dim;
  for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < count * chunks; i += kWarpgroup) {
    const int row = first + i / chunks, chunk = i % chunks;
    bf16* const of_head =
        to + work.heads.token(row) * args.o.stride + work.heads.head(row) * args.shape.value_dim;
    store(of_head + chunk * 8, chunk_of<F>(tile, row, chunk));
  }
}

/// What QuantizedOutput says of those rows, by the warpgroup. They are read again: threads that
/// make them have a few columns of each, and no registers to spare.
template <class F>
__device__ __forceinline__ void leave_rows(const bf16* tile, const AttentionGpuForward& args,
                                           const typename F::Work& work, int first, int count) {
  const RowCodes& to = args.quantized;
  if (to.codes == nullptr && to.amax == nullptr) return;
  constexpr int kChunks = F::kV / 8, kRows = kWarpgroup / kChunks;  // at a time
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, chunk = thread % kChunks;
  const std::int64_t token = work.sequence * args.shape.q_tokens + work.queries.index;
  unsigned order = 0;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kRows) {
    const int i = begin + thread / kChunks, row = first + i;
    const bool has = i < count && chunk * 8 < args.shape.value_dim;
    const Vector<bf16, 8> o = has ? chunk_of<F>(tile, row, chunk) : Vector<bf16, 8>{};
    order = max(order, order_of(o));
    if constexpr (F::kV % RowCodes::kBlock == 0) {
      const std::int64_t column =
          (work.head + work.heads.head(row)) * args.shape.value_dim + chunk * 8;
      if (to.codes != nullptr)
        leave_codes<true>(to, token + work.heads.token(row), has ? column : to.width, o);
    }
  }
  if (to.amax != nullptr) join_maximum(to.amax, order);
}

/// What follows a tile's sums. TMA stores 64 rows, or as many as are left of the sequence.
template <class F>
__device__ __forceinline__ void finish_tile(typename F::Smem& s, const typename F::Out& out,
                                            const ForwardRows& rows,
                                            const AttentionGpuForward& args, const TensorMap& map,
                                            const typename F::Work& work, int consumer, int row) {
  const bool elected = threadIdx.x % kWarpgroup == 0;
  if (elected) ptx::bulk_wait_read<0>();  // the last tile has left
  sync_warpgroup(consumer);               // and all warps are through with the queries
  finish_rows<F>(s.out(), out, rows, args, work, row);
  ptx::fence_proxy_async_shared();
  sync_warpgroup(consumer);
  const int first = consumer * 64, count = min(64, work.heads.rows(work.queries.count) - first);
  if (count == 64 || work.queries.index + work.queries.count == args.shape.q_tokens) {
    if (elected && count > 0) {
#pragma unroll
      for (int block = 0; block < F::kV / kBlockColumns; ++block)
        ptx::tma_store_4d(map, block * kBlockColumns, work.head,
                          work.queries.index + work.heads.token(first), work.sequence,
                          s.out() + block * kBlockElements<F::kQueries> + first * kBlockColumns);
      ptx::bulk_commit();
    }
  } else if (count > 0) {
    copy_rows<F>(s.out(), args, work, first, count);
  }
  leave_rows<F>(s.out(), args, work, first, count);
  if (F::kOutInQueries) {
    if (elected) ptx::bulk_wait_read<0>();
    sync_warpgroup(consumer);
    release(&s.q_empty);
  }
}

template <class F>
__device__ __forceinline__ void consume(typename F::Smem& s, const AttentionGpuForward& args,
                                        const TensorMap& map_of_o) {
  const int consumer = warpgroup() - 1, lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int row = consumer * 64 + warp * 16 + lane / 4;
  const Turns<F::kConsumers> turns{consumer};
  if (F::kInTurn) turns.open();
  ForwardRings<F> rings;
  std::uint32_t turn = 0;
  for (bool last = false; !last; turn ^= 1) {
    ptx::mbarrier_wait(&s.q_full, turn);
    const typename F::Work& work = s.work[turn];
    last = work.last;
    keep_first_keys<F>(s, args, work, row);
    ForwardRows rows;
    typename F::Out out = {};
    if (work.sees) {
      KeySweep<F>(s, args, work, rings, rows, consumer, row).add_all(out);
    } else if (!F::kOutInQueries) {
      release(&s.q_empty);
    }
    finish_tile<F>(s, out, rows, args, map_of_o, work, consumer, row);
  }
  if (F::kInTurn) turns.close();
  if (threadIdx.x % kWarpgroup == 0) ptx::bulk_wait<0>();
}

template <int kD, int kV>
__global__ void __launch_bounds__(HopperForward<kD, kV>::kThreads, 1)
    forward_sm90_kernel(const __grid_constant__ AttentionGpuForward args,
                        const __grid_constant__ HopperForwardMaps maps,
                        const __grid_constant__ BlockOrder order, HeadsOfTile heads) {
  using F = HopperForward<kD, kV>;
  auto& s = smem<typename F::Smem>();
  if (threadIdx.x == 0) {
    const auto init = [](std::uint64_t* full, std::uint64_t* empty) {
      ptx::mbarrier_init(full, 1);
      ptx::mbarrier_init(empty, F::kConsumers * 4);  // one arrival a warp
    };
    init(&s.q_full, &s.q_empty);
    for (int i = 0; i < F::kStages; ++i) {
      init(&s.k_full[i], &s.k_empty[i]);
      init(&s.v_full[i], &s.v_empty[i]);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    ptx::decrease_registers<F::kProducerRegisters>();
    if (threadIdx.x < 32) produce<F>(s, args, maps, order, heads);
  } else {
    ptx::increase_registers<F::kConsumerRegisters>();
    consume<F>(s, args, maps.o);
  }
}

// ---- launching ----

/// Tiles of keys that the tiles of queries of a key head meet, and one more for each tile of
/// queries. What documents hide is not looked at.
template <class F>
std::int64_t counted_tiles(const AttentionGpuForward& args, HeadsOfTile heads) {
  const std::int64_t size = heads.token(F::kQueries);
  std::int64_t met = 0;
  for (int i = 0; i < args.q_ranges.count; ++i) {
    const AttentionRange& queries = args.q_ranges.on_host[i];
    for (std::int64_t at = 0; at < queries.count; at += size) {
      const std::int64_t first = queries.first + at,
                         last = first + min(size, queries.count - at) - 1;
      ++met;
      for (int j = 0; j < args.kv_ranges.count; ++j) {
        const AttentionRange& keys = args.kv_ranges.on_host[j];
        const std::int64_t low = max(first - args.reach - keys.first, std::int64_t{0}),
                           high = min(last - keys.first, std::int64_t{keys.count} - 1);
        if (low <= high) met += high / F::kKeys - low / F::kKeys + 1;
      }
    }
  }
  return met * heads.token(static_cast<int>(args.shape.heads / args.shape.kv_heads));
}

/// All query heads of a key head in one tile where that leaves less to do: tiles are full although
/// queries are few, or are of fewer tokens, and less of what they meet is hidden. A row has the
/// same bits. (Dao's FlashAttention 2 and 3 pack grouped queries so.)
template <class F>
HeadsOfTile heads_of_tile(const AttentionGpuForward& args) {
  constexpr std::int64_t kMost = 64;  // a warpgroup's rows
  const std::int64_t sharing = args.shape.heads / args.shape.kv_heads;
  constexpr HeadsOfTile kOne{0};
  if (sharing > kMost || kMost % sharing != 0) return kOne;
  HeadsOfTile all = kOne;
  while (all.rows(1) < sharing) ++all.log2;
  return counted_tiles<F>(args, all) < counted_tiles<F>(args, kOne) ? all : kOne;
}

template <int kD, int kV>
void forward_sm90(const AttentionGpuForward& args) {
  using F = HopperForward<kD, kV>;
  static_assert(sizeof(typename F::Smem) <= std::size_t{227} << 10);
  const AttentionShape& shape = args.shape;
  const HeadsOfTile heads = heads_of_tile<F>(args);
  const int together = heads.rows(1);
  const BlockOrder order =
      block_order(tile_count(args.q_ranges, heads.token(F::kQueries)),
                  shape.sequences * shape.heads / together, shape.heads / shape.kv_heads / together,
                  shape.kv_tokens * (shape.head_dim + shape.value_dim) * 2, true);
  const auto queries = [&](const auto& x, std::int64_t dim, int rows) {
    return heads_map({x.data, x.stride, shape.sequences, shape.q_tokens, shape.heads, dim},
                     heads.token(rows), together);
  };
  const auto keys = [&](const auto& x, std::int64_t dim) {
    return heads_map({x.data, x.stride, shape.sequences, shape.kv_tokens, shape.kv_heads, dim},
                     F::kKeys);
  };
  const HopperForwardMaps maps = {queries(args.q, shape.head_dim, F::kQueries),
                                  keys(args.k, shape.head_dim), keys(args.v, shape.value_dim),
                                  queries(args.o, shape.value_dim, 64)};
  launch(forward_sm90_kernel<kD, kV>,
         {.grid = min(order.blocks(), static_cast<unsigned>(max(args.multiprocessors, 1))),
          .block = F::kThreads,
          .smem_bytes = sizeof(typename F::Smem),
          .stream = stream_of(args.exec),
          .name = "attention_forward"},
         args, maps, order, heads);
}

}  // namespace trireme::cuda::attention
