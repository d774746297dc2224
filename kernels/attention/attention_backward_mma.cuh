#pragma once
// Attention backward by mma.sync (sm_80 and later), in one of two ways.
//
// Deterministic, without atomics. A block owns 64 rows (keys in one kernel, queries in the other)
// and their gradients and streams the other side. Seven products, where five would do:
//   keys     S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q over the key head's query heads
//   queries  S = Q K^T, dP = dO V^T, dQ += dS K
//
// In one pass: the kernel of keys alone, whose warps share dS^T in shared memory, multiply it by K
// and add that to dQ by atomics. Five products; dV and dK have the bits of the other way, dQ's
// depend on the order of the blocks. A block owns 128 keys (64 for heads above 128), because it
// adds to every dQ that sees one of them: 4 D bytes and, of 128 keys, 16 D operations a query.
//
// The scores, P and dS of a warp's 16 rows stay in its registers: an accumulator's fragments are
// the left operand of the next product. P and dS are rounded to bf16 for these; the scale is
// applied to the sums. Rows beyond the end are zeros, as are their lse and delta, and add nothing.
//
// Floor: 10 D operations for each visible pair and query head, 14 D done by the deterministic way;
// a fragment of the streamed tiles serves one product of 16 rows, so that loads from shared memory
// bound it: about 16 operations a byte, some 450 TFLOP/s of the 14 D on an H200.

#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/attention_mma.cuh"

namespace trireme::cuda::attention {

/// What a kernel computes: the gradients of its block's rows, or also what they add to dQ.
enum class Gives : std::uint8_t { kKeyGradients, kQueryGradients, kAll };
template <Gives kGives>
struct GivesConstant {
  static constexpr Gives value = kGives;
};

/// kD: columns of q and k in shared memory; kV: of v and dO.
template <int kD, int kV, Gives kGives>
struct Backward {
  static constexpr bool kAll = kGives == Gives::kAll, kKeyRows = kGives != Gives::kQueryGradients;
  static constexpr RowsOf kRowsOf = kKeyRows ? RowsOf::kKeys : RowsOf::kQueries;
  /// Eight warps take the registers of a whole multiprocessor, and so do two blocks of four.
  static constexpr int kBlockWarps = kAll && kD <= 128 ? 8 : kWarps, kBlock = 32 * kBlockWarps,
                       kBlocks = 2 * kWarps / kBlockWarps;
  static constexpr int kRows = 16 * kBlockWarps,
                       kColumns = kD > 128 ? 16 : (kD > (kAll ? 64 : 80) ? 32 : 64);
  /// Where two accumulators do not fit, a block takes half of the head and makes P and dS whole.
  static constexpr int kSlices = kKeyRows && kD + kV > 320 ? 2 : 1, kTake = kD / kSlices,
                       kTakeValues = kV / kSlices;

  /// Rows: k, v or q, dO. Columns: q, dO or k, v, in two stages.
  struct Smem {
    alignas(128) bf16 rows1[kRows][kD];
    alignas(128) bf16 rows2[kRows][kV];
    alignas(128) bf16 columns1[2][kColumns][kD];
    alignas(128) bf16 columns2[2][kColumns][kV];
    alignas(16) float lse[2][kColumns];  // these of columns that are queries
    alignas(16) float delta[2][kColumns];
    alignas(16) int first_key[2][kColumns];
    int head_dim, value_dim;  // these stand here, as the sums leave no registers
  };
  /// After it in shared memory: dS^T of the block's keys, as bf16, where dQ is computed.
  static constexpr std::size_t kSmemBytes =
      sizeof(Smem) + (kAll ? kRows * kColumns * sizeof(bf16) : 0);
  using Scores = float[1][kColumns / 8][4];
  using Weights = std::uint32_t[1][kColumns / 8][2];
  using Sums = float[1][kTake / 8][4];  ///< of dK or of dQ
  using ValueSums = float[1][kTakeValues / 8][4];

  /// What a lane knows of its two rows, where these are queries.
  struct QueryRows {
    float lse_log2[2], delta[2];
  };

