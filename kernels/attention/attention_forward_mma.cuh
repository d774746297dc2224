#pragma once
// Attention forward by mma.sync (sm_80 and later), in the manner of FlashAttention 2.
//
// A block takes a tile of queries of one head; each warp 32 of its rows (16 where the head is too
// large for its registers), so that a fragment of K or V, once loaded, serves two products: with 16
// rows a warp the loads from shared memory, 128 bytes a cycle, would be slower than the products.
// The next keys and values arrive while these are worked on: one barrier for each tile of keys.
// Scores stay in registers; P is rounded to bf16 for the second product, its sum is not.
//
// Floor: 4 D operations a visible pair and head; mma.sync reaches some 500 of wgmma's 790 TFLOP/s.

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/attention_mma.cuh"

namespace trireme::cuda::attention {

/// kD: columns of q and k in shared memory; kV: of v, and of the sums.
template <int kD, int kV>
struct Forward {
  static constexpr int kRowTiles = kD > 128 ? 1 : 2;
  static constexpr int kRowsPerWarp = 16 * kRowTiles;
  static constexpr int kQueries = kWarps * kRowsPerWarp, kKeys = kD > 80 ? 32 : 64;

  struct Smem {
    alignas(128) bf16 q[kQueries][kD];
    alignas(128) bf16 k[2][kKeys][kD];
    alignas(128) bf16 v[2][kKeys][kV];
    // Warp 0 looks for tiles two ahead. All this stands here, as the sums leave no registers.
    Tile tiles[3];
    TileScan::State scan;
    QueryBounds tile_bounds, bounds[kWarps];
    HeadRows k_rows, v_rows;
    Tile queries;
    const std::int32_t* first_key;
    std::int64_t first_row;
  };
  using Scores = float[kRowTiles][kKeys / 8][4];
  using Weights = std::uint32_t[kRowTiles][kKeys / 8][2];
  using Out = float[kRowTiles][kV / 8][4];

  /// What a lane knows of its rows, [row tile][upper or lower row].
  struct Rows {
    float max[kRowTiles][2], sum[kRowTiles][2];  ///< sum: of this lane's columns alone
  };

  /// Scores of pairs that are not visible become -inf. row: of the lane's first one in the tile.
  static __device__ __forceinline__ void mask(Scores& s, const Tile& queries, const Tile& keys,
                                              int row, KeyLimits limits) {
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int tile_row = row + m * 16 + h * 8, position = queries.position + tile_row;
        const int end = min(keys.count, position + 1 - keys.position) - column;
        int first = 0;
        if (limits.first_key != nullptr && tile_row < queries.count)
          first = limits.first_key[tile_row];
        const int begin = first_visible(first, position, limits.reach) - keys.position - column;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int at = n * 8 + e;
            if (at < begin || at >= end) s[m][n][2 * h + e] = -INFINITY;
          }
      }
  }

  /// Turns scores into weights relative to the running maximum, which may grow. Their sum is that
  /// of all, weights are those of `kept`.
  template <class Kept>
  static __device__ __forceinline__ void soften(Weights& weights, Scores& s, Rows& rows, Out& out,
                                                float scale_log2, const Kept& kept) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float largest = rows.max[m][h];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
          largest = fmaxf(largest, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        largest = quad_max(largest);
        // A row that has seen nothing yet: exp2(-inf - 0) is 0, where -inf - -inf were NaN.
        const float shift = largest == -INFINITY ? 0 : __fmul_rn(largest, scale_log2);
        // Exactly 1 where the maximum stays, so that a tile unseen by a row leaves its bits alone.
        const float rescale = ptx::exp2_approx(__fmul_rn(rows.max[m][h], scale_log2) - shift);
        rows.max[m][h] = largest;
        float sum = rows.sum[m][h] * rescale;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          float p[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            p[e] = ptx::exp2_approx(fmaf(s[m][n][2 * h + e], scale_log2, -shift));
            sum += p[e];
          }
          const int bit = 4 * n + 2 * m + h;
          weights[m][n][h] = pack(kept.of(p[0], bit, 0), kept.of(p[1], bit, 1));
        }
        rows.sum[m][h] = sum;
        // Seldom after the first tiles.
        if (__any_sync(kAllLanes, rescale != 1) == 0) continue;
