#pragma once
// What both forms of the backward kernel for Hopper have: the tiles as they are told to consumers,
// masks, weights on their way, and the warps that add dQ.

#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_mma.cuh"
#include "kernels/attention/attention_query_rows_sm90.cuh"
#include "kernels/attention/attention_sm90.cuh"
#include "kernels/attention/attention_steps_sm90.cuh"
#include "kernels/attention/attention_sums_sm90.cuh"
#include "kernels/attention/attention_turns_sm90.cuh"

namespace trireme::cuda::attention {

/// What consumers know of a streamed tile.
struct QueryTile {
  int position;     ///< from the block's first key
  int count;        ///< 0: no more tiles
  unsigned masked;  ///< bit c: some query does not see some of the 64 keys from 64 c on
};

/// The block's keys.
struct KeyTile {
  int number, count;
  HeadAt at;
};

struct HopperBackwardMaps {
  TensorMap q, d_o, k, v, dq, dk, dv;
};

inline constexpr int kConsumerThreads = 256;

// ---- the warp that loads tiles ----

template <class B>
__device__ __forceinline__ QueryTile query_tile(const typename B::Work& work,
                                                const BackwardStep& step) {
  if (step.tile.count == 0) return {0, 0, 0};
  const QueryBounds bounds = work.bounds_of(step.tile, step.number);
  unsigned masked = 0;
#pragma unroll
  for (int c = 0; c < B::kKeys / 64; ++c) {
    const Tile keys{0, 64, work.own.position + c * 64};
    if (work.own.count < (c + 1) * 64 || step.tile.count < B::kQueries || !bounds.covers(keys))
      masked |= 1U << c;
  }
  return {step.tile.position - work.own.position, step.tile.count, masked};
}

/// One thread.
template <class B>
__device__ __forceinline__ void bring_keys(typename B::Smem& s, const HopperBackwardMaps& maps,
                                           const typename B::Work& work) {
  const HeadAt at{work.head, work.own.index, static_cast<int>(work.sequence())};
  ptx::mbarrier_arrive_expect_tx(&s.keys_full, sizeof s.k + sizeof s.v);
  bring_heads<B::kD, B::kKeys>(s.k, maps.k, at, &s.keys_full);
  bring_heads<B::kDv, B::kKeys>(s.v, maps.v, at, &s.keys_full);
}

// ---- the warps that add to dq ----

/// Of each second step all parts, in the order in which consumers have them.
template <class B>
__device__ __forceinline__ void add_query_gradients(typename B::Smem& s,
                                                    const HopperBackwardMaps& maps,
                                                    const AttentionGpuBackward& args,
                                                    typename B::Work& work, BlockTurns<B> turns,
                                                    int stage) {
  const bool elected = threadIdx.x % 32 == 0;
  const int sequence = static_cast<int>(work.sequence());
  for (Ring<B::kStages> ring;; ring.advance()) {
    const BackwardStep step = work.next();
    if (step.tile.count == 0) break;
    if (ring.stage != stage) continue;
    turns.find(work, step);
    if (elected) turns.begin();
    __syncwarp();
    const SumsTo to =
        sums_to(maps.dq, args.dq, {step.head, step.tile.index, sequence}, args.shape.q_tokens,
                args.shape.head_dim, step.tile.count, B::kQueries);
#pragma unroll 1
    for (int part = 0; part < B::kParts; ++part) {
      const float* const sums = s.sums(stage, part);
      ptx::mbarrier_wait(&s.dq_full[stage][part], ring.parity);
#pragma unroll 1
      for (int block = 0; block < B::kPartColumns / kSumColumns; ++block)
        add_sums(to, sums + block * kSumBlock<B::kQueries>,
                 B::first_column(part) + block * kSumColumns, args.shape.head_dim);
      if (elected) {
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
      }
      release(&s.dq_empty[stage][part]);
    }
    if (elected) turns.end();
  }
}

// ---- the consumers ----

/// S^T becomes P^T.
template <class B>
__device__ __forceinline__ void exponentiate(typename B::Scores& scores, const float* lse_log2,
                                             float scale_log2) {
#pragma unroll
  for (int n = 0; n < B::kQueries / 8; ++n) {
    const Vector<float, 2> lse = load<2>(lse_log2 + n * 8);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& score = scores[n * 4 + e];
      score = ptx::exp2_approx(fmaf(score, scale_log2, -lse.at[e % 2]));
    }
  }
}

