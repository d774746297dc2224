#include "kernels/common/gpu_scratch.h"
#include "kernels/expert_rows/expert_rows.cuh"
#include "kernels/glu/glu_gate.cuh"

namespace trireme::cuda {
namespace {

using namespace expert_rows;

// ---- the table of rows ----
// A token names an expert once, so that a tile of tokens is a bit for each of them and expert. The
// rows of an expert in a tile are bits counted, those before a token the bits below its own: stable
// whatever the order in which threads come.

constexpr int kTileTokens = static_cast<int>(gpu_scratch::kExpertRowsTile);
constexpr int kTileWords = kTileTokens / 32;
constexpr int kHereMax = static_cast<int>(kExpertsHereMax);

struct Bits {
  unsigned of_expert[kHereMax][kTileWords];

  /// Of an expert's tokens before `token` of the tile; of all with kTileTokens.
  [[nodiscard]] __device__ __forceinline__ int before(std::int64_t expert, int token) const {
    int count = 0;
#pragma unroll
    for (int word = 0; word < kTileWords; ++word) {
      const int below = min(max(token - 32 * word, 0), 32);
      const unsigned mask = below == 32 ? ~0U : (1U << below) - 1;
      count += __popc(of_expert[expert][word] & mask);
    }
    return count;
  }
};

/// What stands in scratch memory: of each expert here and tile the rows in it, then those of the
/// expert before it; and where each expert's rows begin.
struct Counts {
  std::int32_t *of_tile, *begins;
  std::int64_t tiles;
};
Counts counts_of(const ExpertRowsArgs& args) {
  auto* memory = reinterpret_cast<std::int32_t*>(args.scratch);
  const std::int64_t tiles = blocks_for(args.tokens, kTileTokens);
  return {memory, memory + args.experts_here * tiles, tiles};
}

std::size_t rows_scratch_bytes(const ExpertRowsArgs& args) {
  return static_cast<std::size_t>(gpu_scratch::expert_rows_bytes(args.tokens, args.experts_here));
}

/// The tile's tokens that sources have.
struct Tile {
  std::int64_t first, end;

