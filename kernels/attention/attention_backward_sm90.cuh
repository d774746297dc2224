#pragma once
// Attention backward for Hopper: five products by wgmma, operands by TMA (the division of labour is
// that of Shah et al. 2024, FlashAttention-3).
//
// A block owns 128 keys of a key head with their gradients and streams the queries of all its query
// heads past them, so that dk and dv are added to once. Two warpgroups of 64 keys each make
//   S^T = K Q^T, dP^T = V dO^T, then dV += P^T dO, dK += dS^T Q
// whose left operands P^T and dS^T are the accumulators of the former, in registers. dS^T goes
// through shared memory to both, which share dQ = dS K: half of its columns each, or half of its
// rows. A third warpgroup has a warp that brings the queries' tiles and one that adds dQ to global
// memory by bulk reductions, a row of f32 at a time. So come dK and dV to what stands there.
//
// Rows that a tile has beyond its range are zeros or other tokens: their weights are set to zero.

#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_mma.cuh"
#include "kernels/attention/attention_sm90.cuh"
#include "kernels/attention/attention_turns_sm90.cuh"

namespace trireme::cuda::attention {

/// What consumers know of a streamed tile.
struct QueryTile {
  int position, count;  ///< count 0: no more tiles
  unsigned masked;      ///< bit c: some query does not see some key of warpgroup c
};

/// The block's keys.
struct KeyTile {
  int number, position, count;
  float *dk, *dv;  ///< of the first key
};

struct HopperBackwardMaps {
  TensorMap q, d_o, k, v;
};

template <int kHeadSize>
struct HopperBackward {
  static constexpr int kD = kHeadSize;
  static constexpr int kKeys = 128, kQueries = kD == 64 ? 128 : 64, kStages = 2;
  static constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers);
  using Work = BackwardWork<RowsOf::kKeys, kKeys, kQueries>;

  /// Rows of sums on their way out; those of a store lie in different banks.
  using SumRow = float[kD + 8];

  struct Smem {
    alignas(1024) bf16 k[kKeys * kD];
    alignas(1024) bf16 v[kKeys * kD];
    alignas(1024) bf16 q[kStages][kQueries * kD];
    alignas(1024) bf16 d_o[kStages][kQueries * kD];
    /// A row for each key, in blocks of 64 queries; for one tile while the last is still read.
    alignas(1024) bf16 ds[kStages][kKeys * kQueries];
    alignas(16) SumRow dq[kQueries];
    alignas(16) float lse_log2[kStages][kQueries];
    alignas(16) float delta[kStages][kQueries];
    alignas(16) int first_key[kStages][kQueries];  // the first key's position that the query sees
    QueryTile tile[kStages];
    KeyTile keys;
    int block;  ///< where blocks take turns: of those that have begun, counted from 0
    std::uint64_t full[kStages], empty[kStages], keys_full;
  };
  using Scores = float[kQueries / 2];
  using Weights = std::uint32_t[kQueries / 16][4];
  using Visible = std::uint32_t[kQueries / 64];
  using Sums = float[kD / 2];
  static constexpr int kStepBytes = sizeof(Smem::q[0]) + sizeof(Smem::d_o[0]),
                       kKeyBytes = sizeof(Smem::k) + sizeof(Smem::v);
  /// dK's and dV's rows leave from where the operands stood.
  static_assert(2 * kKeys * sizeof(SumRow) <= offsetof(Smem, dq));
};

/// Named barriers: of the consumers, and of dq's tile between them and the warp that adds it.
enum HopperBackwardBarrier : int { kWeightsStored = 1, kDqFull = 2, kDqEmpty = 3 };
inline constexpr int kConsumerThreads = 256, kDqThreads = kConsumerThreads + 32;

// ---- the warp that loads ----