/// A thread's two keys of the block's. One that does not exist stands behind all queries.
struct KeyRows {
  int number[2];
};
/// `row`: the first of them; `count`: the block's keys.
__device__ __forceinline__ KeyRows key_rows(int row, int count) {
  constexpr int kNone = 0x7fffffff;
  return {{row < count ? row : kNone, row + 8 < count ? row + 8 : kNone}};
}

/// A bit for each of the thread's pairs that are visible. `column`: its first query, at `position`
/// from the block's first key.
template <class B>
__device__ __forceinline__ void find_visible(typename B::Visible& visible,
                                             const std::int16_t* first_key, const KeyRows& keys,
                                             int column, int position) {
#pragma unroll
  for (int word = 0; word < B::kQueries / 64; ++word) {
    visible[word] = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int query = word * 64 + n * 8;
      const Vector<std::int16_t, 2> first = load<2>(first_key + column + query);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = keys.number[e / 2];
        if (key >= first.at[e % 2] && key <= position + query + e % 2)
          visible[word] |= 1U << (n * 4 + e);
      }
    }
  }
}

/// dS^T of a warp's 16 keys, from `row` on, to shared memory.
template <class B>
__device__ __forceinline__ void store_weights(bf16* to, const typename B::Weights& weights,
                                              int row) {
  // A lane names a chunk of eight queries of one key. The swizzle moves it by the key's number, so
  // that chunks differ by bits of theirs.
  const int lane = ptx::lane(), key = row + lane % 16,
            first = key * kBlockColumns + ((lane / 16) ^ (key % 8)) * 8;
#pragma unroll
  for (int k = 0; k < B::kQueries / 16; ++k)
    ptx::stmatrix_x4(to + k / 4 * kBlockElements<B::kKeys> + (first ^ k % 4 * 16), weights[k]);
}

/// The thread's row of 64, of each eight columns the first that it has.
struct LaneAt {
  int row, column;
};
__device__ __forceinline__ LaneAt lane_at() {
  const int thread = static_cast<int>(threadIdx.x % 128);
  return {thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2};
}

// ---- the kernel's beginning, and its launch ----

/// Where the block works.
template <class B>
__device__ __forceinline__ BlockOrder::Place place_of_block(typename B::Smem& s,
                                                            const AttentionGpuBackward& args,
                                                            const BlockOrder& order) {
  unsigned block = blockIdx.x;
  if (args.turns != nullptr) {
    if (threadIdx.x == 0) s.block = atomicAdd(args.turns, 1);
    __syncthreads();
    block = static_cast<unsigned>(s.block);
  }
  return order.place(block);
}

/// One thread: the barriers of keys, tiles and dQ.
template <class B>
__device__ __forceinline__ void init_barriers(typename B::Smem& s) {
  for (int i = 0; i < B::kStages; ++i) {
    ptx::mbarrier_init(&s.full[i], 2);  // of its bytes, of what a warp stored
    ptx::mbarrier_init(&s.empty[i], B::kStageWarps);
    for (int part = 0; part < B::kParts; ++part) {
      ptx::mbarrier_init(&s.dq_full[i][part], B::kPartWarps);
      ptx::mbarrier_init(&s.dq_empty[i][part], 1);
    }
  }
  ptx::mbarrier_init(&s.keys_full, 1);
  if constexpr (requires { s.d_o_full; })  // dO has a ring of its own
    for (int i = 0; i < B::kOutputStages; ++i) {
      ptx::mbarrier_init(&s.d_o_full[i], 1);
      ptx::mbarrier_init(&s.d_o_empty[i], B::kConsumers * 4);
    }
}

