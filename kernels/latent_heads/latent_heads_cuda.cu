#include <algorithm>

#include "kernels/common/reduce.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/latent_heads/latent_heads_table.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// ---- heads that are moved: `lanes` neighbouring threads for each, blocks by tokens (x) and heads
// (y). An item of a head is kWidth dims that are copied, as many pairs, or kWidth zeros. ----

template <class T, int kWidth>
struct PairVectors {
  Vector<T, kWidth> first, second;
};

template <int kWidth>
struct Floats {
  float low[kWidth], high[kWidth];
};

/// The elements from `from` on and those `apart` behind them, summed over heads in order.
template <int kWidth, class T>
__device__ __forceinline__ Floats<kWidth> load_sums(const LatentHeadsArgs& args, const T* from,
                                                    std::int64_t apart) {
  Floats<kWidth> sum;
  in_turns<4>(
      0, 1, args.summed,
      [&](std::int64_t h) {
        const T* of_head = from + h * args.turned.head_stride;
        return PairVectors<T, kWidth>{load<kWidth>(of_head), load<kWidth>(of_head + apart)};
      },
      [&](std::int64_t h, const PairVectors<T, kWidth>& in) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const float low = to_float(in.first.at[k]), high = to_float(in.second.at[k]);
          sum.low[k] = h == 0 ? low : sum.low[k] + low;
          sum.high[k] = h == 0 ? high : sum.high[k] + high;
        }
      });
  return sum;
}

template <int kWidth, class T>
__device__ __forceinline__ void store_floats(T* to, std::int64_t apart, const Floats<kWidth>& x) {
  Vector<T, kWidth> low, high;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    low.at[k] = from_float<T>(x.low[k]);
    high.at[k] = from_float<T>(x.high[k]);
  }
  store(to, low);
  store(to + apart, high);
}

/// Two vectors of pairs side by side become their first and their second elements.
template <int kWidth>
__device__ __forceinline__ Floats<kWidth> taken_apart(const Floats<kWidth>& x) {
  Floats<kWidth> y = x;
#pragma unroll
  for (int i = 0; i < 2 * kWidth; ++i) {
    const float from = i < kWidth ? x.low[i % kWidth] : x.high[i % kWidth];
    (i % 2 == 0 ? y.low : y.high)[i / 2] = from;
  }
  return y;
}
template <int kWidth>
__device__ __forceinline__ Floats<kWidth> put_together(const Floats<kWidth>& x) {
  Floats<kWidth> y = x;
#pragma unroll
  for (int i = 0; i < 2 * kWidth; ++i) {
    const float from = i % 2 == 0 ? x.low[i / 2] : x.high[i / 2];
    (i < kWidth ? y.low : y.high)[i % kWidth] = from;
  }
  return y;
}

/// By the angles whose cosines and sines begin there.
template <int kWidth>
__device__ __forceinline__ Floats<kWidth> rotated(const Floats<kWidth>& x, const float* cosines,
                                                  std::int64_t half, LatentTurn turn) {
  constexpr int kPart = kWidth < 4 ? kWidth : 4;
  const float sign = turn == LatentTurn::kBack ? -1.0F : 1.0F;
  Floats<kWidth> y;
#pragma unroll
  for (int first = 0; first < kWidth; first += kPart) {
    const Vector<float, kPart> c = load<kPart>(cosines + first),
                               s = load<kPart>(cosines + half + first);
#pragma unroll
    for (int k = 0; k < kPart; ++k) {
      const float low = x.low[first + k], high = x.high[first + k], sine = sign * s.at[k];
      y.low[first + k] = fmaf(-high, sine, __fmul_rn(low, c.at[k]));
      y.high[first + k] = fmaf(low, sine, __fmul_rn(high, c.at[k]));
    }
  }
  return y;
}