/// What weights depend on besides the scores, of the queries of a tile.
template <class B>
__device__ __forceinline__ void bring_query_rows(typename B::Smem& s, int stage,
                                                 const AttentionGpuBackward& args,
                                                 const typename B::Work& work,
                                                 const BackwardStep& step) {
  const std::int64_t first = work.q_row + step.tile.index;
  const float* lses = args.lse + first * args.shape.heads + step.head;
  const float* deltas = args.delta + first * args.shape.heads + step.head;
#pragma unroll 2
  for (int row = static_cast<int>(threadIdx.x % 32); row < B::kQueries; row += 32) {
    float lse = 0, delta = 0;
    int first_key = 0x7fffffff;
    if (row < step.tile.count) {
      lse = lses[row * args.shape.heads] * kLog2E;
      delta = deltas[row * args.shape.heads];
      first_key = first_visible(args.first_key == nullptr ? 0 : args.first_key[first + row],
                                step.tile.position + row, args.reach);
    }
    s.lse_log2[stage][row] = lse;
    s.delta[stage][row] = delta;
    s.first_key[stage][row] = first_key;
  }
}

template <class B>
__device__ __forceinline__ QueryTile query_tile(const typename B::Work& work,
                                                const BackwardStep& step) {
  if (step.tile.count == 0) return {0, 0, 0};
  const QueryBounds bounds = work.bounds_of(step.tile, step.number);
  unsigned masked = 0;
#pragma unroll
  for (int c = 0; c < B::kConsumers; ++c) {
    const Tile keys{0, 64, work.own.position + c * 64};
    if (work.own.count < (c + 1) * 64 || step.tile.count < B::kQueries || !bounds.covers(keys))
      masked |= 1U << c;
  }
  return {step.tile.position, step.tile.count, masked};
}

template <class B>
__device__ __forceinline__ void bring_steps(typename B::Smem& s, const HopperBackwardMaps& maps,
                                            const AttentionGpuBackward& args,
                                            typename B::Work& work) {
  const bool elected = threadIdx.x % 32 == 0;
  const int sequence = static_cast<int>(work.sequence());
  bool first = true;
  for (Ring<B::kStages> ring;; ring.advance(), first = false) {
    const BackwardStep step = work.next();
    if (first && elected && step.tile.count > 0) {
      const HeadAt at{work.head, work.own.index, sequence};
      ptx::mbarrier_arrive_expect_tx(&s.keys_full, B::kKeyBytes);
      bring_heads<B::kD, B::kKeys>(s.k, maps.k, at, &s.keys_full);
      bring_heads<B::kD, B::kKeys>(s.v, maps.v, at, &s.keys_full);
    }
    const QueryTile tile = query_tile<B>(work, step);
    std::uint64_t* full = &s.full[ring.stage];
    ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
    if (elected) {
      const HeadAt at{step.head, step.tile.index, sequence};
      ptx::mbarrier_arrive_expect_tx(full, tile.count > 0 ? B::kStepBytes : 0);
      s.tile[ring.stage] = tile;
      if (tile.count > 0) {
        bring_heads<B::kD, B::kQueries>(s.q[ring.stage], maps.q, at, full);
        bring_heads<B::kD, B::kQueries>(s.d_o[ring.stage], maps.d_o, at, full);
      }
    }
    if (tile.count > 0) bring_query_rows<B>(s, ring.stage, args, work, step);
    __syncwarp();
    if (elected) ptx::mbarrier_arrive(full);
    if (tile.count == 0) return;
  }
}

// ---- the warp that adds to dq ----

/// One thread: the first `count` rows are added to global ones.
template <class B>
__device__ __forceinline__ void add_rows(float* to, std::int64_t stride,
                                         const typename B::SumRow* rows, int count,
                                         std::int64_t head_dim) {
  const int bytes = static_cast<int>(head_dim) * static_cast<int>(sizeof(float));
#pragma unroll 1
  for (int row = 0; row < count; ++row, to += stride) ptx::bulk_add_f32(to, rows[row], bytes);
  ptx::bulk_commit();
}