  static __device__ __forceinline__ Tile of_block(const ExpertRowsArgs& args) {
    const std::int64_t first = std::int64_t{blockIdx.x} * kTileTokens;
    return {first, min(first + kTileTokens, std::int64_t{args.sources[args.source_count]})};
  }
};

__device__ __forceinline__ void set_bits(Bits& bits, const ExpertRowsArgs& args, const Tile& tile) {
  auto* words = &bits.of_expert[0][0];
  for (std::int64_t i = threadIdx.x; i < args.experts_here * kTileWords; i += kThreads)
    words[i] = 0;
  __syncthreads();
  const std::int64_t end = tile.end * args.slots;
  for (std::int64_t slot = tile.first * args.slots + threadIdx.x; slot < end; slot += kThreads) {
    const std::int32_t expert = args.place[args.chosen[slot]];
    const auto token = static_cast<int>(slot / args.slots - tile.first);
    if (expert >= 0) atomicOr(&bits.of_expert[expert][token / 32], 1U << (token % 32));
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) count_kernel(ExpertRowsArgs args, Counts counts) {
  Bits& bits = smem<Bits>();
  set_bits(bits, args, Tile::of_block(args));
  for (std::int64_t g = threadIdx.x; g < args.experts_here; g += kThreads)
    counts.of_tile[g * counts.tiles + blockIdx.x] = bits.before(g, kTileTokens);
}

/// Of the lanes before this one; `sum` becomes that of all.
__device__ __forceinline__ std::int32_t lanes_before(std::int32_t own, std::int32_t& sum) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  std::int32_t end = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t before = __shfl_up_sync(kAllLanes, end, distance);
    if (lane >= distance) end += before;
  }
  sum = __shfl_sync(kAllLanes, end, 31);
  return end - own;
}

/// values[i] = the sum of those before, for i < count, by a warp; gives the sum of all.
__device__ __forceinline__ std::int32_t sums_before(std::int32_t* values, std::int64_t count) {
  std::int32_t total = 0;
  for (std::int64_t first = 0; first < count; first += 32) {
    const std::int64_t i = first + threadIdx.x % 32;
    std::int32_t sum = 0;
    const std::int32_t before = lanes_before(i < count ? values[i] : 0, sum);
    if (i < count) values[i] = total + before;
    total += sum;
  }
  return total;
}

constexpr int kBeginThreads = 1024;

struct Begins {
  std::int32_t of_expert[kHereMax + 1];
};

/// One block. Sources that begin behind all tokens have no tile: their segments end an expert.
__global__ void __launch_bounds__(kBeginThreads) begin_kernel(ExpertRowsArgs args, Counts counts) {
  Begins& begins = smem<Begins>();
  const std::int64_t here = args.experts_here, sources = args.source_count;
  for (std::int64_t g = threadIdx.x / 32; g < here; g += kBeginThreads / 32) {
    const std::int32_t rows = sums_before(counts.of_tile + g * counts.tiles, counts.tiles);
    if (threadIdx.x % 32 == 0) begins.of_expert[g] = rows;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const std::int32_t rows = sums_before(begins.of_expert, here);
    if (threadIdx.x == 0) begins.of_expert[here] = args.begins[here * sources] = rows;
  }
  __syncthreads();
  const std::int32_t tokens = args.sources[sources];
  for (std::int64_t g = threadIdx.x; g < here; g += kBeginThreads) {
    counts.begins[g] = begins.of_expert[g];
    for (std::int64_t p = sources - 1; p >= 0 && args.sources[p] == tokens; --p)
      args.begins[g * sources + p] = begins.of_expert[g + 1];
  }
}

__global__ void __launch_bounds__(kThreads) rows_kernel(ExpertRowsArgs args, Counts counts) {
  Bits& bits = smem<Bits>();
  const Tile tile = Tile::of_block(args);
  set_bits(bits, args, tile);
  const auto row_of = [&](std::int64_t expert, std::int64_t token) {
    return counts.begins[expert] + counts.of_tile[expert * counts.tiles + blockIdx.x] +
           bits.before(expert, static_cast<int>(token - tile.first));
  };
  const std::int64_t end = min(tile.first + kTileTokens, args.tokens) * args.slots;
  for (std::int64_t slot = tile.first * args.slots + threadIdx.x; slot < end; slot += kThreads) {
    const std::int64_t token = slot / args.slots;
    const std::int32_t expert = token < tile.end ? args.place[args.chosen[slot]] : -1;
    const std::int32_t row = expert < 0 ? -1 : row_of(expert, token);
    args.slot_row[slot] = row;
    if (row >= 0 && row < args.rows_max) args.row_slot[row] = static_cast<std::int32_t>(slot);
  }
  for (std::int64_t p = 0; p < args.source_count; ++p) {
    const std::int64_t token = args.sources[p];
    if (token < tile.first || token >= tile.end) continue;
    for (std::int64_t g = threadIdx.x; g < args.experts_here; g += kThreads)
      args.begins[g * args.source_count + p] = row_of(g, token);
  }
}

void rows(const ExpertRowsArgs& args) {
  const Counts counts = counts_of(args);
  const auto config = [&](std::int64_t blocks, int threads, std::size_t smem_bytes) {
    return LaunchConfig{.grid = static_cast<unsigned>(blocks),
                        .block = static_cast<unsigned>(threads),
                        .smem_bytes = smem_bytes,
                        .stream = stream_of(args.exec),
                        .name = "expert_rows"};
  };
  if (counts.tiles > 0)
    launch(count_kernel, config(counts.tiles, kThreads, sizeof(Bits)), args, counts);
  launch(begin_kernel, config(1, kBeginThreads, sizeof(Begins)), args, counts);
  if (counts.tiles > 0)
    launch(rows_kernel, config(counts.tiles, kThreads, sizeof(Bits)), args, counts);
}

// ---- rows of tokens ----

/// As many rows as there could be have blocks; those behind the last leave.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherRowsArgs args) {
  const auto [row, first] = share_of_warp(32 * kCount * kDepth, args.channels);
  if (row >= args.rows_max || (args.row_count != nullptr && row >= *args.row_count)) return;
  const T* x = static_cast<const T*>(args.x) + args.row_slot[row] / args.slots * args.channels;
  T* to = static_cast<T*>(args.rows) + row * args.channels;
  in_turns<kDepth>(
      first + threadIdx.x % 32 * kCount, 32 * kCount,
      min(first + 32 * kCount * kDepth, args.channels),
      [&](std::int64_t column) { return load<kCount>(x + column); },
      [&](std::int64_t column, const Vector<T, kCount>& values) { store(to + column, values); });
}