  /// Of a head; first_row: the sequence's.
  static __device__ __forceinline__ void load_rows(QueryRows& rows,
                                                   const AttentionGpuBackward& args,
                                                   std::int64_t first_row, const Tile& own, int row,
                                                   int head) {
    const int heads = static_cast<int>(args.shape.heads);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row + h * 8 >= own.count) continue;
      const std::int64_t at = (first_row + own.index + row + h * 8) * heads + head;
      rows.lse_log2[h] = args.lse[at] * kLog2E;
      rows.delta[h] = args.delta[at];
    }
  }
  /// What a lane keeps of a tile whose first row and column for it stand at these positions.
  static __device__ __forceinline__ KeptPairs kept_of(const Dropping& dropping,
                                                      std::uint32_t sample, int head, int row,
                                                      int column) {
    const HeadPairs pairs(dropping.args, sample, head);
    if constexpr (kKeyRows)
      return pairs.template of_key_rows<kColumns / 8>(column, row);
    else
      return pairs.template of_query_rows<2, kColumns / 8>(row, column);
  }
  /// The bit of a lane's pair in KeptPairs; `upper`: of its second row.
  static __device__ __forceinline__ int bit_of(int n, int upper) {
    return kKeyRows ? 8 * (n / 4) + 4 * upper + n % 4 : 4 * n + upper;
  }
  /// s becomes P, with dropout P~ without its factor; dp becomes dS without its scale.
  template <class Drop>
  static __device__ __forceinline__ void weigh(Scores& s, Scores& dp, const Smem& smem, int stage,
                                               const QueryRows& rows, float scale_log2,
                                               const typename Drop::Kept& kept, float of_kept) {
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      Vector<float, 2> lse, delta;
      if constexpr (kKeyRows) {
        lse = load<2>(&smem.lse[stage][n * 8 + column]);
        delta = load<2>(&smem.delta[stage][n * 8 + column]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float lse_log2 = kKeyRows ? lse.at[e % 2] * kLog2E : rows.lse_log2[e / 2];
        s[0][n][e] = ptx::exp2_approx(fmaf(s[0][n][e], scale_log2, -lse_log2));
        if constexpr (Drop::kDrops)
          dp[0][n][e] = kept.of(dp[0][n][e] * of_kept, bit_of(n, e / 2), e % 2);
        dp[0][n][e] = s[0][n][e] * (dp[0][n][e] - (kKeyRows ? delta.at[e % 2] : rows.delta[e / 2]));
        if constexpr (Drop::kDrops) s[0][n][e] = kept.of(s[0][n][e], bit_of(n, e / 2), e % 2);
      }
    }
  }

  /// Pairs that are not visible get weight 0, even where their score is NaN.
  static __device__ __forceinline__ void mask(Scores& p, Scores& ds, const Smem& smem, int stage,
                                              const Tile& own, const Tile& other, int row,
                                              KeyLimits limits) {
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int tile_row = row + h * 8, position = own.position + tile_row;
      int row_first_key = 0;
      if (!kKeyRows && limits.first_key != nullptr && tile_row < own.count)
        row_first_key = limits.first_key[tile_row];
      if (!kKeyRows) row_first_key = first_visible(row_first_key, position, limits.reach);
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = n * 8 + column + e, other_position = other.position + at;
          bool seen = at < other.count;
          if constexpr (kKeyRows) {
            // A key beyond the end would be a factor of dQ's products, if only of zeros.
            seen = seen && tile_row < own.count && position <= other_position &&
                   other_position - position <= limits.reach &&
                   (limits.first_key == nullptr || position >= smem.first_key[stage][at]);
          } else {
            seen = seen && other_position <= position && other_position >= row_first_key;
          }
          if (!seen) p[0][n][2 * h + e] = ds[0][n][2 * h + e] = 0;
        }
    }
  }

  static __device__ __forceinline__ void pack_weights(Weights& weights, const Scores& s) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) weights[0][n][h] = pack(s[0][n][2 * h], s[0][n][2 * h + 1]);
  }

  /// A thread's sums: rows `row`, `row + 8` of `count` from `first_row`, columns from `begin`.
  struct SumsAt {
    std::int64_t first_row;
    int count, row, head, head_dim, begin;
  };
  /// to += factor sums, of the rows that exist.
  template <int kChunks>
  static __device__ __forceinline__ void add_sums(const AttentionHeads<float>& to,
                                                  const SumsAt& where,
                                                  const float (&sums)[1][kChunks][4],
                                                  float factor) {
    const int column = where.begin + static_cast<int>(threadIdx.x % 4) * 2;
    const bool pairs = reinterpret_cast<std::uintptr_t>(to.data) % 8 == 0 && to.stride % 2 == 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (where.row + h * 8 >= where.count) continue;
      float* at = to.data + (where.first_row + where.row + h * 8) * to.stride +
                  std::int64_t{where.head} * where.head_dim + column;
#pragma unroll
      for (int n = 0; n < kChunks; ++n) {
        if (n * 8 + column >= where.head_dim) continue;
        const float low = factor * sums[0][n][2 * h], high = factor * sums[0][n][2 * h + 1];
        if (pairs) {
          Vector<float, 2> pair = load<2>(at + n * 8);
          pair.at[0] += low;
          pair.at[1] += high;
          store(at + n * 8, pair);
        } else {
          at[n * 8] += low;
          at[n * 8 + 1] += high;
        }
      }
    }
  }

  /// The warp's dS^T, for the others to see.
  static __device__ __forceinline__ void store_weights(bf16* ds, const Weights& weights, int row) {
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Vector<bf16, 2> pair;
        __builtin_memcpy(&pair, &weights[0][n][h], sizeof pair);
        store(ds + Swizzle<kColumns>::at(row + h * 8, n) + column, pair);
      }
  }

  /// dQ += scale dS K of a streamed tile, atomically. A warp takes 16 queries and every kParts-th
  /// 16 columns. seen(i): whether warp i's keys see it: their dS is in `ds`.
  template <class Seen>
  static __device__ __forceinline__ void add_query_gradients(const AttentionGpuBackward& args,
                                                             const bf16* ds, const bf16* keys,
                                                             const Tile& queries,
                                                             std::int64_t q_row, int head,
                                                             int begin, Seen seen) {
    constexpr int kRowTiles = kColumns / 16, kParts = kBlockWarps / kRowTiles, kChunks = kTake / 16,
                  kOwn = (kChunks + kParts - 1) / kParts;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
              tile_row = warp % kRowTiles * 16, part = warp / kRowTiles;
    const LaneRow<kColumns> left_row(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const LaneRow<kD> right_row(lane % 16, lane / 16);
    float sums[kOwn][2][4] = {};
#pragma unroll 1
    for (int k = 0; k < kBlockWarps; ++k) {
      if (!seen(k)) continue;
      std::uint32_t left[4];
      ptx::ldmatrix_x4_trans(left, left_row.at(ds, k * 16, tile_row / 8));
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int chunk = part + i * kParts;
        if (chunk >= kChunks) continue;
        std::uint32_t right[4];
        ptx::ldmatrix_x4_trans(right, right_row.at(keys, k * 16, begin / 8 + chunk * 2));
        const std::uint32_t right0[2] = {right[0], right[1]}, right1[2] = {right[2], right[3]};
        ptx::mma_m16n8k16_bf16(sums[i][0], left, right0);
        ptx::mma_m16n8k16_bf16(sums[i][1], left, right1);
      }
    }
    const int head_dim = static_cast<int>(args.shape.head_dim);
    const bool pairs =
        reinterpret_cast<std::uintptr_t>(args.dq.data) % 8 == 0 && args.dq.stride % 2 == 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = tile_row + lane / 4 + h * 8;
      if (query >= queries.count) continue;
      float* to = args.dq.data + (q_row + queries.index + query) * args.dq.stride +
                  std::int64_t{head} * head_dim;
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int column = begin + (part + i * kParts) * 16 + n * 8 + lane % 4 * 2;
          if (part + i * kParts >= kChunks || column >= head_dim) continue;
          const float low = args.scale * sums[i][n][2 * h],
                      high = args.scale * sums[i][n][2 * h + 1];
          if (pairs) {
            ptx::atomic_add_pair(to + column, low, high);
          } else {
            atomicAdd(to + column, low);
            atomicAdd(to + column + 1, high);
          }
        }
    }
  }
};

