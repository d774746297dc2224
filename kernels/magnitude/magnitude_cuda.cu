#include "kernels/common/column_pieces.cuh"
#include "kernels/common/gpu_scratch.h"
#include "kernels/common/turns.cuh"
#include "kernels/magnitude/magnitude_table.h"

namespace trireme::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

template <class T>
__global__ void __launch_bounds__(kThreads) gains_kernel(MagnitudeGainsArgs args) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= args.count) return;
  const float inverse = 1.0F / sqrtf(args.squares[n]);
  args.inverse[n] = inverse;
  const T* magnitude = static_cast<const T*>(args.magnitude);
  args.gain[n] = magnitude == nullptr ? 1.0F : to_float(magnitude[n]) * inverse;
}

LaunchConfig a_thread_each(const Exec& exec, std::int64_t count, const char* name) {
  return {.grid = static_cast<unsigned>(blocks_for(count, kThreads)),
          .block = kThreads,
          .stream = stream_of(exec),
          .name = name};
}

void gains(const MagnitudeGainsArgs& args) {
  for_type(args.dtype, [&](auto type) {
    launch(gains_kernel<decltype(type)>, a_thread_each(args.exec, args.count, "magnitude_gains"),
           args);
  });
}

__global__ void __launch_bounds__(kThreads) gradient_kernel(MagnitudeGradientArgs args) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n < args.count) args.dmagnitude[n] += args.dgain[n] * args.inverse[n];
}

void gradient(const MagnitudeGradientArgs& args) {
  launch(gradient_kernel, a_thread_each(args.exec, args.count, "magnitude_gradient"), args);
}

/// call(width constant): 16 bytes at a time where every row of every operand allows it.
template <class T, class Call>
void for_rows(std::int64_t columns, bool aligned, Call call) {
  if (aligned && columns % kWide<T> == 0) return call(Width<kWide<T>>());
  call(Width<1>());
}

/// A block: 8 rows, a warp each.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) forward_kernel(MagnitudeForwardArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t t = std::int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (t >= args.tokens) return;
  const T *v = static_cast<const T*>(args.v) + t * args.columns,
          *bias = static_cast<const T*>(args.bias);
  T* y = static_cast<T*>(args.y) + t * args.columns;
  in_turns<4>(
      std::int64_t{lane} * kWidth, 32 * kWidth, args.columns,
      [&](std::int64_t n) { return load<kWidth>(v + n); },
      [&](std::int64_t n, const Vector<T, kWidth>& in) {
        Vector<T, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          float value = to_float(in.at[k]) * args.gain[n + k];
          if (bias != nullptr) value += to_float(bias[n + k]);
          out.at[k] = from_float<T>(value);
        }
        store(y + n, out);
      });
}

void forward(const MagnitudeForwardArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_rows<T>(args.columns, aligned_to_16(args.y, args.v), [&](auto width) {
      launch(forward_kernel<T, decltype(width)::value>,
             {.grid = static_cast<unsigned>(blocks_for(args.tokens, kWarps)),
              .block = kThreads,
              .stream = stream_of(args.exec),
              .name = "magnitude_forward"},
             args);
    });
  });
}

std::int64_t pieces_of(const MagnitudeBackwardArgs& args) {
  return blocks_for(args.tokens, gpu_scratch::column_sum_tokens(args.tokens, args.columns));
}
std::int64_t backward_scratch_floats(const MagnitudeBackwardArgs& args) {
  return gpu_scratch::column_sum_floats(args.tokens, args.columns);
}

template <class T, int kWidth>
struct Pair {
  Vector<T, kWidth> dy, v;
};

template <int kWidth>
struct WarpSums {
  float of_warp[kWarps][32 * kWidth];
};

/// One block: the tokens of a piece (x), 32 x kWidth columns (y), which warps take in turns: each
/// thread has columns of its own, whose gains and sums stand in registers.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(MagnitudeBackwardArgs args, std::int64_t per_piece) {
  auto& partials = smem<WarpSums<kWidth>>().of_warp;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t first_column = std::int64_t{blockIdx.y} * 32 * kWidth;
  const std::int64_t n = first_column + lane * kWidth;
  const std::int64_t begin = blockIdx.x * per_piece;
  const std::int64_t end = min(begin + per_piece, args.tokens);
  float dgain[kWidth] = {};
  if (n < args.columns) {
    float gain[kWidth] = {};
    if (args.dv != nullptr) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) gain[k] = args.gain[n + k];
    }
    const T *dy = static_cast<const T*>(args.dy) + n, *v = static_cast<const T*>(args.v) + n;
    T* dv = static_cast<T*>(args.dv);
    in_turns<4>(
        begin + warp, kWarps, end,
        [&](std::int64_t t) {
          return Pair<T, kWidth>{load<kWidth>(dy + t * args.columns),
                                 load<kWidth>(v + t * args.columns)};
        },
        [&](std::int64_t t, const Pair<T, kWidth>& row) {
          Vector<T, kWidth> result;
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            const float d = to_float(row.dy.at[k]);
            dgain[k] = fmaf(d, to_float(row.v.at[k]), dgain[k]);
            result.at[k] = from_float<T>(d * gain[k]);
          }
          if (dv != nullptr) store(dv + t * args.columns + n, result);
        });
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) partials[warp][lane * kWidth + k] = dgain[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 32 * kWidth; i += kThreads) {
    if (first_column + i >= args.columns) return;
    float sum = partials[0][i];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += partials[w][i];
    args.partial_sums[blockIdx.x * args.columns + first_column + i] = sum;
  }
}

void backward(const MagnitudeBackwardArgs& args) {
  const std::int64_t pieces = pieces_of(args);
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned =
        aligned_to_16(args.dy, args.v) && (args.dv == nullptr || aligned_to_16(args.dv));
    for_rows<T>(args.columns, aligned, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(backward_kernel<T, kWidth>,
             {.grid = dim3(static_cast<unsigned>(pieces),
                           static_cast<unsigned>(blocks_for(args.columns, 32 * kWidth))),
              .block = kThreads,
              .smem_bytes = sizeof(WarpSums<kWidth>),
              .stream = stream_of(args.exec),
              .name = "magnitude_backward"},
             args, gpu_scratch::column_sum_tokens(args.tokens, args.columns));
    });
  });
  add_pieces(args.exec, args.dgain, {args.partial_sums, pieces, args.columns},
             "magnitude_backward");
}

}  // namespace

const MagnitudeKernels magnitude_cuda = {gains, gradient, forward, backward,
                                         backward_scratch_floats};

}  // namespace trireme::cuda
