#pragma once
// Attention backward for Hopper, heads of up to 128: five products by wgmma, operands by TMA (the
// division of labour is that of Shah et al. 2024, FlashAttention-3).
//
// A block owns 128 keys of a key head with their gradients and streams the queries of all its query
// heads past them, so that dk and dv are added to once. Two warpgroups of 64 keys each make
//   S^T = K Q^T, dP^T = V dO^T, then dV += P^T dO, dK += dS^T Q
// whose left operands P^T and dS^T are the accumulators of the former, in registers. dS^T goes
// through shared memory to both, which share dQ = dS K: half of its columns each, or half of its
// rows. Of a third warpgroup a warp brings the queries' tiles, one what else is known of queries,
// and two add dQ to global memory by reductions of TMA, a tile in turn each, so that one of them
// may still wait for its tile's turn or end. So come dK and dV to what stands there.
//
// Rows that a tile has beyond its range are zeros or other tokens: their weights are set to zero.

#include "kernels/attention/attention_backward_parts_sm90.cuh"

namespace trireme::cuda::attention {

template <int kHeadSize>
struct HopperBackward {
  static constexpr int kD = kHeadSize, kDv = kD;
  static constexpr int kKeys = 128, kQueries = kD == 64 ? 128 : 64, kStages = 2;
  static constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers);
  static constexpr int kStageWarps = kConsumers * 4;  ///< that release a tile
  /// dQ leaves whole, stored by all consumers.
  static constexpr int kParts = 1, kPartColumns = kD, kPartWarps = kConsumers * 4;
  static __device__ __forceinline__ int first_column(int) { return 0; }
  using Work = BackwardSteps<kKeys, kQueries>;

  struct Smem {
    alignas(1024) bf16 k[kKeys * kD];
    alignas(1024) bf16 v[kKeys * kD];
    alignas(1024) bf16 q[kStages][kQueries * kD];
    alignas(1024) bf16 d_o[kStages][kQueries * kD];
    /// A row for each key, in blocks of 64 queries; for one tile while the last is still read.
    alignas(1024) bf16 ds[kStages][kKeys * kQueries];
    /// Sums on their way out: one tile is made while the last is still read.
    alignas(1024) float dq[kStages][kQueries * kD];
    alignas(16) float lse_log2[kStages][kQueries];
    alignas(16) float delta[kStages][kQueries];
    /// Of the block's keys the first that the query sees.
    alignas(16) std::int16_t first_key[kStages][kQueries];
    QueryTile tile[kStages];
    KeyTile keys;
    int block;  ///< where blocks take turns: of those that have begun, counted from 0
    std::uint64_t full[kStages], empty[kStages], keys_full, dq_full[kStages][kParts],
        dq_empty[kStages][kParts];
    [[nodiscard]] __device__ __forceinline__ const float* sums(int stage, int) const {
      return dq[stage];
    }
  };
  using Scores = float[kQueries / 2];
  using Weights = std::uint32_t[kQueries / 16][4];
  using Visible = std::uint32_t[kQueries / 64];
  using Sums = float[kD / 2];
  static constexpr int kStepBytes = sizeof(Smem::q[0]) + sizeof(Smem::d_o[0]);
  /// dK and dV leave from where the operands stood.
  static constexpr int kKeySums = kKeys * kD;
  static_assert(2 * kKeySums * sizeof(float) <= offsetof(Smem, dq));
  static_assert(sizeof(Smem) <= 232448, "what a block of Hopper may have");
};

/// A named barrier, of the consumers.
enum HopperBackwardBarrier : int { kWeightsStored = 1 };

// ---- the warp that loads tiles ----

template <class B>
__device__ __forceinline__ void bring_steps(typename B::Smem& s, const HopperBackwardMaps& maps,
                                            typename B::Work& work) {
  const bool elected = threadIdx.x % 32 == 0;
  const int sequence = static_cast<int>(work.sequence());
  bool first = true;
  for (Ring<B::kStages> ring;; ring.advance(), first = false) {
    const BackwardStep step = work.next();
    if (first && elected && step.tile.count > 0) bring_keys<B>(s, maps, work);
    const QueryTile tile = query_tile<B>(work, step);
    std::uint64_t* full = &s.full[ring.stage];
    ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
    if (elected) {
      const HeadAt at{step.head, step.tile.index, sequence};
      s.tile[ring.stage] = tile;
      ptx::mbarrier_arrive_expect_tx(full, tile.count > 0 ? B::kStepBytes : 0);
      if (tile.count > 0) {
        bring_heads<B::kD, B::kQueries>(s.q[ring.stage], maps.q, at, full);
        bring_heads<B::kD, B::kQueries>(s.d_o[ring.stage], maps.d_o, at, full);
      }
    }
    if (tile.count == 0) return;
  }
}