/// kWidth pairs from pair j on.
template <int kWidth, class T>
__device__ __forceinline__ void turn_pairs(const LatentHeadsArgs& args, std::int64_t t, T* out,
                                           const T* in, std::int64_t j) {
  const LatentAngles& angles = args.angles;
  const std::int64_t half = args.turned.dims / 2;
  const bool forward = angles.turn == LatentTurn::kForward,
             beside_in = forward && angles.interleaved,
             beside_out = angles.turn == LatentTurn::kBack && angles.interleaved;
  Floats<kWidth> x = load_sums<kWidth>(args, in + (beside_in ? 2 * j : j),
                                       beside_in ? std::int64_t{kWidth} : half);
  if (beside_in) x = taken_apart(x);
  if (angles.turn != LatentTurn::kNone) {
    const float* cosines = angles.cos_sin + angles.positions[t] * args.turned.dims + j;
    x = rotated(x, cosines, half, angles.turn);
  }
  if (beside_out) x = put_together(x);
  store_floats(out + (beside_out ? 2 * j : j), beside_out ? std::int64_t{kWidth} : half, x);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    heads_kernel(const __grid_constant__ LatentHeadsArgs args, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t t = blockIdx.x;
  const std::int64_t h = std::int64_t{blockIdx.y} * (blockDim.x / static_cast<unsigned>(lanes)) +
                         static_cast<int>(threadIdx.x) / lanes;
  if (h >= args.heads) return;
  const LatentPart &copied = args.copied, &turned = args.turned;
  T* out = static_cast<T*>(args.out) + t * args.token_stride + h * args.head_stride;
  const T* copy =
      static_cast<const T*>(copied.data) + t * copied.token_stride + h * copied.head_stride;
  const T* turn =
      static_cast<const T*>(turned.data) + t * turned.token_stride + h * turned.head_stride;
  const std::int64_t copies = copied.dims / kWidth, turns = turned.dims / 2 / kWidth,
                     filled = copied.dims + turned.dims,
                     items = copies + turns + (args.dims - filled) / kWidth;
  for (std::int64_t item = lane; item < items; item += lanes) {
    if (item < copies) {
      store(out + item * kWidth, load<kWidth>(copy + item * kWidth));
    } else if (item < copies + turns) {
      turn_pairs<kWidth>(args, t, out + copied.dims, turn, (item - copies) * kWidth);
    } else {
      Vector<T, kWidth> zeros;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) zeros.at[k] = from_float<T>(0.0F);
      store(out + filled + (item - copies - turns) * kWidth, zeros);
    }
  }
}

/// Whether every access of a part may be of that many elements.
bool divides(std::int64_t width, const LatentPart& part) {
  return part.dims == 0 || (part.token_stride % width == 0 && part.head_stride % width == 0);
}

void heads(const LatentHeadsArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr std::int64_t kVector = kWide<T>;
    const bool wide =
        aligned_to_16(args.out, args.copied.data, args.turned.data, args.angles.cos_sin) &&
        args.token_stride % kVector == 0 && args.head_stride % kVector == 0 &&
        args.dims % kVector == 0 && args.copied.dims % kVector == 0 &&
        args.turned.dims % (2 * kVector) == 0 && divides(kVector, args.copied) &&
        divides(kVector, args.turned);
    const std::int64_t items = (args.dims - args.turned.dims / 2) / (wide ? kVector : 1);
    int lanes = 1;
    while (lanes < kThreads && lanes < items) lanes *= 2;
    const std::int64_t here = std::min<std::int64_t>(args.heads, kThreads / lanes);
    launch(wide ? heads_kernel<T, kWide<T>> : heads_kernel<T, 1>,
           {.grid = dim3(static_cast<unsigned>(args.tokens),
                         static_cast<unsigned>(blocks_for(args.heads, here))),
            .block = static_cast<unsigned>(lanes * here),
            .stream = stream_of(args.exec),
            .name = args.name},
           args, lanes);
  });
}

