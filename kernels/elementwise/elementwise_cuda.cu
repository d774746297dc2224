#include <type_traits>

#include "kernels/common/column_pieces.cuh"
#include "kernels/common/gpu_scratch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/elementwise/elementwise_table.h"

namespace trireme::cuda {
namespace {

constexpr int kTurns = 4;
constexpr int kVector = 4;  // 16 bytes of f32, 8 of bf16: what casts and sums mix

template <int kWidth, class To, class From>
__global__ void __launch_bounds__(kTurnThreads)
    cast_kernel(To* destination, const From* source, std::int64_t items) {
  for_each_item<kTurns>(
      items, [&](std::int64_t i) { return load<kWidth>(source + i * kWidth); },
      [&](std::int64_t i, const Vector<From, kWidth>& in) {
        Vector<To, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) out.at[k] = from_float<To>(to_float(in.at[k]));
        store(destination + i * kWidth, out);
      });
}

template <class Sum, class T, int kWidth>
struct Summands {
  Vector<Sum, kWidth> sum;
  Vector<T, kWidth> more;
};

template <int kWidth, class Sum, class T>
__global__ void __launch_bounds__(kTurnThreads)
    accumulate_kernel(Sum* destination, const T* source, std::int64_t items) {
  for_each_item<kTurns>(
      items,
      [&](std::int64_t i) {
        return Summands<Sum, T, kWidth>{load<kWidth>(destination + i * kWidth),
                                        load<kWidth>(source + i * kWidth)};
      },
      [&](std::int64_t i, const Summands<Sum, T, kWidth>& in) {
        Vector<Sum, kWidth> sum;
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          sum.at[k] = from_float<Sum>(to_float(in.sum.at[k]) + to_float(in.more.at[k]));
        store(destination + i * kWidth, sum);
      });
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kTurnThreads)
    scale_kernel(T* x, float factor, std::int64_t items) {
  for_each_item<kTurns>(
      items, [&](std::int64_t i) { return load<kWidth>(x + i * kWidth); },
      [&](std::int64_t i, const Vector<T, kWidth>& in) {
        Vector<T, kWidth> scaled;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) scaled.at[k] = from_float<T>(to_float(in.at[k]) * factor);
        store(x + i * kWidth, scaled);
      });
}

/// Rows of `others` are `stride` elements apart. Of at most 2^kLevels ranks: neighbours are added
/// as a counter carries, held[l] being a sum of 2^l ranks where bit l of r is set.
template <class Levels, int kWidth, class T>
__global__ void __launch_bounds__(kTurnThreads)
    sum_ranks_kernel(T* own, const T* others, std::int64_t stride, std::int64_t others_count,
                     std::int64_t rank, std::int64_t items) {
  constexpr int kLevels = Levels::value;
  for_each_item<kTurns>(
      items, [&](std::int64_t i) { return load<kWidth>(own + i * kWidth); },
      [&](std::int64_t i, const Vector<T, kWidth>& mine) {
        float sum[kWidth] = {}, held[kLevels][kWidth] = {};
        for (std::int64_t r = 0; r <= others_count; ++r) {
          const std::int64_t row = r < rank ? r : r - 1;
          const Vector<T, kWidth> part =
              r == rank ? mine : load<kWidth>(others + row * stride + i * kWidth);
#pragma unroll
          for (int k = 0; k < kWidth; ++k) sum[k] = to_float(part.at[k]);
          bool carries = true;
#pragma unroll
          for (int l = 0; l < kLevels; ++l) {
            const bool adds = (r >> l) % 2 != 0;
#pragma unroll
            for (int k = 0; k < kWidth; ++k) {
              if (carries && adds) sum[k] = held[l][k] + sum[k];
              if (carries && !adds) held[l][k] = sum[k];
            }
            if (!adds) carries = carries && r == others_count;  // the last meets all that are held
          }
        }
        Vector<T, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) out.at[k] = from_float<T>(sum[k]);
        store(own + i * kWidth, out);
      });
}

template <class To, class From>
void cast_elements(const CastArgs& args) {
  auto* to = static_cast<To*>(args.destination);
  const auto* from = static_cast<const From*>(args.source);
  for_vectors_and_rest<kVector>(
      args.count, aligned_to_16(to, from), [&](auto width, std::int64_t first, std::int64_t items) {
        launch(cast_kernel<decltype(width)::value, To, From>,
               config_of_turns(args.exec, kTurns, items, "cast"), to + first, from + first, items);
      });
}

void cast(const CastArgs& args) {
  if (args.destination_type == args.source_type) {  // bytes, not numbers: a NaN keeps its payload
    check_call("cast",
               cudaMemcpyAsync(args.destination, args.source,
                               static_cast<std::size_t>(args.count) * size_of(args.source_type),
                               cudaMemcpyDeviceToDevice, stream_of(args.exec)));
  } else if (args.destination_type == DType::kBF16) {
    cast_elements<bf16, float>(args);
  } else {
    cast_elements<float, bf16>(args);
  }
}