/// What a block does.
template <int kD, int kV, Gives kGives, class Drop>
__device__ __forceinline__ void backward_tile(const AttentionGpuBackward& args,
                                              const BlockOrder& order, bool chunks,
                                              const Drop& dropping) {
  using B = Backward<kD, kV, kGives>;
  constexpr bool kKeyRows = B::kKeyRows;
  auto& s = smem<typename B::Smem>();
  bf16* weights_of_keys = B::kAll ? smem_tail<typename B::Smem, bf16>() : nullptr;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
            row = warp * 16 + lane / 4;
  const int heads = static_cast<int>(args.shape.heads);
  const BlockOrder::Place place = order.place(blockIdx.x);
  const int slice = place.group % B::kSlices;
  BackwardWork<B::kRowsOf, B::kRows, B::kColumns> work(args, place.tile, place.group / B::kSlices);
  const Tile& own = work.own;
  BackwardStep step = work.next();
  if (step.tile.count == 0) return;  // the whole block: its rows get nothing

  // The warp's rows: of keys a tile of their own, of queries their bounds.
  const auto keys_of_warp = [&](int i) {
    return Tile{0, min(16, own.count - i * 16), own.position + i * 16};
  };
  const Tile warp_keys = keys_of_warp(warp);
  QueryBounds bounds = {};
  typename B::QueryRows query_rows = {};
  if constexpr (!kKeyRows) {
    bounds = query_bounds(own, warp * 16, 16, work.first_key, args.reach);
    B::load_rows(query_rows, args, work.q_row, own, row, work.head);
  }
  if (threadIdx.x == 0) {
    s.head_dim = static_cast<int>(args.shape.head_dim);
    s.value_dim = static_cast<int>(args.shape.value_dim);
  }
  __syncthreads();
  const auto load = [&](auto& to, const auto& from, std::int64_t first, int head, const Tile& tile,
                        int dim) {
    load_tile<B::kBlock>(to, head_rows(from, first, head, dim), tile.index, tile.count, dim,
                         chunks);
  };
  const auto load_columns = [&](const BackwardStep& of, int stage) {
    const std::int64_t first = kKeyRows ? work.q_row : work.kv_row;
    load(s.columns1[stage], kKeyRows ? args.q : args.k, first, of.head, of.tile, s.head_dim);
    load(s.columns2[stage], kKeyRows ? args.d_o : args.v, first, of.head, of.tile, s.value_dim);
    const int i = static_cast<int>(threadIdx.x);
    if (!kKeyRows || i >= B::kColumns) return;
    const bool there = i < of.tile.count;
    const std::int64_t token = first + of.tile.index + (there ? i : 0);
    ptx::cp_async_4(&s.lse[stage][i], args.lse + token * heads + of.head, there ? 4 : 0);
    ptx::cp_async_4(&s.delta[stage][i], args.delta + token * heads + of.head, there ? 4 : 0);
    if (args.first_key != nullptr)
      ptx::cp_async_4(&s.first_key[stage][i], args.first_key + token, there ? 4 : 0);
  };
  const std::int64_t own_row = kKeyRows ? work.kv_row : work.q_row;
  load(s.rows1, kKeyRows ? args.k : args.q, own_row, work.head, own, s.head_dim);
  load(s.rows2, kKeyRows ? args.v : args.d_o, own_row, work.head, own, s.value_dim);
  load_columns(step, 0);
  ptx::cp_async_commit();

  const std::uint32_t sample = dropping.sample(work.sequence());
  typename B::Sums sums = {};
  typename B::ValueSums value_sums = {};
  const float scale_log2 = args.scale * kLog2E;
  for (int stage = 0; step.tile.count > 0; stage ^= 1) {
    const BackwardStep next = work.next();
    ptx::cp_async_wait<0>();
    __syncthreads();  // the stage has arrived, and no warp still reads the other one
    if (next.tile.count > 0) load_columns(next, stage ^ 1);
    ptx::cp_async_commit();

    bool active, covered;
    QueryBounds of = {};
    if constexpr (kKeyRows) {
      of = work.bounds_of(step.tile, step.number);
      active = warp_keys.count > 0 && of.meets(warp_keys);
      covered = of.covers(warp_keys) && (!B::kAll || warp_keys.count == 16);
    } else {
      active = bounds.meets(step.tile);
      covered = bounds.covers(step.tile) && step.tile.count == B::kColumns;
    }
    if (active) {
      typename Drop::Kept kept = {};
      if constexpr (Drop::kDrops)  // before the scores stand in registers
        kept = B::kept_of(dropping, sample, kKeyRows ? step.head : work.head, own.position + row,
                          step.tile.position + lane % 4 * 2);
      typename B::Scores p, ds;
      product_of_rows<kD, 1, B::kColumns>(p, &s.rows1[0][0], warp * 16, &s.columns1[stage][0][0]);
      product_of_rows<kV, 1, B::kColumns>(ds, &s.rows2[0][0], warp * 16, &s.columns2[stage][0][0]);
      B::template weigh<Drop>(p, ds, s, stage, query_rows, scale_log2, kept, dropping.factor());
      if (!covered) B::mask(p, ds, s, stage, own, step.tile, row, {work.first_key, args.reach});
      typename B::Weights weights;
      if constexpr (kKeyRows) {
        B::pack_weights(weights, p);
        add_weighted_rows<kV, B::kTakeValues, 1, B::kColumns>(
            value_sums, weights, &s.columns2[stage][0][0] + slice * B::kTakeValues);
      }
      B::pack_weights(weights, ds);
      if constexpr (B::kAll) B::store_weights(weights_of_keys, weights, row);
      add_weighted_rows<kD, B::kTake, 1, B::kColumns>(sums, weights,
                                                      &s.columns1[stage][0][0] + slice * B::kTake);
    }
    if constexpr (B::kAll) {
      __syncthreads();  // every warp's dS is there; the next barrier ends its use
      B::add_query_gradients(args, weights_of_keys, &s.rows1[0][0], step.tile, work.q_row,
                             step.head, slice * B::kTake, [&](int i) {
                               const Tile keys = keys_of_warp(i);
                               return keys.count > 0 && of.meets(keys);
                             });
    }
    step = next;
  }

  const typename B::SumsAt where{own_row + own.index, own.count,  row,
                                 work.head,           s.head_dim, slice * B::kTake};
  B::add_sums(kKeyRows ? args.dk : args.dq, where, sums, args.scale);
  if constexpr (kKeyRows) {
    const typename B::SumsAt of_values{where.first_row, where.count, row,
                                       work.head,       s.value_dim, slice * B::kTakeValues};
    B::add_sums(args.dv, of_values, value_sums, dropping.factor());
  }
}

