#pragma once
// Attention backward for Hopper, heads of 129 to 256: as attention_backward_sm90.cuh, but dK and dV
// of 64 keys fill the registers of two warpgroups, so that a block has 64 keys, and each of the two
// one of the gradients whole:
//   the first   S^T = K Q^T, P^T, dV += P^T dO
//   the second  dP^T = V dO^T, dS^T = P^T (dP^T - delta), dK += dS^T Q
// P^T goes from the first to the second in f32, dS^T from the second to both, which share dQ = dS K
// by columns. While one works on weights the other multiplies: the first begins a tile's scores
// before it has handed on the last part of dQ. That leaves in parts of 64 columns.
//
// At 256 a step of 64 queries is 2,560 cycles of the tensor cores. Its products read 248 KiB of
// shared memory (all but dV's have both operands there: P^T is in registers, dS^T would be 16 too
// many), tiles, weights and dQ move 232 KiB: 3,840 cycles at 128 bytes each, which is what bounds
// it. A thread has 128 registers of dK or dV and 64 of dQ, or of scores and weights. dK and dV of
// both warpgroups, by columns, would cost 4,100 cycles, 64 queries and 80 keys transposed as many
// for as many pairs, with 32 registers more. Heads of up to 192 are a form of their own: 3,008
// cycles, and room for all parts of dQ and a second tile of dO.

#include "kernels/attention/attention_backward_parts_sm90.cuh"

namespace trireme::cuda::attention {

/// `kHeadSize` of q and k, `kValueSize` of v.
template <int kHeadSize, int kValueSize>
struct HopperWideBackward {
  static constexpr int kD = kHeadSize, kDv = kValueSize;
  static_assert(kD > 128 && kD <= 256 && kDv <= kD);
  static constexpr int kKeys = 64, kQueries = 64, kStages = 2;
  static constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers);
  /// The second's alone release a tile: the first is through with it before it gives P.
  static constexpr int kStageWarps = 4;
  /// Parts of dQ in the order in which consumers have them: by turns the first's and the second's.
  static constexpr int kParts = kD / kBlockColumns, kPartColumns = kBlockColumns, kPartWarps = 4;
  static constexpr int kPartsOfFirst = 2;
  static __device__ __forceinline__ int first_column(int part) {
    return (part % 2 * kPartsOfFirst + part / 2) * kBlockColumns;
  }
  /// Room of parts on their way out, and of dO: what the block has.
  static constexpr int kPartsOut = kD == 256 ? 2 : kParts, kOutputStages = kD == 256 ? 1 : 2;
  static_assert(kParts % kPartsOut == 0);
  using Work = BackwardSteps<kKeys, kQueries>;

  struct Smem {
    alignas(1024) bf16 k[kKeys * kD];
    alignas(1024) bf16 v[kKeys * kDv];
    alignas(1024) bf16 q[kStages][kQueries * kD];
    alignas(1024) bf16 d_o[kOutputStages][kQueries * kDv];
    alignas(1024) bf16 ds[kKeys * kQueries];  ///< a row for each key
    alignas(1024) float dq[kPartsOut][kQueries * kPartColumns];
    alignas(16) float p[kKeys * kQueries];  ///< of a thread four elements together
    alignas(16) float lse_log2[kStages][kQueries];
    alignas(16) float delta[kStages][kQueries];
    /// Of the block's keys the first that the query sees.
    alignas(16) std::int16_t first_key[kStages][kQueries];
    QueryTile tile[kStages];
    KeyTile keys;
    int block;  ///< where blocks take turns: of those that have begun, counted from 0
    std::uint64_t full[kStages], empty[kStages], keys_full, d_o_full[kOutputStages],
        d_o_empty[kOutputStages], dq_full[kStages][kParts], dq_empty[kStages][kParts];
    [[nodiscard]] __device__ __forceinline__ const float* sums(int, int part) const {
      return dq[part % kPartsOut];
    }
  };
  /// Where dO of a step stands.
  static __device__ __forceinline__ Ring<kOutputStages> outputs_of(const Ring<kStages>& ring) {
    if constexpr (kOutputStages == 1)
      return {0, static_cast<std::uint32_t>(ring.stage)};
    else
      return {ring.stage, ring.parity};
  }
  using Scores = float[kQueries / 2];
  using Weights = std::uint32_t[kQueries / 16][4];
  using Visible = std::uint32_t[kQueries / 64];
  /// Of dQ's columns those of a consumer.
  template <int kConsumer>
  using QuerySums = float[32 * (kConsumer == 0 ? kPartsOfFirst : kParts - kPartsOfFirst)];
  /// dK and dV leave from where the operands stood.
  static_assert(kKeys * (kD + kDv) * sizeof(float) <= offsetof(Smem, d_o));
  static_assert(sizeof(Smem) <= 232448, "what a block of Hopper may have");
};

