#include "kernels/common/column_pieces.cuh"
#include "kernels/common/gpu_scratch.h"
#include "kernels/common/reduce.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/projection_norm/projection_norm_table.h"

namespace trireme::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

__device__ __forceinline__ float rstd_of(float squares, double columns, double eps) {
  return 1.0F / sqrtf(squares / static_cast<float>(columns) + static_cast<float>(eps));
}

/// call(width constant): 16 bytes at a time where every row of every operand allows it.
template <class T, class Call>
void for_rows(std::int64_t width, bool aligned, Call call) {
  if (aligned && width % kWide<T> == 0) return call(Width<kWide<T>>());
  call(Width<1>());
}

template <class T, int kWidth>
struct Pair {
  Vector<T, kWidth> a, b;
};

/// A warp for each token.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) dots_kernel(HeadDotsArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t t = std::int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (t >= args.tokens) return;
  const T *a = static_cast<const T*>(args.a) + t * args.a_stride,
          *b = static_cast<const T*>(args.b) + t * args.b_stride;
  float sum = 0;
  in_turns<4>(
      std::int64_t{lane} * kWidth, 32 * kWidth, args.width,
      [&](std::int64_t c) {
        return Pair<T, kWidth>{load<kWidth>(a + c), load<kWidth>(b + c)};
      },
      [&](std::int64_t, const Pair<T, kWidth>& in) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          sum = fmaf(to_float(in.a.at[k]), to_float(in.b.at[k]), sum);
      });
  sum = warp_sum(sum);
  if (lane == 0) args.dots[t] = sum;
}

void dots(const HeadDotsArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned = aligned_to_16(args.a, args.b) && args.a_stride % kWide<T> == 0 &&
                         args.b_stride % kWide<T> == 0;
    for_rows<T>(args.width, aligned, [&](auto width) {
      launch(dots_kernel<T, decltype(width)::value>,
             {.grid = static_cast<unsigned>(blocks_for(args.tokens, kWarps)),
              .block = kThreads,
              .stream = stream_of(args.exec),
              .name = "head_dots"},
             args);
    });
  });
}

/// A block for each token.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) forward_kernel(ProjectionNormForwardArgs args) {
  const std::int64_t t = blockIdx.x;
  const float rstd = rstd_of(args.squares[t], args.columns, args.eps);
  const T *in = static_cast<const T*>(args.in) + t * args.in_stride,
          *weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + t * args.out_stride;
  in_turns<2>(
      std::int64_t{threadIdx.x} * kWidth, kThreads * kWidth, args.width,
      [&](std::int64_t c) {
        return Pair<T, kWidth>{load<kWidth>(in + c), load<kWidth>(weight + c)};
      },
      [&](std::int64_t c, const Pair<T, kWidth>& of) {
        Vector<T, kWidth> y;
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          y.at[k] = from_float<T>(to_float(of.a.at[k]) * rstd * to_float(of.b.at[k]));
        store(out + c, y);
      });
}

void forward(const ProjectionNormForwardArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned = aligned_to_16(args.out, args.in, args.weight) &&
                         args.out_stride % kWide<T> == 0 && args.in_stride % kWide<T> == 0;
    for_rows<T>(args.width, aligned, [&](auto width) {
      launch(forward_kernel<T, decltype(width)::value>,
             {.grid = static_cast<unsigned>(args.tokens),
              .block = kThreads,
              .stream = stream_of(args.exec),
              .name = "projection_norm_forward"},
             args);
    });
  });
}

std::int64_t pieces_of(const ProjectionNormBackwardArgs& args) {
  return blocks_for(args.tokens, gpu_scratch::column_sum_tokens(args.tokens, args.width));
}
std::int64_t backward_scratch_floats(const ProjectionNormBackwardArgs& args) {
  return gpu_scratch::column_sum_floats(args.tokens, args.width);
}

template <class T, int kWidth>
struct Row {
  Vector<T, kWidth> dout, in;
  float rstd, mean;
};

template <int kWidth>
struct WarpSums {
  float of_warp[kWarps][32 * kWidth];
};

/// One block: the tokens of a piece (x), 32 x kWidth columns (y), which warps take in turns: each
/// thread has columns of its own, whose weights and sums stand in registers.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(ProjectionNormBackwardArgs args, std::int64_t per_piece) {
  auto& partials = smem<WarpSums<kWidth>>().of_warp;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t first_column = std::int64_t{blockIdx.y} * 32 * kWidth;
  const std::int64_t c = first_column + lane * kWidth;
  const std::int64_t begin = blockIdx.x * per_piece;
  const std::int64_t end = min(begin + per_piece, args.tokens);
  float dweight[kWidth] = {};
  if (c < args.width) {
    const auto weight = load<kWidth>(static_cast<const T*>(args.weight) + c);
    const T *dout = static_cast<const T*>(args.dout) + c, *in = static_cast<const T*>(args.in) + c;
    T* din = static_cast<T*>(args.din) + c;
    in_turns<4>(
        begin + warp, kWarps, end,
        [&](std::int64_t t) {
          return Row<T, kWidth>{load<kWidth>(dout + t * args.dout_stride),
                                load<kWidth>(in + t * args.in_stride),
                                rstd_of(args.squares[t], args.columns, args.eps),
                                args.dots[t] / static_cast<float>(args.columns)};
        },
        [&](std::int64_t t, const Row<T, kWidth>& row) {
          Vector<T, kWidth> result;
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            const float d = to_float(row.dout.at[k]), n = to_float(row.in.at[k]) * row.rstd;
            dweight[k] = fmaf(d, n, dweight[k]);
            result.at[k] = from_float<T>(fmaf(-n, row.mean, d * to_float(weight.at[k])) * row.rstd);
          }
          store(din + t * args.din_stride, result);
        });
  }
  if (args.dweight == nullptr) return;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) partials[warp][lane * kWidth + k] = dweight[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 32 * kWidth; i += kThreads) {
    if (first_column + i >= args.width) return;
    float sum = partials[0][i];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += partials[w][i];
    args.partial_sums[blockIdx.x * args.width + first_column + i] = sum;
  }
}

void backward(const ProjectionNormBackwardArgs& args) {
  const std::int64_t pieces = pieces_of(args);
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr std::int64_t kVector = kWide<T>;
    const bool aligned = aligned_to_16(args.din, args.dout, args.in, args.weight) &&
                         args.din_stride % kVector == 0 && args.dout_stride % kVector == 0 &&
                         args.in_stride % kVector == 0;
    for_rows<T>(args.width, aligned, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(backward_kernel<T, kWidth>,
             {.grid = dim3(static_cast<unsigned>(pieces),
                           static_cast<unsigned>(blocks_for(args.width, 32 * kWidth))),
              .block = kThreads,
              .smem_bytes = sizeof(WarpSums<kWidth>),
              .stream = stream_of(args.exec),
              .name = "projection_norm_backward"},
             args, gpu_scratch::column_sum_tokens(args.tokens, args.width));
    });
  });
  if (args.dweight != nullptr) {
    add_pieces(args.exec, args.dweight, {args.partial_sums, pieces, args.width},
               "projection_norm_backward");
  }
}

}  // namespace

const ProjectionNormKernels projection_norm_cuda = {dots, forward, backward,
                                                    backward_scratch_floats};

}  // namespace trireme::cuda