// ---- products with w ----

constexpr int kTokens = kLatentTokens;

/// Of a chunk of rows the numbers that multiply them; then what each warp has summed.
constexpr int kChunkRows = 128;
template <int kWidth>
struct QuerySums {
  float in[kChunkRows][kTokens];
  float of_warp[kWarps][kTokens][32 * kWidth];
};

/// A block: a head (x), 32 x kWidth columns (y), a few tokens (z). Warps take rows in turns; their
/// sums are added in order.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    queries_kernel(const __grid_constant__ LatentAbsorbedArgs args) {
  auto& shared = smem<QuerySums<kWidth>>();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const std::int64_t h = blockIdx.x, first = std::int64_t{blockIdx.z} * kTokens,
                     column = (std::int64_t{blockIdx.y} * 32 + lane) * kWidth;
  const int count = static_cast<int>(min(std::int64_t{kTokens}, args.tokens - first));
  const T* in = static_cast<const T*>(args.in) + first * args.in_token + h * args.in_head;
  const T* w = static_cast<const T*>(args.w) + h * args.w_stride + column;
  float sum[kTokens][kWidth] = {};
  for (std::int64_t begin = 0; begin < args.rows; begin += kChunkRows) {
    const int rows = static_cast<int>(min(std::int64_t{kChunkRows}, args.rows - begin));
    __syncthreads();
    for (int i = thread; i < rows * kTokens; i += kThreads) {
      const int t = i / rows, n = i % rows;
      shared.in[n][t] = t < count ? to_float(in[t * args.in_token + begin + n]) : 0.0F;
    }
    __syncthreads();
    if (column >= args.latent) continue;
    in_turns<4>(
        warp, kWarps, rows,
        [&](std::int64_t n) { return load<kWidth>(w + (begin + n) * args.latent); },
        [&](std::int64_t n, const Vector<T, kWidth>& row) {
#pragma unroll
          for (int t = 0; t < kTokens; ++t) {
#pragma unroll
            for (int k = 0; k < kWidth; ++k)
              sum[t][k] = fmaf(shared.in[n][t], to_float(row.at[k]), sum[t][k]);
          }
        });
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) shared.of_warp[warp][t][lane * kWidth + k] = sum[t][k];
  }
  __syncthreads();
  static_assert(kWarps == kTokens);  // a warp adds up what all have summed for one
  if (warp >= count || column >= args.latent) return;
  Vector<T, kWidth> out;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    float total = shared.of_warp[0][warp][lane * kWidth + k];
#pragma unroll
    for (int other = 1; other < kWarps; ++other)
      total += shared.of_warp[other][warp][lane * kWidth + k];
    out.at[k] = from_float<T>(total);
  }
  store(static_cast<T*>(args.out) + (first + warp) * args.out_token + h * args.out_head + column,
        out);
}

constexpr int kChunk = 512, kWarpRows = 4, kColumns = 4;
struct ValueInputs {
  float in[kTokens][kChunk];
};