void copy_rows(const CopyRowsArgs& args) {
  check_call("copy_rows", cudaMemcpy2DAsync(args.destination, args.destination_stride, args.source,
                                            args.source_stride, args.row_bytes, args.rows,
                                            cudaMemcpyDeviceToDevice, stream_of(args.exec)));
}

/// A block copies a row, in units of T.
template <class T>
__global__ void __launch_bounds__(kTurnThreads) put_rows_kernel(const CopyRowsArgs args) {
  const auto row = static_cast<std::size_t>(blockIdx.x);
  const auto* from =
      reinterpret_cast<const T*>(static_cast<const char*>(args.source) + row * args.source_stride);
  auto* to = reinterpret_cast<T*>(static_cast<char*>(args.destination) +
                                  static_cast<std::size_t>(args.to[row]) * args.destination_stride);
  for (std::size_t i = threadIdx.x; i < args.row_bytes / sizeof(T); i += kTurnThreads)
    to[i] = from[i];
}

void put_rows(const CopyRowsArgs& args) {
  const bool words = reinterpret_cast<std::uintptr_t>(args.source) % 16 == 0 &&
                     reinterpret_cast<std::uintptr_t>(args.destination) % 16 == 0 &&
                     (args.row_bytes | args.source_stride | args.destination_stride) % 16 == 0;
  launch(words ? put_rows_kernel<Vector<float, 4>> : put_rows_kernel<std::uint16_t>,
         {.grid = static_cast<unsigned>(args.rows),
          .block = kTurnThreads,
          .stream = stream_of(args.exec),
          .name = "put_heads"},
         args);
}

void clear(const ClearArgs& args) {
  check_call("clear", cudaMemsetAsync(args.destination, 0, args.bytes, stream_of(args.exec)));
}

template <class Sum, class T>
void accumulate_elements(const AccumulateArgs& args) {
  auto* destination = static_cast<Sum*>(args.destination);
  const auto* source = static_cast<const T*>(args.source);
  for_vectors_and_rest<kVector>(args.count, aligned_to_16(destination, source),
                                [&](auto width, std::int64_t first, std::int64_t items) {
                                  launch(accumulate_kernel<decltype(width)::value, Sum, T>,
                                         config_of_turns(args.exec, kTurns, items, "accumulate"),
                                         destination + first, source + first, items);
                                });
}

void accumulate(const AccumulateArgs& args) {
  for_type(args.source_type, [&](auto type) {
    using T = decltype(type);
    if (args.destination_type == DType::kF32) return accumulate_elements<float, T>(args);
    accumulate_elements<T, T>(args);
  });
}

void scale(const ScaleArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    auto* x = static_cast<T*>(args.x);
    for_vectors_and_rest<kVector>(
        args.count, aligned_to_16(x), [&](auto width, std::int64_t first, std::int64_t items) {
          launch(scale_kernel<decltype(width)::value, T>,
                 config_of_turns(args.exec, kTurns, items, "scale"), x + first, args.factor, items);
        });
  });
}

template <class Levels, class T>
void sum_elements_of_ranks(const SumRanksArgs& args) {
  auto* own = static_cast<T*>(args.own);
  const auto* others = static_cast<const T*>(args.others);
  constexpr auto kSpan = static_cast<std::int64_t>(kVector * sizeof(T));
  const bool rows_aligned = args.count * static_cast<std::int64_t>(sizeof(T)) % kSpan == 0;
  for_vectors_and_rest<kVector>(args.count, rows_aligned && aligned_to_16(own, others),
                                [&](auto width, std::int64_t first, std::int64_t items) {
                                  launch(sum_ranks_kernel<Levels, decltype(width)::value, T>,
                                         config_of_turns(args.exec, kTurns, items, "sum_ranks"),
                                         own + first, others + first, args.count, args.others_count,
                                         args.rank, items);
                                });
}

void sum_ranks(const SumRanksArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    constexpr int kFew = 3, kMany = 16;  // what is held stays in registers
    using Few = std::integral_constant<int, kFew>;
    using Many = std::integral_constant<int, kMany>;
    if (args.others_count < 1 << kFew) return sum_elements_of_ranks<Few, T>(args);
    sum_elements_of_ranks<Many, T>(args);
  });
}

// ---- column_sum ----

constexpr int kSumWarps = 8;

std::int64_t tokens_per_piece(const ColumnSumArgs& args) {
  return gpu_scratch::column_sum_tokens(args.tokens, args.columns);
}
std::int64_t pieces_of(const ColumnSumArgs& args) {
  return blocks_for(args.tokens, tokens_per_piece(args));
}
std::int64_t column_sum_scratch_floats(const ColumnSumArgs& args) {
  return gpu_scratch::column_sum_floats(args.tokens, args.columns);
}