template <int kD, int kV, Gives kGives>
__global__ void __launch_bounds__(Backward<kD, kV, kGives>::kBlock,
                                  Backward<kD, kV, kGives>::kBlocks)
    backward_kernel(const __grid_constant__ AttentionGpuBackward args,
                    const __grid_constant__ BlockOrder order, bool chunks) {
  backward_tile<kD, kV, kGives>(args, order, chunks, NoDropping());
}
template <int kD, Gives kGives>
__global__ void __launch_bounds__(Backward<kD, kD, kGives>::kBlock,
                                  Backward<kD, kD, kGives>::kBlocks)
    backward_dropping_kernel(const __grid_constant__ AttentionGpuBackward args,
                             const __grid_constant__ BlockOrder order, bool chunks,
                             const __grid_constant__ Dropping dropping) {
  backward_tile<kD, kD, kGives>(args, order, chunks, dropping);
}

template <int kD, int kV, Gives kGives, class Kernel, class... Drop>
void launch_backward(Kernel kernel, const AttentionGpuBackward& args, const Drop&... dropping) {
  using B = Backward<kD, kV, kGives>;
  const AttentionShape& shape = args.shape;
  const std::int64_t sharing = shape.heads / shape.kv_heads,
                     row_bytes = (shape.head_dim + shape.value_dim) * 2;
  const int tiles = tile_count(B::kKeyRows ? args.kv_ranges : args.q_ranges, B::kRows);
  const BlockOrder order =
      B::kKeyRows ? block_order(tiles, shape.sequences * shape.kv_heads * B::kSlices, B::kSlices,
                                sharing * shape.q_tokens * row_bytes, false)
                  : block_order(tiles, shape.sequences * shape.heads, sharing,
                                shape.kv_tokens * row_bytes, true);
  const bool chunks =
      whole_chunks(args.q, shape.head_dim) && whole_chunks(args.k, shape.head_dim) &&
      whole_chunks(args.v, shape.value_dim) && whole_chunks(args.d_o, shape.value_dim);
  launch(kernel,
         {.grid = static_cast<unsigned>(tiles) * static_cast<unsigned>(order.groups),
          .block = B::kBlock,
          .smem_bytes = B::kSmemBytes,
          .stream = stream_of(args.exec),
          .name = "attention_backward"},
         args, order, chunks, dropping...);
}