/// A block: a head (x), kWarps x kWarpRows rows (y), a few tokens (z). A warp has whole rows, a
/// lane kColumns neighbours of each at a time: the order of sums is that of any kWidth, in which w
/// is read and results are stored.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    values_kernel(const __grid_constant__ LatentAbsorbedArgs args) {
  auto& shared = smem<ValueInputs>();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const std::int64_t h = blockIdx.x, first = std::int64_t{blockIdx.z} * kTokens,
                     row = (std::int64_t{blockIdx.y} * kWarps + warp) * kWarpRows;
  const int count = static_cast<int>(min(std::int64_t{kTokens}, args.tokens - first)),
            rows = static_cast<int>(min(std::int64_t{kWarpRows}, args.rows - row));
  const T* in = static_cast<const T*>(args.in) + first * args.in_token + h * args.in_head;
  const T* w = static_cast<const T*>(args.w) + h * args.w_stride + row * args.latent;
  float sum[kWarpRows][kTokens] = {};
  for (std::int64_t begin = 0; begin < args.latent; begin += kChunk) {
    const int columns = static_cast<int>(min(std::int64_t{kChunk}, args.latent - begin));
    __syncthreads();
    const int filled = (columns + kColumns - 1) / kColumns * kColumns;
    for (int i = thread; i < kTokens * filled; i += kThreads) {
      const int t = i / filled, l = i % filled;
      const bool given = t < count && l < columns;
      shared.in[t][l] = given ? to_float(in[t * args.in_token + begin + l]) : 0.0F;
    }
    __syncthreads();
    for (int l = lane * kColumns; l < columns; l += 32 * kColumns) {
      Vector<T, kWidth> of_row[kWarpRows][kColumns / kWidth] = {};
#pragma unroll
      for (int n = 0; n < kWarpRows; ++n) {
#pragma unroll
        for (int k = 0; k < kColumns / kWidth; ++k) {
          if (n < rows && l + k * kWidth < columns)
            of_row[n][k] = load<kWidth>(w + n * args.latent + begin + l + k * kWidth);
        }
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const auto x = load<kColumns>(&shared.in[t][l]);
#pragma unroll
        for (int n = 0; n < kWarpRows; ++n) {
#pragma unroll
          for (int k = 0; k < kColumns; ++k)
            sum[n][t] = fmaf(x.at[k], to_float(of_row[n][k / kWidth].at[k % kWidth]), sum[n][t]);
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= count) break;
    float total[kWarpRows];
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) total[n] = warp_sum(sum[n][t]);
    T* out = static_cast<T*>(args.out) + (first + t) * args.out_token + h * args.out_head + row;
#pragma unroll
    for (int n = 0; n < kWarpRows; n += kWidth) {
      Vector<T, kWidth> of_rows;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) of_rows.at[k] = from_float<T>(total[n + k]);
      if (lane == 0 && n < rows) store(out + n, of_rows);
    }
  }
}

/// call(width constant): four elements at a time where w and the results, as many for each head as
/// that divides, are aligned. What a token gets does not depend on it.
template <class T, class Call>
void for_width(const LatentAbsorbedArgs& args, std::int64_t results, Call call) {
  constexpr int kWidth = 4;
  const bool wide = aligned_to_16(args.w, args.out) && args.w_stride % kWidth == 0 &&
                    args.latent % kWidth == 0 && results % kWidth == 0 &&
                    args.out_token % kWidth == 0 && args.out_head % kWidth == 0;
  if (wide) return call(Width<kWidth>());
  call(Width<1>());
}

LaunchConfig config_of(const LatentAbsorbedArgs& args, std::int64_t blocks, std::size_t smem_bytes,
                       const char* name) {
  return {.grid = dim3(static_cast<unsigned>(args.heads), static_cast<unsigned>(blocks),
                       static_cast<unsigned>(blocks_for(args.tokens, kTokens))),
          .block = kThreads,
          .smem_bytes = smem_bytes,
          .stream = stream_of(args.exec),
          .name = name};
}

void queries(const LatentAbsorbedArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_width<T>(args, args.latent, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(queries_kernel<T, kWidth>,
             config_of(args, blocks_for(args.latent, 32 * kWidth), sizeof(QuerySums<kWidth>),
                       "latent_absorbed_queries"),
             args);
    });
  });
}

void values(const LatentAbsorbedArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_width<T>(args, args.rows, [&](auto width) {
      launch(values_kernel<T, decltype(width)::value>,
             config_of(args, blocks_for(args.rows, std::int64_t{kWarps} * kWarpRows),
                       sizeof(ValueInputs), "latent_absorbed_values"),
             args);
    });
  });
}

}  // namespace

const LatentHeadsKernels latent_heads_cuda = {heads, queries, values};

}  // namespace trireme::cuda