#pragma unroll
        for (int n = 0; n < kV / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) out[m][n][2 * h + e] *= rescale;
      }
  }

  static __device__ __forceinline__ void finish(const AttentionGpuForward& args, Rows& rows,
                                                Out& out, std::int64_t first_row, int count,
                                                int row, int head, float of_kept) {
    const int value_dim = static_cast<int>(args.shape.value_dim),
              column = static_cast<int>(threadIdx.x % 4) * 2;
    auto* o = static_cast<bf16*>(args.o.data);
    const bool pairs = reinterpret_cast<std::uintptr_t>(o) % 4 == 0 && args.o.stride % 2 == 0;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = quad_sum(rows.sum[m][h]);
        const int tile_row = row + m * 16 + h * 8;
        if (tile_row >= count) continue;
        const std::int64_t token = first_row + tile_row;
        const float factor = sum == 0 ? 0 : of_kept / sum;  // a NaN stays one
        bf16* to = o + token * args.o.stride + std::int64_t{head} * value_dim + column;
#pragma unroll
        for (int n = 0; n < kV / 8; ++n) {
          if (n * 8 + column >= value_dim) continue;
          const Vector<bf16, 2> pair = {from_float<bf16>(out[m][n][2 * h] * factor),
                                        from_float<bf16>(out[m][n][2 * h + 1] * factor)};
          if (pairs) {
            store(to + n * 8, pair);
          } else {
            to[n * 8] = pair.at[0];
            to[n * 8 + 1] = pair.at[1];
          }
        }
        if (column != 0) continue;
        const float largest = rows.max[m][h];
        const float shift = largest == -INFINITY ? 0 : __fmul_rn(largest, args.scale * kLog2E);
        args.lse[token * args.shape.heads + head] =
            sum == 0 ? -INFINITY : fmaf(shift, kLn2, logf(sum));
      }
  }
};

/// What a block does.
template <int kD, int kV, class Drop>
__device__ __forceinline__ void forward_tile(const AttentionGpuForward& args,
                                             const BlockOrder& order, bool chunks,
                                             const Drop& dropping) {
  using F = Forward<kD, kV>;
  auto& s = smem<typename F::Smem>();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const BlockOrder::Place place = order.place(blockIdx.x);
  const int heads = static_cast<int>(args.shape.heads), head = place.group % heads,
            head_dim = static_cast<int>(args.shape.head_dim),
            value_dim = static_cast<int>(args.shape.value_dim),
            kv_head = head / (heads / static_cast<int>(args.shape.kv_heads));
  const std::int64_t sequence = place.group / heads;
  const std::int64_t kv_row = sequence * args.shape.kv_tokens;
  const Tile queries = tile_at(args.q_ranges, place.tile, F::kQueries);
  const std::int64_t first_row = sequence * args.shape.q_tokens + queries.index;
  const std::int32_t* first_key = args.first_key == nullptr ? nullptr : args.first_key + first_row;

  {
    const QueryBounds tile_bounds = query_bounds(queries, 0, F::kQueries, first_key, args.reach),
                      bounds = query_bounds(queries, warp * F::kRowsPerWarp, F::kRowsPerWarp,
                                            first_key, args.reach);
    if (lane == 0) s.bounds[warp] = bounds;
    if (threadIdx.x == 0) {
      s.tile_bounds = tile_bounds;
      s.scan = {0, 0};
      s.k_rows = head_rows(args.k, kv_row, kv_head, head_dim);
      s.v_rows = head_rows(args.v, kv_row, kv_head, value_dim);
      s.queries = queries;
      s.first_key = first_key;
      s.first_row = first_row;
    }
  }
  const auto find_tile = [&](int slot) {
    if (warp != 0) return;
    __syncwarp();
    TileScan scan(args.kv_ranges, F::kKeys, s.scan);
    const Tile found = scan.next([&](const Tile& keys, int) { return s.tile_bounds.meets(keys); });
    __syncwarp();
    if (lane != 0) return;
    s.tiles[slot] = found;
    s.scan = scan.state();
  };
  const int row = warp * F::kRowsPerWarp + lane / 4;
  typename F::Rows rows;
#pragma unroll
  for (int m = 0; m < F::kRowTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.max[m][h] = -INFINITY;
      rows.sum[m][h] = 0;
    }
  typename F::Out out = {};

  const std::uint32_t sample = dropping.sample(sequence);
  const HeadRows q = head_rows(args.q, first_row, head, head_dim);
  const auto load_keys = [&](const Tile& keys, int stage) {
    if (keys.count == 0) return;
    load_tile(s.k[stage], s.k_rows, keys.index, keys.count, head_dim, chunks);
    load_tile(s.v[stage], s.v_rows, keys.index, keys.count, value_dim, chunks);
  };
  find_tile(0);
  find_tile(1);
  load_tile(s.q, q, 0, queries.count, head_dim, chunks);
  __syncthreads();
  load_keys(s.tiles[0], 0);
  ptx::cp_async_commit();
  const float scale_log2 = args.scale * kLog2E;
  for (int stage = 0, slot = 0;; stage ^= 1, slot = slot == 2 ? 0 : slot + 1) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // the stage has arrived, and no warp still reads the other one
    if (s.tiles[slot].count == 0) break;
    load_keys(s.tiles[slot == 2 ? 0 : slot + 1], stage ^ 1);
    ptx::cp_async_commit();
    find_tile(slot == 0 ? 2 : slot - 1);
    if (s.bounds[warp].meets(s.tiles[slot])) {
      typename F::Scores scores;
      typename F::Weights weights;
      typename Drop::Kept kept = {};
      if constexpr (Drop::kDrops)  // before the scores stand in registers
        kept = HeadPairs(dropping.args, sample, head)
                   .template of_query_rows<2 * F::kRowTiles, F::kKeys / 8>(
                       s.queries.position + row, s.tiles[slot].position + lane % 4 * 2);
      product_of_rows<kD, F::kRowTiles, F::kKeys>(scores, &s.q[0][0], warp * F::kRowsPerWarp,
                                                  &s.k[stage][0][0]);
      const Tile keys = s.tiles[slot];
      if (!s.bounds[warp].covers(keys) || keys.count < F::kKeys)
        F::mask(scores, s.queries, keys, row, {s.first_key, args.reach});
      F::soften(weights, scores, rows, out, scale_log2, kept);
      add_weighted_rows<kV, kV, F::kRowTiles, F::kKeys>(out, weights, &s.v[stage][0][0]);
    }
  }
  F::finish(args, rows, out, s.first_row, s.queries.count, row, head, dropping.factor());
}