template <class B>
__device__ __forceinline__ void add_query_gradients(typename B::Smem& s,
                                                    const AttentionGpuBackward& args,
                                                    typename B::Work& work, BlockTurns<B> turns) {
  const bool elected = threadIdx.x % 32 == 0;
  for (bool first = true;; first = false) {
    const BackwardStep step = work.next();
    if (!first) {
      if (step.tile.count > 0) ptx::barrier_arrive(kDqEmpty, kDqThreads);
      if (elected) turns.end();
    }
    if (step.tile.count == 0) break;
    turns.find(work, step);
    float* to = args.dq.data + (work.q_row + step.tile.index) * args.dq.stride +
                step.head * args.shape.head_dim;
    ptx::barrier_sync(kDqFull, kDqThreads);
    if (elected) {
      turns.begin();
      add_rows<B>(to, args.dq.stride, s.dq, step.tile.count, args.shape.head_dim);
      ptx::bulk_wait_read<0>();
    }
    __syncwarp();
  }
  if (elected) ptx::bulk_wait<0>();
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

/// A thread's two keys. One that does not exist stands behind all queries.
struct KeyRows {
  int position[2];
};

/// A bit for each of the thread's pairs that are visible. `column`: its first query, at `position`.
template <class B>
__device__ __forceinline__ void find_visible(typename B::Visible& visible, const int* first_key,
                                             const KeyRows& keys, int column, int position) {
#pragma unroll
  for (int word = 0; word < B::kQueries / 64; ++word) {
    visible[word] = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int query = word * 64 + n * 8;
      const Vector<int, 2> first = load<2>(first_key + column + query);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = keys.position[e / 2];
        if (key >= first.at[e % 2] && key <= position + query + e % 2)
          visible[word] |= 1U << (n * 4 + e);
      }
    }
  }
}

/// P^T and dP^T as bf16 weights P^T and dS^T, without the scale.
template <class B>
__device__ __forceinline__ void weigh(typename B::Weights& p_weights,
                                      typename B::Weights& ds_weights, const typename B::Scores& p,
                                      const typename B::Scores& dp, const float* deltas) {
#pragma unroll
  for (int n = 0; n < B::kQueries / 8; ++n) {
    const Vector<float, 2> delta = load<2>(deltas + n * 8);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = n * 4 + h * 2, word = n % 2 * 2 + h;
      p_weights[n / 2][word] = pack(p[i], p[i + 1]);
      ds_weights[n / 2][word] =
          pack(p[i] * (dp[i] - delta.at[0]), p[i + 1] * (dp[i + 1] - delta.at[1]));
    }
  }
}

