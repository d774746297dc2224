// Attention in f32 by ordinary arithmetic (no TF32): for fp32 configs and tests. Correct and
// deterministic first. Four neighbouring lanes share a row; all rows stand in shared memory.

#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/attention_mma.cuh"

namespace trireme::cuda::attention {
namespace {

/// Whether each of a lane's pairs of a row is kept: columns `column`, `column` + 4, ...
template <int kPerLane, class Drop>
__device__ __forceinline__ typename Drop::Kept kept_of_row(const Drop& dropping,
                                                           std::int64_t sequence, int head,
                                                           RowsOf rows, int row, int column) {
  typename Drop::Kept kept = {};
  if constexpr (Drop::kDrops) {
    const HeadPairs pairs(dropping.args, dropping.sample(sequence), head);
#pragma unroll 1
    for (int i = 0; i < kPerLane; ++i) {
      const int at = column + 4 * i;
      const bool keys = rows == RowsOf::kKeys;
      kept.bits[0] |= (pairs.template kept<1, 1>(keys ? at : row, keys ? row : at) & 1U) << i;
    }
  }
  return kept;
}

/// kD: the largest head that the sums in registers are made for.
template <int kD>
struct F32 {
  static constexpr int kRows = kD > 128 ? 16 : 32, kColumns = kRows, kPerLane = kColumns / 4;
  static constexpr int kBlock = 4 * kRows;
  static constexpr int kStride = kD + 4;  // the lanes' rows start in different banks
  using Rows = float[kRows][kStride];
  using Weights = float[kRows][kColumns + 4];
  using Sums = Vector<float, 4>[kD / 16];

  /// Rows of a head; zeros beyond the last one and up to a multiple of four columns.
  static __device__ __forceinline__ void load_rows(Rows& to,
                                                   const AttentionHeads<const void>& heads,
                                                   std::int64_t first, const Tile& tile, int head,
                                                   int head_dim) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const float* from = static_cast<const float*>(heads.data) +
                        (first + tile.index) * heads.stride + std::int64_t{head} * head_dim;
    for (int row = warp; row < kRows; row += kBlock / 32) {
      for (int d = lane; d < (head_dim + 3) / 4 * 4; d += 32) {
        to[row][d] = row < tile.count && d < head_dim ? from[row * heads.stride + d] : 0;
      }
    }
  }

  /// out[i] = a[row] . b[lane % 4 + 4 i], of the rows that b has.
  static __device__ __forceinline__ void products(float (&out)[kPerLane], const Rows& a,
                                                  const Rows& b, int row, int count, int head_dim) {
    const int first = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) out[i] = 0;
    for (int d = 0; d < head_dim; d += 4) {
      const Vector<float, 4> x = load<4>(&a[row][d]);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (4 * i >= count) break;
        const Vector<float, 4> y = load<4>(&b[first + 4 * i][d]);
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i] = fmaf(x.at[e], y.at[e], out[i]);
      }
    }
  }

  /// sums += the row's weights times the rows that b has; of each 16 columns a lane has four.
  static __device__ __forceinline__ void add_weighted(Sums& sums, const Weights& weights,
                                                      const Rows& b, int row, int count,
                                                      int head_dim) {
    const int first = static_cast<int>(threadIdx.x % 4) * 4;
    for (int j = 0; j < count; ++j) {
      const float weight = weights[row][j];
#pragma unroll
      for (int i = 0; i < kD / 16; ++i) {
        if (first + 16 * i >= head_dim) break;
        const Vector<float, 4> y = load<4>(&b[j][first + 16 * i]);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i].at[e] = fmaf(weight, y.at[e], sums[i].at[e]);
      }
    }
  }

  /// f(column, sum) for what a lane has of its row.
  template <class F>
  static __device__ __forceinline__ void for_each_sum(const Sums& sums, int head_dim, F f) {
    const int first = static_cast<int>(threadIdx.x % 4) * 4;
#pragma unroll
    for (int i = 0; i < kD / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (first + 16 * i + e < head_dim) f(first + 16 * i + e, sums[i].at[e]);
  }
};

template <int kD>
struct ForwardSmem {
  alignas(16) typename F32<kD>::Rows q, k, v;
  alignas(16) typename F32<kD>::Weights p;
};