/// Named barriers, behind those of each consumer by itself.
enum WideBackwardBarrier : int { kWeightsGiven = 3, kWeightsStored = 4, kOperandsRead = 5 };

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
    const HeadAt at{step.head, step.tile.index, sequence};
    std::uint64_t* full = &s.full[ring.stage];
    ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
    if (elected) {
      s.tile[ring.stage] = tile;
      ptx::mbarrier_arrive_expect_tx(full, tile.count > 0 ? sizeof s.q[0] : 0);
      if (tile.count > 0) bring_heads<B::kD, B::kQueries>(s.q[ring.stage], maps.q, at, full);
    }
    if (tile.count == 0) return;
    const auto outputs = B::outputs_of(ring);
    full = &s.d_o_full[outputs.stage];
    ptx::mbarrier_wait(&s.d_o_empty[outputs.stage], outputs.parity ^ 1);
    if (elected) {
      ptx::mbarrier_arrive_expect_tx(full, sizeof s.d_o[0]);
      bring_heads<B::kDv, B::kQueries>(s.d_o[outputs.stage], maps.d_o, at, full);
    }
  }
}

// ---- what both consumers do ----

/// Issues dQ of a consumer's columns, without the scale.
template <class B, int kConsumer>
__device__ __forceinline__ void issue_query_gradients(typename B::template QuerySums<kConsumer>& dq,
                                                      const typename B::Smem& s) {
  constexpr int kBlock = kBlockElements<B::kKeys>;
  const std::uint64_t weights = ptx::wgmma_descriptor_sw128_mn(s.ds, 2 * kBlock),
                      keys = ptx::wgmma_descriptor_sw128_mn(
                          s.k + kConsumer * B::kPartsOfFirst * kBlock, 2 * kBlock);
#pragma unroll
  for (int i = 0; i < B::kKeys / 16; ++i) wgmma<1, 1>(dq, weights + i * 128, keys + i * 128, i > 0);
}

/// Where the step before stood.
template <class B>
__device__ __forceinline__ Ring<B::kStages> step_before(const Ring<B::kStages>& ring) {
  static_assert(B::kStages == 2);
  const int stage = ring.stage ^ 1;
  return {stage, ring.parity ^ static_cast<std::uint32_t>(stage)};
}

/// A part of dQ, a consumer's first or second 32 sums, goes to where the one that stood there has
/// left.
template <class B, int kPart, int kCount>
__device__ __forceinline__ void give_part(typename B::Smem& s, const float (&dq)[kCount],
                                          const Ring<B::kStages>& ring, float scale) {
  constexpr int kOut = B::kPartsOut;
  if constexpr (kPart < kOut) {
    const Ring<B::kStages> before = step_before<B>(ring);
    ptx::mbarrier_wait(&s.dq_empty[before.stage][B::kParts - kOut + kPart], before.parity);
  } else {
    ptx::mbarrier_wait(&s.dq_empty[ring.stage][kPart - kOut], ring.parity);
  }
  float sums[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) sums[i] = dq[kPart / 2 * 32 + i];
  store_sums<B::kQueries>(s.dq[kPart % kOut], lane_at().row, sums, scale);
  ptx::fence_proxy_async_shared();
  release(&s.dq_full[ring.stage][kPart]);
}

/// Likewise of a block whose keys are its alone; `tile`: room.
template <class B, int kColumns>
__device__ __forceinline__ void write_key_gradients(bf16* tile, const TensorMap& map,
                                                    const KeyTile& keys, int consumer,
                                                    const float (&gradient)[kColumns / 2],
                                                    float factor) {
  store_rounded<B::kKeys>(tile, lane_at().row, gradient, factor);
  ptx::fence_proxy_async_shared();
  sync_warpgroup(consumer);
  if (threadIdx.x % kWarpgroup == 0) store_heads<kColumns, B::kKeys>(map, tile, keys.at);
}

/// A consumer's gradient, the first's of values, times `factor`, is added to `to`; `sums`: room for
/// it, where no operand is read any more.
template <class B, int kCount>
__device__ __forceinline__ void add_key_gradients(float* sums, const TensorMap& map,
                                                  const AttentionHeads<float>& to,
                                                  const AttentionGpuBackward& args,
                                                  const KeyTile& keys, int consumer,
                                                  const float (&gradient)[kCount], float factor) {
  store_sums<B::kKeys>(sums, lane_at().row, gradient, factor);
  ptx::fence_proxy_async_shared();
  sync_warpgroup(consumer);
  const std::int64_t dim = consumer == 0 ? args.shape.value_dim : args.shape.head_dim;
  const SumsTo at = sums_to(map, to, keys.at, args.shape.kv_tokens, dim, keys.count, B::kKeys);
#pragma unroll 1
  for (int block = static_cast<int>(threadIdx.x) / 32 % 4; block < kCount * 2 / kSumColumns;
       block += 4)
    add_sums(at, sums + block * kSumBlock<B::kKeys>, block * kSumColumns, dim);
  if (threadIdx.x % 32 != 0) return;
  ptx::bulk_commit();
  ptx::bulk_wait_read<0>();
}