/// Weights of pairs that are not visible become 0, whatever they were.
template <class B>
__device__ __forceinline__ void hide(typename B::Weights& p_weights,
                                     typename B::Weights& ds_weights,
                                     const typename B::Visible& visible) {
#pragma unroll
  for (int n = 0; n < B::kQueries / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t seen = visible[n / 8] >> (n % 8 * 4 + h * 2),
                          keep = (seen & 1 ? 0xffffU : 0U) | (seen & 2 ? 0xffff0000U : 0U);
      p_weights[n / 2][n % 2 * 2 + h] &= keep;
      ds_weights[n / 2][n % 2 * 2 + h] &= keep;
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

/// Issues the warpgroup's part of dQ, without the scale: 64 queries and 64 columns.
template <class B>
__device__ __forceinline__ void issue_query_gradients(float (&dq)[32], const typename B::Smem& s,
                                                      int stage, int consumer) {
  constexpr int kBlock = kBlockElements<B::kKeys>;
  const int rows = B::kQueries > 64 ? consumer * kBlock : 0,
            columns = B::kQueries > 64 ? 0 : consumer * kBlock;
  const std::uint64_t weights = ptx::wgmma_descriptor_sw128_mn(s.ds[stage] + rows, 2 * kBlock),
                      keys = ptx::wgmma_descriptor_sw128_mn(s.k + columns, 2 * kBlock);
#pragma unroll
  for (int i = 0; i < B::kKeys / 16; ++i) wgmma<1, 1>(dq, weights + i * 128, keys + i * 128, i > 0);
}

/// The thread's row of 64, of each eight columns the first that it has.
struct LaneAt {
  int row, column;
};
__device__ __forceinline__ LaneAt lane_at() {
  const int thread = static_cast<int>(threadIdx.x % 128);
  return {thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2};
}

/// to = factor sums: the thread's elements of two rows, 8 apart, from the first that it has.
template <class B, int kCount>
__device__ __forceinline__ void store_sums(typename B::SumRow* rows, int row, int column,
                                           const float (&sums)[kCount], float factor) {
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Vector<float, 2> pair{{factor * sums[n * 4 + h * 2], factor * sums[n * 4 + h * 2 + 1]}};
      store(&rows[row + h * 8][column + n * 8], pair);
    }
}

/// dk += scale dK, dv += dV. The operands are not read any more.
template <class B>
__device__ __forceinline__ void add_key_gradients(typename B::Smem& s,
                                                  const AttentionGpuBackward& args, int consumer,
                                                  const typename B::Sums& dk,
                                                  const typename B::Sums& dv) {
  const LaneAt lane = lane_at();
  auto* rows = reinterpret_cast<typename B::SumRow*>(s.k);
  store_sums<B>(rows, consumer * 64 + lane.row, lane.column, dk, args.scale);
  store_sums<B>(rows + B::kKeys, consumer * 64 + lane.row, lane.column, dv, 1);
  ptx::fence_proxy_async_shared();
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  const int first = consumer * 64 + lane.row, count = min(16, s.keys.count - first);
  add_rows<B>(s.keys.dk + first * args.dk.stride, args.dk.stride, rows + first, count,
              args.shape.head_dim);
  add_rows<B>(s.keys.dv + first * args.dv.stride, args.dv.stride, rows + B::kKeys + first, count,
              args.shape.head_dim);
  ptx::bulk_wait<0>();
}

template <class B>
__device__ __forceinline__ void consume(typename B::Smem& s, const AttentionGpuBackward& args,
                                        int consumer) {
  const LaneAt lane = lane_at();
  const int row = consumer * 64 + lane.row;
  KeyRows keys;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int of = row + h * 8;
    keys.position[h] = of < s.keys.count ? s.keys.position + of : 0x7fffffff;
  }
  const float scale_log2 = args.scale * kLog2E;
  typename B::Sums dk, dv;
  bool first = true;
  for (Ring<B::kStages> ring;; ring.advance(), first = false) {
    const int stage = ring.stage;
    ptx::mbarrier_wait(&s.full[stage], ring.parity);
    const QueryTile tile = s.tile[stage];
    if (tile.count == 0) break;
    if (first) ptx::mbarrier_wait(&s.keys_full, 0);

    typename B::Scores p, dp;
    ptx::wgmma_fence();
    issue_rows_product<B::kD, B::kKeys, B::kQueries>(p, s.k, consumer * 64, s.q[stage]);
    ptx::wgmma_commit();
    issue_rows_product<B::kD, B::kKeys, B::kQueries>(dp, s.v, consumer * 64, s.d_o[stage]);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>(p);
    exponentiate<B>(p, &s.lse_log2[stage][lane.column], scale_log2);
    // ptxas moves a wait up to the last branch before it. With this one between, more than half of
    // the exponentials stand in front of the wait for dP.
    const bool masked = (tile.masked >> consumer & 1) != 0;
    typename B::Visible visible;
    if (masked) {
      find_visible<B>(visible, s.first_key[stage], keys, lane.column, tile.position + lane.column);
    }
    ptx::wgmma_wait<0>(dp);
    typename B::Weights p_weights, ds_weights;
    weigh<B>(p_weights, ds_weights, p, dp, &s.delta[stage][lane.column]);
    if (masked) hide<B>(p_weights, ds_weights, visible);

    // Nobody reads this buffer any more: both have finished dQ of one tile before they met for the
    // next, and this one is of the tile before that.
    store_weights<B>(s.ds[stage], ds_weights, row - lane.row % 8);
    ptx::fence_proxy_async_shared();
    ptx::wgmma_fence();
    issue_weighted_rows<B::kQueries>(dv, p_weights, s.d_o[stage], !first);
    ptx::wgmma_commit();
    ptx::barrier_sync(kWeightsStored, kConsumerThreads);
    float dq[32];
    ptx::wgmma_fence();
    issue_query_gradients<B>(dq, s, stage, consumer);
    ptx::wgmma_commit();
    issue_weighted_rows<B::kQueries>(dk, ds_weights, s.q[stage], !first);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>(dq);
    if (!first) ptx::barrier_sync(kDqEmpty, kDqThreads);
    store_sums<B>(s.dq, lane.row + (B::kQueries > 64 ? consumer * 64 : 0),
                  lane.column + (B::kQueries > 64 ? 0 : consumer * 64), dq, args.scale);
    ptx::fence_proxy_async_shared();
    ptx::barrier_arrive(kDqFull, kDqThreads);
    ptx::wgmma_wait<0>(dk);
    release(&s.empty[stage]);
  }
  if (first) return;       // no query sees these keys
  ptx::wgmma_wait<0>(dv);  // has been: no use of it moves above
  ptx::barrier_sync(kWeightsStored, kConsumerThreads);
  add_key_gradients<B>(s, args, consumer, dk, dv);
}