/// In one pass or in two; run(gives): one of its kernels.
template <int kD, int kV, class Run>
void run_backward(const AttentionGpuBackward& args, const Run& run) {
  using All = Backward<kD, kV, Gives::kAll>;
  using Keys = Backward<kD, kV, Gives::kKeyGradients>;
  if (args.atomics && All::kSmemBytes <= smem_bytes_of_block()) {
    find_tile_first_keys(args, All::kColumns);
    return run(GivesConstant<Gives::kAll>());
  }
  find_tile_first_keys(args, Keys::kColumns);
  run(GivesConstant<Gives::kKeyGradients>());
  run(GivesConstant<Gives::kQueryGradients>());
}

template <int kD, int kV>
void backward_bf16(const AttentionGpuBackward& args) {
  run_backward<kD, kV>(args, [&](auto gives) {
    constexpr Gives kGives = decltype(gives)::value;
    launch_backward<kD, kV, kGives>(backward_kernel<kD, kV, kGives>, args);
  });
}
template <int kD>
void backward_dropping(const AttentionGpuBackward& args, const AttentionDropping& dropping) {
  run_backward<kD, kD>(args, [&](auto gives) {
    constexpr Gives kGives = decltype(gives)::value;
    launch_backward<kD, kD, kGives>(backward_dropping_kernel<kD, kGives>, args, Dropping{dropping});
  });
}

}  // namespace trireme::cuda::attention
