#pragma once
// How a tile of queries is cut and what its warpgroups do with the keys that come (for
// attention_forward_sm90.cuh): scores, masks, softmax, sums.

#include "kernels/attention/attention_mma.cuh"
#include "kernels/attention/attention_sm90.cuh"

namespace trireme::cuda::attention {

/// How many query heads of a key head a tile has, as a power of 2: row r of it is head r mod heads
/// of token r / heads.
struct HeadsOfTile {
  int log2;
  [[nodiscard]] __host__ __device__ int token(int row) const { return row >> log2; }
  [[nodiscard]] __host__ __device__ int head(int row) const { return row & ((1 << log2) - 1); }
  [[nodiscard]] __host__ __device__ int rows(int tokens) const { return tokens << log2; }
};

/// How heads of kHeadSize, with values of kValueSize, are cut. Scores, sums and weights of a thread
/// fill its registers: kKeys / 2 + kV / 2 + kKeys / 4 of them.
template <int kHeadSize, int kValueSize>
struct HopperForward {
  static constexpr int kD = kHeadSize, kV = kValueSize;
  static constexpr int kConsumers = kD == 64 ? 3 : 2, kThreads = kWarpgroup * (1 + kConsumers);
  /// At 192 and 128 with 96 keys, so that shared memory has room for O.
  static constexpr int kQueries = 64 * kConsumers, kKeys = kD == 256 ? 80 : (kD == 192 ? 96 : 128),
                       kStages = 2;
  // Together no more than the block starts with: 128 and 168 a thread.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40,
                       kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  /// Softmaxes in turn; at 256 the products alone fill the time.
  static constexpr bool kInTurn = kD < 256;
  /// O leaves through a tile of its own, or where there is no room through that of the queries.
  static constexpr bool kOutInQueries = kD == 256;

  using Scores = float[kKeys / 2];
  using Weights = std::uint32_t[kKeys / 16][4];
  using Out = float[kV / 2];

  /// A tile of queries and where it stands, from its first head; whether it sees a key, and whether
  /// another follows.
  struct alignas(16) Work {
    Tile queries;
    HeadsOfTile heads;
    int head, sequence;
    bool sees, last;
  };
  /// Keys at [position, end); hides: not every query sees each of them.
  struct alignas(16) KeyTile {
    int position, end;
    bool hides, last;
  };

  struct Smem {
    alignas(1024) bf16 q[kQueries * kD];
    alignas(1024) bf16 k[kStages][kKeys * kD];
    alignas(1024) bf16 v[kStages][kKeys * kV];
    alignas(1024) bf16 o[kOutInQueries ? 1 : kQueries * kV];
    std::uint64_t q_full, q_empty, k_full[kStages], k_empty[kStages], v_full[kStages],
        v_empty[kStages];
    KeyTile keys[kStages];
    Work work[2];                      ///< by turns: the last one is read until O has left
    alignas(16) QueryBounds bounds;    ///< the producer's, which has few registers
    std::int32_t first_key[kQueries];  ///< each warp's rows by itself; where there are documents
    [[nodiscard]] __device__ __forceinline__ bf16* out() { return kOutInQueries ? q : o; }
  };
};

/// Of a thread's two rows of its warpgroup's 64, [upper, lower]: element e of 64 rows stands in row
/// 16 warp + lane / 4 + 8 (e / 2 % 2), column 8 (e / 4) + 2 (lane % 4) + e % 2.
struct ForwardRows {
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  ///< sum: of this lane's columns alone
};

/// Keeps the first keys of a warp's rows.
template <class F>
__device__ __forceinline__ void keep_first_keys(typename F::Smem& s,
                                                const AttentionGpuForward& args,
                                                const typename F::Work& work, int row) {
  if (args.first_key == nullptr) return;
  __syncwarp();
  if (threadIdx.x % 4 == 0) {
    const std::int32_t* const first_key =
        args.first_key + work.sequence * args.shape.q_tokens + work.queries.index;
#pragma unroll
    for (int r = row; r <= row + 8; r += 8) {
      const int token = work.heads.token(r);
      s.first_key[r] = token < work.queries.count ? first_key[token] : 0;
    }
  }
  __syncwarp();
}

/// Scores of pairs that are not visible become -inf. row: the upper one in the tile.
template <class F>
__device__ __forceinline__ void hide(typename F::Scores& scores, const typename F::Smem& s,
                                     const AttentionGpuForward& args, const typename F::Work& work,
                                     int row, const typename F::KeyTile& keys) {
  const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int tile_row = row + 8 * h, position = work.queries.position + work.heads.token(tile_row);
    const int first = args.first_key == nullptr ? 0 : s.first_key[tile_row];
    const int from = first_visible(first, position, args.reach) - keys.position - column,
              to = min(keys.end, position + 1) - keys.position - column;
#pragma unroll
    for (int n = 0; n < F::kKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = n * 8 + e;
        if (at < from || at >= to) scores[n * 4 + 2 * h + e] = -INFINITY;
      }
  }
}