/// A block's work. `bring(s, work)` is called by the warp that loads tiles, `consume(s, number)` by
/// each consumer.
template <class B, class Bring, class Consume>
__device__ __forceinline__ void run_block(const HopperBackwardMaps& maps,
                                          const AttentionGpuBackward& args, const BlockOrder& order,
                                          int query_tiles, const Bring& bring,
                                          const Consume& consume) {
  auto& s = smem<typename B::Smem>();
  const BlockOrder::Place place = place_of_block<B>(s, args, order);
  typename B::Work work(args, place.tile, place.group, query_tiles);
  if (threadIdx.x == 0) {
    init_barriers<B>(s);
    ptx::fence_mbarrier_init();
    s.keys = {
        place.tile, work.own.count, {work.head, work.own.index, static_cast<int>(work.sequence())}};
  }
  __syncthreads();
  const int group = warpgroup(), warp = static_cast<int>(threadIdx.x) / 32;
  if (group == 0) {
    ptx::decrease_registers<56>();
    if (warp == 0) bring(s, work);
    if (warp == 1) bring_query_rows<B>(s, args, work);
    if (warp >= 2)
      add_query_gradients<B>(s, maps, args, work, {args, s.keys.number, query_tiles}, warp - 2);
    return;
  }
  ptx::increase_registers<224>();
  consume(s, group - 1);
}

/// Of heads with the sizes that `of` has.
template <class Data>
TensorMap map_of(const AttentionHeads<Data>& heads, SequencesOfHeads of, int rows) {
  of.data = heads.data;
  of.stride = heads.stride;
  return heads_map(of, rows);
}
inline TensorMap map_of(const AttentionHeads<float>& heads, SequencesOfHeads of, int rows) {
  of.data = heads.data;
  of.stride = heads.stride;
  return heads_map<float>(of, rows);
}

/// `kernel`: of maps, arguments, the order of blocks and the number of tiles of queries.
template <class B, class Kernel>
void launch_backward(Kernel* kernel, const AttentionGpuBackward& args) {
  const AttentionShape& shape = args.shape;
  static_assert(B::kQueries >= kAttentionTurnTileMin);
  const int tiles = tile_count(args.kv_ranges, B::kKeys),
            query_tiles = tile_count(args.q_ranges, B::kQueries);
  if (tiles == 0 || query_tiles == 0) return;
  if (args.turns != nullptr) {
    const auto counts = static_cast<std::size_t>(1 + shape.sequences * shape.heads * query_tiles);
    check_call("attention_backward",
               cudaMemsetAsync(args.turns, 0, counts * sizeof *args.turns, stream_of(args.exec)));
  }
  const bool written = args.to_dk.data != nullptr;
  if (written) {
    const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count) * 4; };
    check_call("attention_backward",
               cudaMemset2DAsync(args.dq.data, bytes(args.dq.stride), 0,
                                 bytes(shape.heads * shape.head_dim),
                                 static_cast<std::size_t>(shape.sequences * shape.q_tokens),
                                 stream_of(args.exec)));
  }
  find_tile_first_keys(args, B::kQueries);
  const SequencesOfHeads queries{nullptr,        0,           shape.sequences,
                                 shape.q_tokens, shape.heads, shape.head_dim},
      keys{nullptr, 0, shape.sequences, shape.kv_tokens, shape.kv_heads, shape.head_dim};
  SequencesOfHeads outputs = queries, values = keys;
  outputs.head_dim = values.head_dim = shape.value_dim;
  const BlockOrder order = backward_block_order(
      tiles, shape.sequences * shape.kv_heads,
      shape.heads / shape.kv_heads * shape.q_tokens * (shape.head_dim + shape.value_dim) * 2);
  launch(kernel,
         {.grid = order.blocks(),
          .block = B::kThreads,
          .smem_bytes = sizeof(typename B::Smem),
          .stream = stream_of(args.exec),
          .name = "attention_backward"},
         HopperBackwardMaps{
             map_of(args.q, queries, B::kQueries), map_of(args.d_o, outputs, B::kQueries),
             map_of(args.k, keys, B::kKeys), map_of(args.v, values, B::kKeys),
             map_of(args.dq, queries, B::kQueries),
             written ? map_of(args.to_dk, keys, B::kKeys) : map_of(args.dk, keys, B::kKeys),
             written ? map_of(args.to_dv, values, B::kKeys) : map_of(args.dv, values, B::kKeys)},
         args, order, query_tiles);
}

}  // namespace trireme::cuda::attention