template <int kD>
__global__ void __launch_bounds__(HopperBackward<kD>::kThreads, 1)
    backward_sm90_kernel(const __grid_constant__ HopperBackwardMaps maps,
                         const __grid_constant__ AttentionGpuBackward args,
                         const __grid_constant__ BlockOrder order, int query_tiles) {
  using B = HopperBackward<kD>;
  auto& s = smem<typename B::Smem>();
  unsigned block = blockIdx.x;
  if (args.turns != nullptr) {
    if (threadIdx.x == 0) s.block = atomicAdd(args.turns, 1);
    __syncthreads();
    block = static_cast<unsigned>(s.block);
  }
  const BlockOrder::Place place = order.place(block);
  typename B::Work work(args, place.tile, place.group);
  if (threadIdx.x == 0) {
    for (int i = 0; i < B::kStages; ++i) {
      ptx::mbarrier_init(&s.full[i], 2);                   // of its bytes, of what a warp stored
      ptx::mbarrier_init(&s.empty[i], B::kConsumers * 4);  // one arrival a warp
    }
    ptx::mbarrier_init(&s.keys_full, 1);
    ptx::fence_mbarrier_init();
    const std::int64_t row = work.kv_row + work.own.index, column = work.head * args.shape.head_dim;
    s.keys = {place.tile, work.own.position, work.own.count,
              args.dk.data + row * args.dk.stride + column,
              args.dv.data + row * args.dv.stride + column};
  }
  __syncthreads();
  const int group = warpgroup(), warp = static_cast<int>(threadIdx.x) / 32;
  if (group == 0) {
    ptx::decrease_registers<40>();
    if (warp == 0) bring_steps<B>(s, maps, args, work);
    if (warp == 1) add_query_gradients<B>(s, args, work, {args, s.keys.number, query_tiles});
    return;
  }
  ptx::increase_registers<232>();
  consume<B>(s, args, group - 1);
}

// ---- launching ----

template <int kD>
void backward_sm90(const AttentionGpuBackward& args) {
  using B = HopperBackward<kD>;
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
  find_tile_first_keys(args, B::kQueries);
  const auto query_map = [&](const AttentionHeads<const void>& x) {
    return heads_map(
        {x.data, x.stride, shape.sequences, shape.q_tokens, shape.heads, shape.head_dim},
        B::kQueries);
  };
  const auto key_map = [&](const AttentionHeads<const void>& x) {
    return heads_map(
        {x.data, x.stride, shape.sequences, shape.kv_tokens, shape.kv_heads, shape.head_dim},
        B::kKeys);
  };
  const BlockOrder order = block_order(
      tiles, shape.sequences * shape.kv_heads, 1,
      shape.heads / shape.kv_heads * shape.q_tokens * shape.head_dim * 4, args.turns != nullptr);
  launch(
      backward_sm90_kernel<kD>,
      {.grid = order.blocks(),
       .block = B::kThreads,
       .smem_bytes = sizeof(typename B::Smem),
       .stream = stream_of(args.exec),
       .name = "attention_backward"},
      HopperBackwardMaps{query_map(args.q), query_map(args.d_o), key_map(args.k), key_map(args.v)},
      args, order, query_tiles);
}

}  // namespace trireme::cuda::attention