/// Scores become weights relative to the running maximum, which may grow: what was summed so far
/// counts `rescale` times.
template <int kCount>
__device__ __forceinline__ void soften(float (&scores)[kCount], ForwardRows& rows,
                                       float (&rescale)[2], float scale_log2) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = rows.max[h];
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n)
      largest = fmaxf(largest, fmaxf(scores[n * 4 + 2 * h], scores[n * 4 + 2 * h + 1]));
    largest = quad_max(largest);
    // A row that has seen nothing yet: exp2(-inf - 0) is 0, where -inf - -inf were NaN.
    const float shift = largest == -INFINITY ? 0 : __fmul_rn(largest, scale_log2);
    // Exactly 1 where the maximum stays, so that a tile unseen by a row leaves its bits alone.
    rescale[h] = ptx::exp2_approx(__fmul_rn(rows.max[h], scale_log2) - shift);
    rows.max[h] = largest;
    float sum = rows.sum[h] * rescale[h];
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[n * 4 + 2 * h + e];
        x = ptx::exp2_approx(fmaf(x, scale_log2, -shift));
        sum += x;
      }
    rows.sum[h] = sum;
  }
}

/// Accumulators as the operand of a product: 16 columns of them are one of its steps.
template <int kSteps>
__device__ __forceinline__ void pack_weights(std::uint32_t (&weights)[kSteps][4],
                                             const float (&scores)[kSteps * 8]) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      weights[i][e] = pack(scores[i * 8 + 2 * e], scores[i * 8 + 2 * e + 1]);
}

template <int kCount>
__device__ __forceinline__ void rescale_rows(float (&out)[kCount], const float (&rescale)[2]) {
  // Seldom after the first tiles.
  if (__any_sync(kAllLanes, rescale[0] != 1 || rescale[1] != 1) == 0) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] *= rescale[i / 2 % 2];
}

/// Where a warpgroup is in the rings.
template <class F>
struct ForwardRings {
  Ring<F::kStages> k, v;
};

/// A warpgroup's way through the keys that a tile of queries sees. Between steps the weights of one
/// tile wait for their values, and the next tile, if there is one, has come.
template <class F>
class KeySweep {
 public:
  __device__ __forceinline__ KeySweep(typename F::Smem& s, const AttentionGpuForward& args,
                                      const typename F::Work& work, ForwardRings<F>& rings,
                                      ForwardRows& rows, int consumer, int row)
      : s_(s),
        args_(args),
        work_(work),
        rings_(rings),
        rows_(rows),
        consumer_(consumer),
        row_(row) {}

  /// What all tiles give to the sums.
  __device__ __forceinline__ void add_all(typename F::Out& out) {
    await_keys();
    begin();
    while (!last_) {  // the usual loop apart, so that it is short
      while (!last_ && !hides_) step<false>(out);
      if (!last_) step<true>(out);
    }
    if (!F::kOutInQueries) release(&s_.q_empty);
    issue_values(out);
    end_values(out);
  }

 private:
  __device__ __forceinline__ void await_keys() {
    ptx::mbarrier_wait(&s_.k_full[rings_.k.stage], rings_.k.parity);
    hides_ = s_.keys[rings_.k.stage].hides;
  }
  __device__ __forceinline__ void issue_scores() {
    ptx::wgmma_fence();
    // Asked anew, so that 16 descriptors of the queries are not kept beside the sums.
    const int consumer = F::kD == 256 ? warpgroup() - 1 : consumer_;
    issue_rows_product<F::kD, F::kQueries, F::kKeys>(scores_, s_.q, consumer * 64,
                                                     s_.k[rings_.k.stage]);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void issue_values(typename F::Out& out) {
    ptx::mbarrier_wait(&s_.v_full[rings_.v.stage], rings_.v.parity);
    ptx::wgmma_fence();
    issue_weighted_rows<F::kKeys>(out, weights_, s_.v[rings_.v.stage], true);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void end_values(typename F::Out& out) {
    ptx::wgmma_wait<0>(out);
    release(&s_.v_empty[rings_.v.stage]);
    rings_.v.advance();
  }
  /// Scores that have come become weights, if not yet the product's operands.
  template <bool kHides>
  __device__ __forceinline__ void soften_scores() {
    const typename F::KeyTile keys = s_.keys[rings_.k.stage];
    release(&s_.k_empty[rings_.k.stage]);
    rings_.k.advance();
    last_ = keys.last;
    if (kHides) hide<F>(scores_, s_, args_, work_, row_, keys);
    soften(scores_, rows_, rescale_, args_.scale * kLog2E);
    if (!last_) await_keys();
  }
  __device__ __forceinline__ void begin() {
    issue_scores();
    ptx::wgmma_wait<0>(scores_);
    soften_scores<true>();
    pack_weights(weights_, scores_);
  }
  template <bool kHides>
  __device__ __forceinline__ void step(typename F::Out& out) {
    const Turns<F::kConsumers> turns{consumer_};
    if (F::kInTurn) turns.begin();
    issue_scores();
    issue_values(out);
    if (F::kInTurn) turns.end();
    ptx::wgmma_wait<1>(scores_);
    soften_scores<kHides>();
    end_values(out);
    rescale_rows(out, rescale_);
    pack_weights(weights_, scores_);
  }

  typename F::Smem& s_;
  const AttentionGpuForward& args_;
  const typename F::Work& work_;
  ForwardRings<F>& rings_;
  ForwardRows& rows_;
  int consumer_, row_;
  bool hides_ = false, last_ = false;  ///< of the tile that has come; of the last one softened
  typename F::Scores scores_;
  typename F::Weights weights_;
  float rescale_[2];
};

}  // namespace trireme::cuda::attention