void gather(const GatherRowsArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    constexpr int kCount = kWide<T>;
    const bool wide = args.channels % kCount == 0 && aligned_to_16(args.rows, args.x);
    launch(wide ? gather_kernel<T, kCount> : gather_kernel<T, 1>,
           config_of_shares(args.exec, args.rows_max, args.channels,
                            32 * kDepth * (wide ? kCount : 1), "gather_rows"),
           args);
  });
}

/// Rows are asked for kDepth at a time. A sum begins with -0, which leaves any first value as it
/// is.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) combine_kernel(CombineRowsArgs args) {
  const auto [t, first] = share_of_warp(32 * kCount, args.channels);
  const std::int64_t column = first + threadIdx.x % 32 * kCount;
  if (t >= args.tokens || column >= args.channels) return;
  const std::int32_t* slot_row = args.slot_row + t * args.slots;
  const T* rows = static_cast<const T*>(args.rows) + column;
  const std::int64_t at = t * args.channels + column;
  float sum[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) sum[k] = -0.0F;
  bool any = args.addend != nullptr;
  for (std::int64_t begin = 0; begin < args.slots; begin += kDepth) {
    Vector<T, kCount> taken[kDepth];
    bool has[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const std::int64_t row = begin + d < args.slots ? slot_row[begin + d] : -1;
      has[d] = row >= 0;
      if (has[d]) taken[d] = load<kCount>(rows + row * args.channels);
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (!has[d]) continue;
      any = true;
#pragma unroll
      for (int k = 0; k < kCount; ++k) sum[k] += to_float(taken[d].at[k]);
    }
  }
  Vector<T, kCount> added = {}, y;
  if (args.addend != nullptr) added = load<kCount>(static_cast<const T*>(args.addend) + at);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (args.addend != nullptr) sum[k] += to_float(added.at[k]);
    y.at[k] = from_float<T>(any ? sum[k] : 0.0F);
  }
  store(static_cast<T*>(args.y) + at, y);
}

void combine(const CombineRowsArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    constexpr int kCount = kWide<T>;
    const bool wide = args.channels % kCount == 0 && aligned_to_16(args.y, args.rows, args.addend);
    launch(wide ? combine_kernel<T, kCount> : combine_kernel<T, 1>,
           config_of_shares(args.exec, args.tokens, args.channels, 32 * (wide ? kCount : 1),
                            "combine_rows"),
           args);
  });
}

// ---- gated linear units with weights ----

constexpr int kForwardTurns = 4, kBackwardTurns = 2;

template <GluGate kGate, int kWidth, class T>
__global__ void __launch_bounds__(kThreads) glu_forward_kernel(WeightedGluForwardArgs args) {
  const WeightedGluRows& rows = args.rows;
  constexpr std::int64_t kColumns = 32 * kWidth * kForwardTurns;
  const auto [r, first] = share_of_warp(kColumns, rows.ffn);
  if (!has_row(rows, r)) return;
  const float weight = weight_of(rows, r);
  const T *gate = static_cast<const T*>(rows.gate_up) + r * 2 * rows.ffn, *up = gate + rows.ffn;
  T* h = static_cast<T*>(args.h) + r * rows.ffn;
  in_turns<kForwardTurns>(
      first + threadIdx.x % 32 * kWidth, 32 * kWidth, min(first + kColumns, rows.ffn),
      [&](std::int64_t f) {
        return GateUp<T, kWidth>{load<kWidth>(gate + f), load<kWidth>(up + f)};
      },
      [&](std::int64_t f, const GateUp<T, kWidth>& in) {
        Vector<T, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          out.at[k] =
              from_float<T>(glu<kGate>(to_float(in.gate.at[k]), to_float(in.up.at[k])) * weight);
        store(h + f, out);
      });
}

