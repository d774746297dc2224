#include "kernels/expert_rows/expert_rows.cuh"

namespace trireme::cuda::expert_rows {
namespace {

__device__ __forceinline__ bool has_row(const ExpertBiasArgs& args, std::int64_t r) {
  return r < args.rows_max && r < *args.row_count;
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) bias_forward_kernel(ExpertBiasArgs args) {
  constexpr std::int64_t kColumns = 32 * kWidth * kDepth;
  const auto [r, first] = share_of_warp(kColumns, args.channels);
  if (!has_row(args, r)) return;
  const float weight = args.weights[args.row_slot[r]];
  const T* bias = static_cast<const T*>(args.bias) + expert_of(args.experts, r) * args.channels;
  T* y = static_cast<T*>(args.y) + r * args.channels;
  struct Taken {
    Vector<T, kWidth> y, bias;
  };
  in_turns<kDepth>(
      first + threadIdx.x % 32 * kWidth, 32 * kWidth, min(first + kColumns, args.channels),
      [&](std::int64_t c) {
        return Taken{load<kWidth>(y + c), load<kWidth>(bias + c)};
      },
      [&](std::int64_t c, const Taken& in) {
        Vector<T, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          out.at[k] = from_float<T>(fmaf(weight, to_float(in.bias.at[k]), to_float(in.y.at[k])));
        store(y + c, out);
      });
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) bias_backward_kernel(ExpertBiasArgs args) {
  const std::int64_t r = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (!has_row(args, r)) return;
  const T* bias = static_cast<const T*>(args.bias) + expert_of(args.experts, r) * args.channels;
  const T* dy = static_cast<const T*>(args.dy) + r * args.channels;
  struct Taken {
    Vector<T, kWidth> dy, bias;
  };
  float sum = 0;
  in_turns<kDepth>(
      threadIdx.x % 32 * kWidth, 32 * kWidth, args.channels,
      [&](std::int64_t c) {
        return Taken{load<kWidth>(dy + c), load<kWidth>(bias + c)};
      },
      [&](std::int64_t, const Taken& in) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          sum = fmaf(to_float(in.dy.at[k]), to_float(in.bias.at[k]), sum);
      });
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) args.dweights[r] += sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads) factors_kernel(RowFactorsArgs args) {
  const std::int64_t r = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (r >= args.rows_max || (args.row_count != nullptr && r >= *args.row_count)) return;
  const float factor = args.weights == nullptr ? 1.0F : args.weights[args.row_slot[r]];
  static_cast<T*>(args.factors)[r] = from_float<T>(factor);
}

}  // namespace

void expert_bias_forward(const ExpertBiasArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    constexpr int kWidth = kWide<T>;
    const bool wide = args.channels % kWidth == 0 && aligned_to_16(args.y, args.bias);
    launch(wide ? bias_forward_kernel<kWidth, T> : bias_forward_kernel<1, T>,
           config_of_shares(args.exec, args.rows_max, args.channels,
                            32 * kDepth * (wide ? kWidth : 1), "expert_bias_forward"),
           args);
  });
}
void expert_bias_backward(const ExpertBiasArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    constexpr int kWidth = kWide<T>;
    const bool wide = args.channels % kWidth == 0 && aligned_to_16(args.dy, args.bias);
    launch(wide ? bias_backward_kernel<kWidth, T> : bias_backward_kernel<1, T>,
           {.grid = static_cast<unsigned>(blocks_for(args.rows_max, kWarps)),
            .block = kThreads,
            .stream = stream_of(args.exec),
            .name = "expert_bias_backward"},
           args);
  });
}

void row_factors(const RowFactorsArgs& args) {
  for_type(args.type, [&](auto type) {
    launch(factors_kernel<decltype(type)>,
           {.grid = static_cast<unsigned>(blocks_for(args.rows_max, kThreads)),
            .block = kThreads,
            .stream = stream_of(args.exec),
            .name = "row_factors"},
           args);
  });
}

}  // namespace trireme::cuda::expert_rows