template <int kD, class Drop>
__global__ void __launch_bounds__(F32<kD>::kBlock, 1)
    forward_f32_kernel(const __grid_constant__ AttentionGpuForward args,
                       const __grid_constant__ BlockOrder order,
                       const __grid_constant__ Drop dropping) {
  using F = F32<kD>;
  auto& s = smem<ForwardSmem<kD>>();
  const int row = static_cast<int>(threadIdx.x / 4), quarter = static_cast<int>(threadIdx.x % 4);
  const BlockOrder::Place place = order.place(blockIdx.x);
  const int heads = static_cast<int>(args.shape.heads), head = place.group % heads,
            head_dim = static_cast<int>(args.shape.head_dim),
            value_dim = static_cast<int>(args.shape.value_dim),
            kv_head = head / (heads / static_cast<int>(args.shape.kv_heads));
  const std::int64_t sequence = place.group / heads, kv_row = sequence * args.shape.kv_tokens;
  const Tile queries = tile_at(args.q_ranges, place.tile, F::kRows);
  const std::int64_t first_row = sequence * args.shape.q_tokens;
  const std::int32_t* first_keys =
      args.first_key == nullptr ? nullptr : args.first_key + first_row + queries.index;
  const QueryBounds bounds = query_bounds(queries, 0, F::kRows, first_keys, args.reach);
  const int first_key =
      first_visible(first_keys != nullptr && row < queries.count ? first_keys[row] : 0,
                    queries.position + row, args.reach);
  const float scale_log2 = args.scale * kLog2E;

  F::load_rows(s.q, args.q, first_row, queries, head, head_dim);
  float largest = -INFINITY, sum = 0;
  typename F::Sums out = {};
  TileScan scan(args.kv_ranges, F::kColumns);
  for (;;) {
    const Tile keys = scan.next([&](const Tile& tile, int) { return bounds.meets(tile); });
    if (keys.count == 0) break;
    __syncthreads();  // no warp still reads the tile before
    F::load_rows(s.k, args.k, kv_row, keys, kv_head, head_dim);
    F::load_rows(s.v, args.v, kv_row, keys, kv_head, value_dim);
    __syncthreads();

    float p[F::kPerLane];
    F::products(p, s.q, s.k, row, keys.count, head_dim);
    const float before = largest;
    const auto kept = kept_of_row<F::kPerLane>(dropping, sequence, head, RowsOf::kQueries,
                                               queries.position + row, keys.position + quarter);
#pragma unroll
    for (int i = 0; i < F::kPerLane; ++i) {
      const int at = quarter + 4 * i, key = keys.position + at;
      if (at >= keys.count || key > queries.position + row || key < first_key) p[i] = -INFINITY;
      largest = fmaxf(largest, p[i]);
    }
    largest = quad_max(largest);
    const float shift = largest == -INFINITY ? 0 : __fmul_rn(largest, scale_log2);
    const float rescale = exp2f(__fmul_rn(before, scale_log2) - shift);  // 1 where it stays
    sum *= rescale;
#pragma unroll
    for (int i = 0; i < F::kPerLane; ++i) {
      const float weight = exp2f(fmaf(p[i], scale_log2, -shift));
      sum += weight;
      s.p[row][quarter + 4 * i] = kept.of(weight, i, 0);
    }
#pragma unroll
    for (int i = 0; i < kD / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[i].at[e] *= rescale;
    __syncwarp();  // a row's weights stay within its warp
    if (row < queries.count) F::add_weighted(out, s.p, s.v, row, keys.count, value_dim);
  }
  sum = quad_sum(sum);
  if (row >= queries.count) return;
  const std::int64_t token = first_row + queries.index + row;
  const float factor = sum == 0 ? 0 : dropping.factor() / sum;  // a NaN stays one
  float* to =
      static_cast<float*>(args.o.data) + token * args.o.stride + std::int64_t{head} * value_dim;
  F::for_each_sum(out, value_dim, [&](int column, float value) { to[column] = value * factor; });
  const float shift = largest == -INFINITY ? 0 : __fmul_rn(largest, scale_log2);
  if (quarter == 0)
    args.lse[token * heads + head] = sum == 0 ? -INFINITY : fmaf(shift, kLn2, logf(sum));
}

template <int kD>
struct BackwardSmem {
  alignas(16) typename F32<kD>::Rows rows1, rows2, columns1, columns2;
  alignas(16) typename F32<kD>::Weights p, ds;
  float lse[F32<kD>::kColumns], delta[F32<kD>::kColumns];
  int first_key[F32<kD>::kColumns];
};

template <int kD, RowsOf kRowsOf, class Drop>
__global__ void __launch_bounds__(F32<kD>::kBlock, 1)
    backward_f32_kernel(const __grid_constant__ AttentionGpuBackward args,
                        const __grid_constant__ BlockOrder order,
                        const __grid_constant__ Drop dropping) {
  using F = F32<kD>;
  constexpr bool kKeyRows = kRowsOf == RowsOf::kKeys;
  auto& s = smem<BackwardSmem<kD>>();
  const int row = static_cast<int>(threadIdx.x / 4), quarter = static_cast<int>(threadIdx.x % 4);
  const int heads = static_cast<int>(args.shape.heads),
            head_dim = static_cast<int>(args.shape.head_dim),
            value_dim = static_cast<int>(args.shape.value_dim);
  const BlockOrder::Place place = order.place(blockIdx.x);
  BackwardWork<kRowsOf, F::kRows, F::kColumns> work(args, place.tile, place.group);
  const Tile& own = work.own;
  const std::int64_t own_row = kKeyRows ? work.kv_row : work.q_row,
                     other_row = kKeyRows ? work.q_row : work.kv_row;
  float row_lse = 0, row_delta = 0;
  int row_first_key = 0;
  if (!kKeyRows && row < own.count) {
    const std::int64_t at = (work.q_row + own.index + row) * heads + work.head;
    row_lse = args.lse[at];
    row_delta = args.delta[at];
    if (work.first_key != nullptr) row_first_key = work.first_key[row];
  }
  F::load_rows(s.rows1, kKeyRows ? args.k : args.q, own_row, own, work.head, head_dim);
  F::load_rows(s.rows2, kKeyRows ? args.v : args.d_o, own_row, own, work.head, value_dim);
  const float scale_log2 = args.scale * kLog2E;
  typename F::Sums sum1 = {}, sum2 = {};
  for (;;) {
    const BackwardStep step = work.next();
    if (step.tile.count == 0) break;
    __syncthreads();  // no warp still reads the tile before
    F::load_rows(s.columns1, kKeyRows ? args.q : args.k, other_row, step.tile, step.head, head_dim);
    F::load_rows(s.columns2, kKeyRows ? args.d_o : args.v, other_row, step.tile, step.head,
                 value_dim);
    if (kKeyRows && static_cast<int>(threadIdx.x) < step.tile.count) {
      const std::int64_t token = work.q_row + step.tile.index + threadIdx.x;
      s.lse[threadIdx.x] = args.lse[token * heads + step.head];
      s.delta[threadIdx.x] = args.delta[token * heads + step.head];
      s.first_key[threadIdx.x] = args.first_key == nullptr ? 0 : args.first_key[token];
    }
    __syncthreads();

    float p[F::kPerLane], dp[F::kPerLane];
    F::products(p, s.rows1, s.columns1, row, step.tile.count, head_dim);
    F::products(dp, s.rows2, s.columns2, row, step.tile.count, value_dim);
    const auto kept =
        kept_of_row<F::kPerLane>(dropping, work.sequence(), kKeyRows ? step.head : work.head,
                                 kRowsOf, own.position + row, step.tile.position + quarter);
#pragma unroll
    for (int i = 0; i < F::kPerLane; ++i) {
      const int at = quarter + 4 * i;
      float weight = 0, ds = 0;
      if (at < step.tile.count) {
        const int own_position = own.position + row, other_position = step.tile.position + at;
        const int key = kKeyRows ? own_position : other_position,
                  query = kKeyRows ? other_position : own_position,
                  first_key = kKeyRows ? s.first_key[at] : row_first_key;
        if (row < own.count && key <= query && query - key <= args.reach && key >= first_key) {
          const float lse = kKeyRows ? s.lse[at] : row_lse;
          weight = exp2f(fmaf(p[i], scale_log2, -lse * kLog2E));
          const float of_kept = kept.of(dp[i] * dropping.factor(), i, 0);
          ds = weight * (of_kept - (kKeyRows ? s.delta[at] : row_delta));
          weight = kept.of(weight, i, 0);
        }
      }
      if constexpr (kKeyRows) s.p[row][at] = weight;
      s.ds[row][at] = ds;
    }
    __syncwarp();  // a row's weights stay within its warp
    if (row < own.count) {
      if constexpr (kKeyRows)
        F::add_weighted(sum2, s.p, s.columns2, row, step.tile.count, value_dim);
      F::add_weighted(sum1, s.ds, s.columns1, row, step.tile.count, head_dim);
    }
  }
  if (row >= own.count) return;
  const auto add = [&](const AttentionHeads<float>& to, int dims, const typename F::Sums& sums,
                       float factor) {
    float* at = to.data + (own_row + own.index + row) * to.stride + std::int64_t{work.head} * dims;
    F::for_each_sum(sums, dims, [&](int column, float value) { at[column] += factor * value; });
  };
  add(kKeyRows ? args.dk : args.dq, head_dim, sum1, args.scale);
  if constexpr (kKeyRows) add(args.dv, value_dim, sum2, dropping.factor());
}

template <int kD, class Drop>
void forward(const AttentionGpuForward& args, const Drop& dropping) {
  const AttentionShape& shape = args.shape;
  const int tiles = tile_count(args.q_ranges, F32<kD>::kRows);
  const BlockOrder order =
      block_order(tiles, shape.sequences * shape.heads, shape.heads / shape.kv_heads,
                  shape.kv_tokens * shape.head_dim * 8, true);
  launch(forward_f32_kernel<kD, Drop>,
         {.grid = static_cast<unsigned>(tiles) * static_cast<unsigned>(order.groups),
          .block = F32<kD>::kBlock,
          .smem_bytes = sizeof(ForwardSmem<kD>),
          .stream = stream_of(args.exec),
          .name = "attention_forward"},
         args, order, dropping);
}

template <int kD, RowsOf kRowsOf, class Drop>
void launch_backward(const AttentionGpuBackward& args, const Drop& dropping) {
  constexpr bool kKeyRows = kRowsOf == RowsOf::kKeys;
  const AttentionShape& shape = args.shape;
  const std::int64_t sharing = shape.heads / shape.kv_heads;
  const int tiles = tile_count(kKeyRows ? args.kv_ranges : args.q_ranges, F32<kD>::kRows);
  const BlockOrder order = kKeyRows
                               ? block_order(tiles, shape.sequences * shape.kv_heads, 1,
                                             sharing * shape.q_tokens * shape.head_dim * 8, false)
                               : block_order(tiles, shape.sequences * shape.heads, sharing,
                                             shape.kv_tokens * shape.head_dim * 8, true);
  launch(backward_f32_kernel<kD, kRowsOf, Drop>,
         {.grid = static_cast<unsigned>(tiles) * static_cast<unsigned>(order.groups),
          .block = F32<kD>::kBlock,
          .smem_bytes = sizeof(BackwardSmem<kD>),
          .stream = stream_of(args.exec),
          .name = "attention_backward"},
         args, order, dropping);
}

template <int kD, class Drop>
void backward(const AttentionGpuBackward& args, const Drop& dropping) {
  find_tile_first_keys(args, F32<kD>::kColumns);
  launch_backward<kD, RowsOf::kKeys>(args, dropping);
  launch_backward<kD, RowsOf::kQueries>(args, dropping);
}

template <class Drop>
void forward_of_size(const AttentionGpuForward& args, const Drop& dropping) {
  const std::int64_t d = args.shape.head_dim;
  (d <= 64    ? forward<64, Drop>
   : d <= 128 ? forward<128, Drop>
              : forward<256, Drop>)(args, dropping);
}
template <class Drop>
void backward_of_size(const AttentionGpuBackward& args, const Drop& dropping) {
  const std::int64_t d = args.shape.head_dim;
  (d <= 64    ? backward<64, Drop>
   : d <= 128 ? backward<128, Drop>
              : backward<256, Drop>)(args, dropping);
}

}  // namespace

void forward_f32(const AttentionGpuForward& args, const AttentionDropping* dropping) {
  dropping == nullptr ? forward_of_size(args, NoDropping())
                      : forward_of_size(args, Dropping{*dropping});
}
void backward_f32(const AttentionGpuBackward& args, const AttentionDropping* dropping) {
  dropping == nullptr ? backward_of_size(args, NoDropping())
                      : backward_of_size(args, Dropping{*dropping});
}

}  // namespace trireme::cuda::attention