/// A warp takes a row, for the sum over it. What it writes it has read: dgate_up may be gate_up and
/// h dh.
template <GluGate kGate, int kWidth, class T>
__global__ void __launch_bounds__(kThreads) glu_backward_kernel(WeightedGluBackwardArgs args) {
  const WeightedGluRows& rows = args.rows;
  const std::int64_t r = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, ffn = rows.ffn;
  if (!has_row(rows, r)) return;
  const float weight = weight_of(rows, r);
  const T *gate = static_cast<const T*>(rows.gate_up) + r * 2 * ffn, *up = gate + ffn;
  const T* dh = static_cast<const T*>(args.dh) + r * ffn;
  T *dgate = static_cast<T*>(args.dgate_up) + r * 2 * ffn, *h = static_cast<T*>(args.h) + r * ffn;
  float dweight = 0;
  in_turns<kBackwardTurns>(
      threadIdx.x % 32 * kWidth, 32 * kWidth, ffn,
      [&](std::int64_t f) {
        return GateUpGradient<T, kWidth>{load<kWidth>(gate + f), load<kWidth>(up + f),
                                         load<kWidth>(dh + f)};
      },
      [&](std::int64_t f, const GateUpGradient<T, kWidth>& in) {
        Vector<T, kWidth> out, dg, du;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const float d = to_float(in.dact.at[k]);
          const GluGradient gradient =
              gradient_of<kGate>(to_float(in.gate.at[k]), to_float(in.up.at[k]), d * weight);
          dweight = fmaf(d, gradient.act, dweight);
          out.at[k] = from_float<T>(gradient.act * weight);
          dg.at[k] = from_float<T>(gradient.gate);
          du.at[k] = from_float<T>(gradient.up);
        }
        store(h + f, out);
        store(dgate + f, dg);
        store(dgate + ffn + f, du);
      });
  dweight = warp_sum(dweight);
  if (threadIdx.x % 32 == 0) args.dweights[r] = dweight;
}

/// What a clamped unit reads of a row, its expert's biases added.
template <class T, int kWidth>
struct ClampedRow {
  const T *gate, *bias;
  std::int64_t ffn;

  __device__ __forceinline__ ClampedRow(const WeightedGluRows& rows, std::int64_t r)
      : gate(static_cast<const T*>(rows.gate_up) + r * 2 * rows.ffn),
        bias(static_cast<const T*>(rows.bias) + expert_of(rows.experts, r) * 2 * rows.ffn),
        ffn(rows.ffn) {}
  struct Taken {
    Vector<T, kWidth> gate, up, gate_bias, up_bias;
    [[nodiscard]] __device__ __forceinline__ float gate_at(int k) const {
      return to_float(gate.at[k]) + to_float(gate_bias.at[k]);
    }
    [[nodiscard]] __device__ __forceinline__ float up_at(int k) const {
      return to_float(up.at[k]) + to_float(up_bias.at[k]);
    }
  };
  [[nodiscard]] __device__ __forceinline__ Taken at(std::int64_t f) const {
    return {load<kWidth>(gate + f), load<kWidth>(gate + ffn + f), load<kWidth>(bias + f),
            load<kWidth>(bias + ffn + f)};
  }
};

constexpr int kClampedTurns = 2;

template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) clamped_forward_kernel(WeightedGluForwardArgs args) {
  const WeightedGluRows& rows = args.rows;
  constexpr std::int64_t kColumns = 32 * kWidth * kClampedTurns;
  const auto [r, first] = share_of_warp(kColumns, rows.ffn);
  if (!has_row(rows, r)) return;
  const float weight = weight_of(rows, r);
  const ClampedRow<T, kWidth> row(rows, r);
  T* h = static_cast<T*>(args.h) + r * rows.ffn;
  in_turns<kClampedTurns>(
      first + threadIdx.x % 32 * kWidth, 32 * kWidth, min(first + kColumns, rows.ffn),
      [&](std::int64_t f) { return row.at(f); },
      [&](std::int64_t f, const typename ClampedRow<T, kWidth>::Taken& in) {
        Vector<T, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const ClampedGlu unit(in.gate_at(k), in.up_at(k), rows.alpha, rows.limit);
          out.at[k] = from_float<T>(unit.act() * weight);
        }
        store(h + f, out);
      });
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) clamped_backward_kernel(WeightedGluBackwardArgs args) {
  const WeightedGluRows& rows = args.rows;
  const std::int64_t r = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, ffn = rows.ffn;
  if (!has_row(rows, r)) return;
  const float weight = weight_of(rows, r);
  const ClampedRow<T, kWidth> row(rows, r);
  const T* dh = static_cast<const T*>(args.dh) + r * ffn;
  T *dgate = static_cast<T*>(args.dgate_up) + r * 2 * ffn, *h = static_cast<T*>(args.h) + r * ffn;
  float dweight = 0;
  for (std::int64_t f = threadIdx.x % 32 * kWidth; f < ffn; f += 32 * kWidth) {
    const auto in = row.at(f);
    const Vector<T, kWidth> dact = load<kWidth>(dh + f);
    Vector<T, kWidth> out, dg, du;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float d = to_float(dact.at[k]);
      const ClampedGlu unit(in.gate_at(k), in.up_at(k), rows.alpha, rows.limit);
      dweight = fmaf(d, unit.act(), dweight);
      out.at[k] = from_float<T>(unit.act() * weight);
      dg.at[k] = from_float<T>(unit.dgate(d * weight));
      du.at[k] = from_float<T>(unit.dup(d * weight));
    }
    store(h + f, out);
    store(dgate + f, dg);
    store(dgate + ffn + f, du);
  }
  dweight = warp_sum(dweight);
  if (threadIdx.x % 32 == 0) args.dweights[r] = dweight;
}