template <int kD, int kV>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(const __grid_constant__ AttentionGpuForward args,
                   const __grid_constant__ BlockOrder order, bool chunks) {
  forward_tile<kD, kV>(args, order, chunks, NoDropping());
}
template <int kD>
__global__ void __launch_bounds__(kThreads, 2)
    forward_dropping_kernel(const __grid_constant__ AttentionGpuForward args,
                            const __grid_constant__ BlockOrder order, bool chunks,
                            const __grid_constant__ Dropping dropping) {
  forward_tile<kD, kD>(args, order, chunks, dropping);
}

template <int kD, int kV, class Kernel, class... Drop>
void launch_forward(Kernel kernel, const AttentionGpuForward& args, const Drop&... dropping) {
  using F = Forward<kD, kV>;
  const AttentionShape& shape = args.shape;
  const int tiles = tile_count(args.q_ranges, F::kQueries);
  const BlockOrder order =
      block_order(tiles, shape.sequences * shape.heads, shape.heads / shape.kv_heads,
                  shape.kv_tokens * (shape.head_dim + shape.value_dim) * 2, true);
  launch(kernel,
         {.grid = static_cast<unsigned>(tiles) * static_cast<unsigned>(order.groups),
          .block = kThreads,
          .smem_bytes = sizeof(typename F::Smem),
          .stream = stream_of(args.exec),
          .name = "attention_forward"},
         args, order,
         whole_chunks(args.q, shape.head_dim) && whole_chunks(args.k, shape.head_dim) &&
             whole_chunks(args.v, shape.value_dim),
         dropping...);
}

template <int kD, int kV>
void forward_bf16(const AttentionGpuForward& args) {
  launch_forward<kD, kV>(forward_kernel<kD, kV>, args);
}
template <int kD>
void forward_dropping(const AttentionGpuForward& args, const AttentionDropping& dropping) {
  launch_forward<kD, kD>(forward_dropping_kernel<kD>, args, Dropping{dropping});
}

}  // namespace trireme::cuda::attention