template <int kWidth>
struct WarpSums {
  float of_warp[kSumWarps][32 * kWidth];
};

/// One block: the tokens of a piece (x) and 32 x kWidth columns (y). 8 warps take turns.
template <int kWidth, class T>
__global__ void __launch_bounds__(32 * kSumWarps)
    column_sum_kernel(float* sums, const T* x, std::int64_t tokens, std::int64_t columns,
                      std::int64_t per_piece) {
  auto& partials = smem<WarpSums<kWidth>>().of_warp;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t first_column = std::int64_t{blockIdx.y} * 32 * kWidth;
  const std::int64_t column = first_column + lane * kWidth;
  const std::int64_t begin = blockIdx.x * per_piece;
  const std::int64_t end = min(begin + per_piece, tokens);
  float total[kWidth] = {};
  if (column < columns) {
    in_turns<8>(
        begin + warp, kSumWarps, end,
        [&](std::int64_t t) { return load<kWidth>(x + t * columns + column); },
        [&](std::int64_t, const Vector<T, kWidth>& in) {
#pragma unroll
          for (int k = 0; k < kWidth; ++k) total[k] += to_float(in.at[k]);
        });
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) partials[warp][lane * kWidth + k] = total[k];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < 32 * kWidth; c += 32 * kSumWarps) {
    if (first_column + c >= columns) return;
    float sum = partials[0][c];
#pragma unroll
    for (int w = 1; w < kSumWarps; ++w) sum += partials[w][c];
    sums[blockIdx.x * columns + first_column + c] = sum;
  }
}

void column_sum(const ColumnSumArgs& args) {
  if (args.columns == 0 || args.tokens == 0) return;
  const std::int64_t pieces = pieces_of(args);
  for_type(args.x_type, [&](auto type) {
    using T = decltype(type);
    const auto* x = static_cast<const T*>(args.x);
    const auto sum = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(column_sum_kernel<kWidth, T>,
             {.grid = dim3(static_cast<unsigned>(pieces),
                           static_cast<unsigned>(blocks_for(args.columns, 32 * kWidth))),
              .block = 32 * kSumWarps,
              .smem_bytes = sizeof(WarpSums<kWidth>),
              .stream = stream_of(args.exec),
              .name = "column_sum"},
             args.partial_sums, x, args.tokens, args.columns, tokens_per_piece(args));
    };
    if (aligned_to_16(x) && args.columns % kWide<T> == 0) {
      sum(Width<kWide<T>>());
    } else {
      sum(Width<1>());
    }
  });
  add_pieces(args.exec, args.sum, {args.partial_sums, pieces, args.columns}, "column_sum");
}

constexpr int kSumThreads = 256, kSumTile = 2048;
static_assert(kSumChains == 32, "a lane for each");

/// A lane adds each chain; other warps bring the next tile: they never wait for memory.
__global__ void __launch_bounds__(kSumThreads)
    sum_in_order_kernel(double* sum, const float* x, std::int64_t count) {
  __shared__ float tiles[2][kSumTile];
  const auto bring = [&](int buffer, std::int64_t first) {
    const std::int64_t end = min(std::int64_t{kSumTile}, count - first);
    for (std::int64_t i = std::int64_t{threadIdx.x} - 32; i < end; i += kSumThreads - 32)
      tiles[buffer][i] = x[first + i];
  };
  const bool brings = threadIdx.x >= 32;
  if (brings) bring(0, 0);
  __syncthreads();
  double chain = 0;
  int buffer = 0;
  for (std::int64_t first = 0; first < count; first += kSumTile, buffer ^= 1) {
    if (brings) {
      bring(buffer ^ 1, first + kSumTile);
    } else {
      const auto part = static_cast<int>(min(std::int64_t{kSumTile}, count - first));
#pragma unroll 8
      for (auto i = static_cast<int>(threadIdx.x); i < part; i += kSumChains)
        chain += static_cast<double>(tiles[buffer][i]);
    }
    __syncthreads();
  }
  if (brings) return;
  double total = 0;
  for (int lane = 0; lane < kSumChains; ++lane) total += __shfl_sync(kAllLanes, chain, lane);
  if (threadIdx.x == 0) *sum += total;
}

void sum_in_order(const SumInOrderArgs& args) {
  launch(sum_in_order_kernel,
         {.grid = 1, .block = kSumThreads, .stream = stream_of(args.exec), .name = "sum_in_order"},
         args.sum, args.x, args.count);
}

}  // namespace

const ElementwiseKernels elementwise_cuda = {cast,        copy_rows,  put_rows,
                                             clear,       accumulate, scale,
                                             sum_ranks,   column_sum, column_sum_scratch_floats,
                                             sum_in_order};

}  // namespace trireme::cuda