// ---- the first: P and dV ----

/// Weights of pairs that are not visible become 0, whatever they were.
template <class B>
__device__ __forceinline__ void hide(typename B::Scores& p, const typename B::Visible& visible) {
#pragma unroll
  for (int i = 0; i < B::kQueries / 2; ++i)
    if ((visible[i / 32] >> (i % 32) & 1) == 0) p[i] = 0;
}

/// P^T for the second, whose threads have the same pairs of dP^T.
template <class B>
__device__ __forceinline__ void give_weights(float* to, const typename B::Scores& p) {
  to += threadIdx.x % 128 * 4;
#pragma unroll
  for (int n = 0; n < B::kQueries / 8; ++n)
    store(to + n * 512, Vector<float, 4>{{p[n * 4], p[n * 4 + 1], p[n * 4 + 2], p[n * 4 + 3]}});
}

template <class B>
__device__ __forceinline__ void pack_weights(typename B::Weights& weights,
                                             const typename B::Scores& scores) {
#pragma unroll
  for (int n = 0; n < B::kQueries / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      weights[n / 2][n % 2 * 2 + h] = pack(scores[n * 4 + h * 2], scores[n * 4 + h * 2 + 1]);
}

template <class B>
__device__ __forceinline__ void consume_scores(typename B::Smem& s, const HopperBackwardMaps& maps,
                                               const AttentionGpuBackward& args) {
  float dv[B::kDv / 2];
  typename B::template QuerySums<0> dq;  // its second part leaves under the next step's scores
  bool first = true;
  Ring<B::kStages> ring;
  for (;; ring.advance(), first = false) {
    const int stage = ring.stage;
    ptx::mbarrier_wait(&s.full[stage], ring.parity);
    const QueryTile tile = s.tile[stage];
    if (tile.count == 0) break;
    if (first) ptx::mbarrier_wait(&s.keys_full, 0);

    typename B::Scores p;
    ptx::wgmma_fence();
    // Row 0, asked anew, so that descriptors of all keys are not kept beside the sums.
    issue_rows_product<B::kD, B::kKeys, B::kQueries>(p, s.k, warpgroup() - 1, s.q[stage]);
    ptx::wgmma_commit();
    if (!first) give_part<B, 2>(s, dq, step_before<B>(ring), args.scale);
    ptx::wgmma_wait<0>(p);
    const LaneAt lane = lane_at();
    exponentiate<B>(p, &s.lse_log2[stage][lane.column], args.scale * kLog2E);
    if (tile.masked != 0) {
      typename B::Visible visible;
      find_visible<B>(visible, s.first_key[stage], key_rows(lane.row, s.keys.count), lane.column,
                      tile.position + lane.column);
      hide<B>(p, visible);
    }
    // The second has read the last: it has stored dS of them.
    give_weights<B>(s.p, p);
    ptx::barrier_arrive(kWeightsGiven, kConsumerThreads);

    typename B::Weights weights;
    pack_weights<B>(weights, p);
    const auto outputs = B::outputs_of(ring);
    ptx::mbarrier_wait(&s.d_o_full[outputs.stage], outputs.parity);
    ptx::wgmma_fence();
    issue_weighted_rows<B::kQueries>(dv, weights, s.d_o[outputs.stage], !first);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(dv);
    release(&s.d_o_empty[outputs.stage]);

    ptx::barrier_sync(kWeightsStored, kConsumerThreads);
    ptx::wgmma_fence();
    issue_query_gradients<B, 0>(dq, s);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(dq);
    give_part<B, 0>(s, dq, ring, args.scale);
  }
  const bool written = args.to_dv.data != nullptr;
  if (!first)
    give_part<B, 2>(s, dq, step_before<B>(ring), args.scale);
  else if (written)
    clear_sums(dv);
  else
    return;  // no query sees these keys
  ptx::barrier_sync(kOperandsRead, kConsumerThreads);
  if (written) return write_key_gradients<B, B::kDv>(s.v, maps.dv, s.keys, 0, dv, 1);
  add_key_gradients<B>(reinterpret_cast<float*>(s.k) + B::kKeys * B::kD, maps.dv, args.dv, args,
                       s.keys, 0, dv, 1);
}

// ---- the second: dS and dK ----

/// dP^T as bf16 weights dS^T, without the scale. A weight of 0 hides its pair, whatever came of it.
template <class B>
__device__ __forceinline__ void weigh(typename B::Weights& weights, typename B::Scores& dp,
                                      const float* p, const float* deltas) {
  p += threadIdx.x % 128 * 4;
#pragma unroll
  for (int n = 0; n < B::kQueries / 8; ++n) {
    const Vector<float, 4> weight = load<4>(p + n * 512);
    const Vector<float, 2> delta = load<2>(deltas + n * 8);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& of = dp[n * 4 + e];
      of = weight.at[e] == 0 ? 0 : weight.at[e] * (of - delta.at[e % 2]);
    }
  }
  pack_weights<B>(weights, dp);
}