// ---- the consumers ----

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

/// A block's keys are its alone, and end where a box does or their sequence: dk and dv are stored.
template <class B>
__device__ __forceinline__ void write_key_gradients(typename B::Smem& s,
                                                    const HopperBackwardMaps& maps, float scale,
                                                    int row, const typename B::Sums& dk,
                                                    const typename B::Sums& dv) {
  store_rounded<B::kKeys>(s.k, row, dk, scale);
  store_rounded<B::kKeys>(s.v, row, dv, 1);
  ptx::fence_proxy_async_shared();
  ptx::barrier_sync(kWeightsStored, kConsumerThreads);
  if (threadIdx.x % kWarpgroup != 0) return;
  const bool is_dk = threadIdx.x == kWarpgroup;
  store_heads<B::kD, B::kKeys>(is_dk ? maps.dk : maps.dv, is_dk ? s.k : s.v, s.keys.at);
}

/// dk += scale dK, dv += dV. The operands are not read any more.
template <class B>
__device__ __forceinline__ void add_key_gradients(typename B::Smem& s,
                                                  const HopperBackwardMaps& maps,
                                                  const AttentionGpuBackward& args, int row,
                                                  const typename B::Sums& dk,
                                                  const typename B::Sums& dv) {
  auto* const sums = reinterpret_cast<float*>(s.k);
  store_sums<B::kKeys>(sums, row, dk, args.scale);
  store_sums<B::kKeys>(sums + B::kKeySums, row, dv, 1);
  ptx::fence_proxy_async_shared();
  ptx::barrier_sync(kWeightsStored, kConsumerThreads);
  // A warp for each block.
  constexpr int kBlocks = B::kD / kSumColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, block = warp % kBlocks;
  if (warp >= 2 * kBlocks) return;
  const bool is_dk = warp < kBlocks;
  const std::int64_t dim = is_dk ? args.shape.head_dim : args.shape.value_dim;
  add_sums(sums_to(is_dk ? maps.dk : maps.dv, is_dk ? args.dk : args.dv, s.keys.at,
                   args.shape.kv_tokens, dim, s.keys.count, B::kKeys),
           sums + warp * kSumBlock<B::kKeys>, block * kSumColumns, dim);
  if (threadIdx.x % 32 != 0) return;
  ptx::bulk_commit();
  ptx::bulk_wait_read<0>();
}

template <class B>
__device__ __forceinline__ void consume(typename B::Smem& s, const HopperBackwardMaps& maps,
                                        const AttentionGpuBackward& args, int consumer) {
  const LaneAt lane = lane_at();
  const int row = consumer * 64 + lane.row;
  const KeyRows keys = key_rows(row, s.keys.count);
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
    ptx::mbarrier_wait(&s.dq_empty[stage][0], ring.parity ^ 1);
    constexpr int kPart = B::kQueries > 64 ? 64 * kSumColumns : 2 * kSumBlock<B::kQueries>;
    store_sums<B::kQueries>(s.dq[stage] + consumer * kPart, lane.row, dq, args.scale);
    ptx::fence_proxy_async_shared();
    release(&s.dq_full[stage][0]);
    ptx::wgmma_wait<0>(dk);
    release(&s.empty[stage]);
  }
  const bool written = args.to_dk.data != nullptr;
  if (first && !written) return;  // no query sees these keys
  if (first) {
    clear_sums(dk);
    clear_sums(dv);
  }
  ptx::wgmma_wait<0>(dv);  // has been: no use of it moves above
  ptx::barrier_sync(kWeightsStored, kConsumerThreads);
  if (written) return write_key_gradients<B>(s, maps, args.scale, row, dk, dv);
  add_key_gradients<B>(s, maps, args, row, dk, dv);
}

template <int kD>
__global__ void __launch_bounds__(HopperBackward<kD>::kThreads, 1)
    backward_sm90_kernel(const __grid_constant__ HopperBackwardMaps maps,
                         const __grid_constant__ AttentionGpuBackward args,
                         const __grid_constant__ BlockOrder order, int query_tiles) {
  using B = HopperBackward<kD>;
  run_block<B>(
      maps, args, order, query_tiles, [&](auto& s, auto& work) { bring_steps<B>(s, maps, work); },
      [&](auto& s, int consumer) { consume<B>(s, maps, args, consumer); });
}

template <int kD>
void backward_sm90(const AttentionGpuBackward& args) {
  launch_backward<HopperBackward<kD>>(backward_sm90_kernel<kD>, args);
}

}  // namespace trireme::cuda::attention