template <class T>
bool is_wide(const WeightedGluRows& rows) {
  return rows.ffn % kWide<T> == 0 && (rows.bias == nullptr || aligned_to_16(rows.bias));
}

/// kernels: of vectors of kWide elements, of single ones; the columns of a warp in turns of those.
template <class T, class Wide, class Narrow>
void launch_forward(const WeightedGluForwardArgs& args, Wide wide, Narrow narrow, int turns) {
  const WeightedGluRows& rows = args.rows;
  const bool vectors = is_wide<T>(rows) && aligned_to_16(args.h, rows.gate_up);
  launch(vectors ? wide : narrow,
         config_of_shares(args.exec, rows.rows_max, rows.ffn, 32 * turns * (vectors ? kWide<T> : 1),
                          "weighted_glu_forward"),
         args);
}
void glu_forward(const WeightedGluForwardArgs& args) {
  for_type(args.rows.type, [&](auto type) {
    using T = decltype(type);
    constexpr int kWidth = kWide<T>;
    if (args.rows.bias != nullptr)
      return launch_forward<T>(args, clamped_forward_kernel<kWidth, T>,
                               clamped_forward_kernel<1, T>, kClampedTurns);
    if (args.rows.gate == GluGate::kSilu)
      return launch_forward<T>(args, glu_forward_kernel<GluGate::kSilu, kWidth, T>,
                               glu_forward_kernel<GluGate::kSilu, 1, T>, kForwardTurns);
    launch_forward<T>(args, glu_forward_kernel<GluGate::kGelu, kWidth, T>,
                      glu_forward_kernel<GluGate::kGelu, 1, T>, kForwardTurns);
  });
}

template <class T, class Wide, class Narrow>
void launch_backward(const WeightedGluBackwardArgs& args, Wide wide, Narrow narrow) {
  const WeightedGluRows& rows = args.rows;
  const bool vectors =
      is_wide<T>(rows) && aligned_to_16(args.dgate_up, args.h, args.dh, rows.gate_up);
  launch(vectors ? wide : narrow,
         {.grid = static_cast<unsigned>(blocks_for(rows.rows_max, kWarps)),
          .block = kThreads,
          .stream = stream_of(args.exec),
          .name = "weighted_glu_backward"},
         args);
}
void glu_backward(const WeightedGluBackwardArgs& args) {
  for_type(args.rows.type, [&](auto type) {
    using T = decltype(type);
    constexpr int kWidth = kWide<T>;
    if (args.rows.bias != nullptr)
      return launch_backward<T>(args, clamped_backward_kernel<kWidth, T>,
                                clamped_backward_kernel<1, T>);
    if (args.rows.gate == GluGate::kSilu)
      return launch_backward<T>(args, glu_backward_kernel<GluGate::kSilu, kWidth, T>,
                                glu_backward_kernel<GluGate::kSilu, 1, T>);
    launch_backward<T>(args, glu_backward_kernel<GluGate::kGelu, kWidth, T>,
                       glu_backward_kernel<GluGate::kGelu, 1, T>);
  });
}

}  // namespace

const ExpertRowsKernels expert_rows_cuda = {rows,
                                            rows_scratch_bytes,
                                            gather,
                                            combine,
                                            glu_forward,
                                            glu_backward,
                                            expert_rows::expert_bias_forward,
                                            expert_rows::expert_bias_backward,
                                            expert_rows::row_factors};

}  // namespace trireme::cuda