/// Issues dK, without the scale.
template <class B>
__device__ __forceinline__ void issue_key_gradients(float (&dk)[B::kD / 2], const bf16* ds,
                                                    const bf16* q, bool accumulate) {
  const std::uint64_t weights = ptx::wgmma_descriptor_sw128(ds),
                      queries = ptx::wgmma_descriptor_sw128_mn(q, 2 * kBlockElements<B::kQueries>);
#pragma unroll
  for (int i = 0; i < B::kQueries / 16; ++i)
    wgmma<0, 1>(dk, weights + i * 2, queries + i * 128, accumulate || i > 0);
}

template <class B>
__device__ __forceinline__ void consume_outputs(typename B::Smem& s, const HopperBackwardMaps& maps,
                                                const AttentionGpuBackward& args) {
  const LaneAt lane = lane_at();
  float dk[B::kD / 2];
  bool first = true;
  for (Ring<B::kStages> ring;; ring.advance(), first = false) {
    const int stage = ring.stage;
    const auto outputs = B::outputs_of(ring);
    ptx::mbarrier_wait(&s.full[stage], ring.parity);
    if (s.tile[stage].count == 0) break;
    if (first) ptx::mbarrier_wait(&s.keys_full, 0);

    typename B::Scores dp;
    ptx::mbarrier_wait(&s.d_o_full[outputs.stage], outputs.parity);
    ptx::wgmma_fence();
    issue_rows_product<B::kDv, B::kKeys, B::kQueries>(dp, s.v, 0, s.d_o[outputs.stage]);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(dp);
    release(&s.d_o_empty[outputs.stage]);
    ptx::barrier_sync(kWeightsGiven, kConsumerThreads);
    typename B::Weights weights;
    weigh<B>(weights, dp, s.p, &s.delta[stage][lane.column]);
    // Nobody reads the last: the first has given its weights after its part of dQ.
    store_weights<B>(s.ds, weights, lane.row - lane.row % 8);
    ptx::fence_proxy_async_shared();
    ptx::barrier_arrive(kWeightsStored, kConsumerThreads);
    sync_warpgroup(1);

    typename B::template QuerySums<1> dq;
    ptx::wgmma_fence();
    issue_query_gradients<B, 1>(dq, s);
    ptx::wgmma_commit();
    issue_key_gradients<B>(dk, s.ds, s.q[stage], !first);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>(dq);
    give_part<B, 1>(s, dq, ring, args.scale);
    if constexpr (B::kParts > 3) give_part<B, 3>(s, dq, ring, args.scale);
    ptx::wgmma_wait<0>(dk);
    release(&s.empty[stage]);
  }
  const bool written = args.to_dk.data != nullptr;
  if (first && !written) return;
  if (first) clear_sums(dk);
  ptx::barrier_sync(kOperandsRead, kConsumerThreads);
  if (written) return write_key_gradients<B, B::kD>(s.k, maps.dk, s.keys, 1, dk, args.scale);
  add_key_gradients<B>(reinterpret_cast<float*>(s.k), maps.dk, args.dk, args, s.keys, 1, dk,
                       args.scale);
}

template <int kD, int kDv>
__global__ void __launch_bounds__(HopperWideBackward<kD, kDv>::kThreads, 1)
    wide_backward_sm90_kernel(const __grid_constant__ HopperBackwardMaps maps,
                              const __grid_constant__ AttentionGpuBackward args,
                              const __grid_constant__ BlockOrder order, int query_tiles) {
  using B = HopperWideBackward<kD, kDv>;
  run_block<B>(
      maps, args, order, query_tiles, [&](auto& s, auto& work) { bring_steps<B>(s, maps, work); },
      [&](auto& s, int consumer) {
        consumer == 0 ? consume_scores<B>(s, maps, args) : consume_outputs<B>(s, maps, args);
      });
}

template <int kD, int kDv>
void wide_backward_sm90(const AttentionGpuBackward& args) {
  launch_backward<HopperWideBackward<kD, kDv>>(wide_backward_sm90_kernel<kD, kDv>, args);
}

}  // namespace trireme::cuda::attention
