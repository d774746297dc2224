#include "kernels/norm/norm_row.cuh"
#include "kernels/quantize/quantize_rows.cuh"

namespace trireme::cuda {
namespace {

constexpr int kLongRow = 512;  ///< threads of a long row

/// Within 2 ulp; an eps below an f32's resolution of the mean square is below that of rstd too.
__device__ __forceinline__ float inverse_root(float squares, std::int64_t channels, double eps) {
  return 1.0F / sqrtf(squares / static_cast<float>(channels) + static_cast<float>(eps));
}

template <class T, int kWidth>
struct Summands {
  Vector<T, kWidth> x, residual;
};

/// x + residual as it is stored.
template <class T, int kWidth>
__device__ __forceinline__ Vector<T, kWidth> rounded_sum(const Summands<T, kWidth>& in) {
  Vector<T, kWidth> sum;
#pragma unroll
  for (int k = 0; k < kWidth; ++k)
    sum.at[k] = from_float<T>(to_float(in.x.at[k]) + to_float(in.residual.at[k]));
  return sum;
}

template <int kWidth, class T>
__device__ __forceinline__ float sum_of(const Vector<T, kWidth>& s) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) sum += to_float(s.at[k]);
  return sum;
}
template <NormKind kKind, int kWidth, class T>
__device__ __forceinline__ float squares_of(const Vector<T, kWidth>& s, float mean) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float x = kKind == NormKind::kLayer ? to_float(s.at[k]) - mean : to_float(s.at[k]);
    sum = fmaf(x, x, sum);
  }
  return sum;
}
template <NormKind kKind, int kWidth, class T>
__device__ __forceinline__ Vector<T, kWidth> output_of(const Vector<T, kWidth>& s, float mean,
                                                       float rstd, const Vector<T, kWidth>& weight,
                                                       float offset, bool has_bias,
                                                       const Vector<T, kWidth>& bias) {
  Vector<T, kWidth> y;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float n = normalised<kKind>(to_float(s.at[k]), mean, rstd);
    y.at[k] = from_float<T>(scaled<kKind>(n, __fadd_rn(to_float(weight.at[k]), offset), has_bias,
                                          to_float(bias.at[k])));
  }
  return y;
}

/// Of the mean and of the squares.
template <int kThreads>
struct Partials {
  float of_warp[2][kThreads / 32];
};

/// Threads that a multiprocessor is to hold at least: it limits the registers to 128.
constexpr int kForwardThreads = 512;

/// The row and the weights are asked for before the first use.
template <NormKind kKind, class T, int kThreads, int kVectors>
__global__ void __launch_bounds__(RowPlace<kThreads>::kBlock,
                                  kForwardThreads / RowPlace<kThreads>::kBlock)
    forward_kernel(NormForwardArgs args) {
  constexpr int kWidth = kWide<T>;
  auto& partials = smem<Partials<kThreads>>().of_warp;
  const RowPlace<kThreads> place;
  const std::int64_t n = args.channels;
  const std::int64_t row = std::int64_t{blockIdx.x} * place.kRows + place.row;
  if (row >= args.tokens) return;  // whole warps, where rows are warps'
  const auto for_all = [&](auto body) {
    for_vectors<kThreads, kVectors, kWidth>(place.thread, n, body);
  };

  Vector<T, kWidth> s[kVectors] = {}, residual[kVectors] = {}, weight[kVectors] = {};
  const T* x = row_of<T>(args.x, row, n);
  for_all([&](int v, int c) { s[v] = load<kWidth>(x + c); });
  if (args.residual != nullptr) {
    const T* from = row_of<T>(args.residual, row, n);
    for_all([&](int v, int c) { residual[v] = load<kWidth>(from + c); });
  }
  const auto* weights = static_cast<const T*>(args.weight);
  for_all([&](int v, int c) { weight[v] = load<kWidth>(weights + c); });

  if (args.residual != nullptr) {
    T* sum = row_of<T>(args.sum, row, n);
    for_all([&](int v, int c) {
      s[v] = rounded_sum<T, kWidth>({s[v], residual[v]});
      store(sum + c, s[v]);
    });
  }
  float mean = 0;
  if constexpr (kKind == NormKind::kLayer) {
    for_all([&](int v, int) { mean += sum_of<kWidth>(s[v]); });
    mean = row_sum<kThreads>(mean, partials[0]) / static_cast<float>(n);
  }
  float squares = 0;
  for_all([&](int v, int) { squares += squares_of<kKind, kWidth>(s[v], mean); });
  const float rstd = inverse_root(row_sum<kThreads>(squares, partials[1]), n, args.eps);
  // The bias comes last: it would take registers, and stands in L1 after a block's first row.
  const auto* biases = static_cast<const T*>(args.bias);
  const bool has_bias = kKind == NormKind::kLayer && biases != nullptr;
  T* y = args.y == nullptr ? nullptr : row_of<T>(args.y, row, n);
  unsigned order = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = (v * kThreads + place.thread) * kWidth;
    Vector<T, kWidth> out = {};
    if (c < n) {
      const auto bias = has_bias ? load<kWidth>(biases + c) : Vector<T, kWidth>{};
      out =
          output_of<kKind, kWidth>(s[v], mean, rstd, weight[v], args.weight_offset, has_bias, bias);
      if (y != nullptr) store(y + c, out);
    }
    if constexpr (sizeof(T) == sizeof(bf16)) {
      if (args.quantized.codes != nullptr) leave_codes<true>(args.quantized, row, c, out);
    }
    if (args.quantized.amax != nullptr) order = max(order, order_of(out));
  }
  if (args.quantized.amax != nullptr)
    join_maximum<kThreads>(args.quantized.amax, order, partials[0]);
  if (place.thread == 0) {
    if (kKind == NormKind::kLayer) args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
}

/// The codes of a row that is read again.
template <NormKind kKind, int kThreads, int kWidth>
__device__ __forceinline__ void leave_row_codes(const NormForwardArgs& args, const bf16* s,
                                                std::int64_t row, float mean, float rstd) {
  const auto *weights = static_cast<const bf16*>(args.weight),
             *biases = static_cast<const bf16*>(args.bias);
  const bool has_bias = kKind == NormKind::kLayer && biases != nullptr;
  const int thread = static_cast<int>(threadIdx.x) % kThreads, lane = thread % 32;
  for (std::int64_t begin = (thread - lane) * 8; begin < args.quantized.width;
       begin += kThreads * 8) {
    const std::int64_t c = begin + lane * 8;
    Vector<bf16, 8> out = {};
    if (c < args.channels) {
      const auto bias = has_bias ? load_eight<kWidth>(biases + c) : Vector<bf16, 8>{};
      out =
          output_of<kKind, 8>(load_eight<kWidth>(s + c), mean, rstd,
                              load_eight<kWidth>(weights + c), args.weight_offset, has_bias, bias);
    }
    leave_codes<kWidth == 8>(args.quantized, row, c, out);
  }
}

/// A row of any length and alignment, read again for each pass.
template <NormKind kKind, class T, int kThreads, int kWidth>
__global__ void __launch_bounds__(RowPlace<kThreads>::kBlock)
    long_forward_kernel(NormForwardArgs args) {
  using Group = Vector<T, kWidth>;
  auto& partials = smem<Partials<kThreads>>().of_warp;
  const RowPlace<kThreads> place;
  const std::int64_t n = args.channels;
  const std::int64_t row = std::int64_t{blockIdx.x} * place.kRows + place.row;
  if (row >= args.tokens) return;
  const auto for_all = [&](auto load_group, auto finish) {
    for_long_row<kThreads, kWidth>(place.thread, n, load_group, finish);
  };

  const T* s = row_of<T>(args.x, row, n);
  float mean = 0, squares = 0;
  const auto take = [&](const Group& group) {
    if constexpr (kKind == NormKind::kLayer) {
      mean += sum_of<kWidth>(group);
    } else {
      squares += squares_of<kKind, kWidth>(group, 0);
    }
  };
  if (args.residual != nullptr) {
    const T *x = s, *residual = row_of<T>(args.residual, row, n);
    T* sum = row_of<T>(args.sum, row, n);
    for_all(
        [&](std::int64_t c) {
          return Summands<T, kWidth>{load<kWidth>(x + c), load<kWidth>(residual + c)};
        },
        [&](std::int64_t c, const Summands<T, kWidth>& in) {
          const Group group = rounded_sum<T, kWidth>(in);
          store(sum + c, group);
          take(group);
        });
    s = sum;  // each thread reads again what it wrote
  } else {
    for_all([&](std::int64_t c) { return load<kWidth>(s + c); },
            [&](std::int64_t, const Group& group) { take(group); });
  }
  if constexpr (kKind == NormKind::kLayer) {
    mean = row_sum<kThreads>(mean, partials[0]) / static_cast<float>(n);
    for_all([&](std::int64_t c) { return load<kWidth>(s + c); },
            [&](std::int64_t, const Group& group) {
              squares += squares_of<kKind, kWidth>(group, mean);
            });
  }
  const float rstd = inverse_root(row_sum<kThreads>(squares, partials[1]), n, args.eps);
  const auto *weights = static_cast<const T*>(args.weight),
             *biases = static_cast<const T*>(args.bias);
  const bool has_bias = kKind == NormKind::kLayer && biases != nullptr;
  T* y = args.y == nullptr ? nullptr : row_of<T>(args.y, row, n);
  unsigned order = 0;
  for_all([&](std::int64_t c) { return load<kWidth>(s + c); },
          [&](std::int64_t c, const Group& group) {
            const Group weight = load<kWidth>(weights + c);
            const Group bias = has_bias ? load<kWidth>(biases + c) : Group{};
            const Group out = output_of<kKind, kWidth>(group, mean, rstd, weight,
                                                       args.weight_offset, has_bias, bias);
            if (y != nullptr) store(y + c, out);
            order = max(order, order_of(out));
          });
  if constexpr (sizeof(T) == sizeof(bf16)) {
    if (args.quantized.codes != nullptr) {
      kThreads == 32 ? __syncwarp() : __syncthreads();  // others have written s
      leave_row_codes<kKind, kThreads, kWidth>(args, s, row, mean, rstd);
    }
  }
  if (args.quantized.amax != nullptr)
    join_maximum<kThreads>(args.quantized.amax, order, partials[0]);
  if (place.thread == 0) {
    if (kKind == NormKind::kLayer) args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
}

template <int kThreads, class Kernel>
void launch_rows(Kernel kernel, const NormForwardArgs& args) {
  using Place = RowPlace<kThreads>;
  launch(kernel,
         {.grid = static_cast<unsigned>(blocks_for(args.tokens, Place::kRows)),
          .block = Place::kBlock,
          .smem_bytes = sizeof(Partials<kThreads>),
          .stream = stream_of(args.exec),
          .name = "norm_forward"},
         args);
}

template <NormKind kKind>
void forward(const NormForwardArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWidth = kWide<T>;
    const std::int64_t n = args.channels;
    const bool aligned =
        n % kWidth == 0 && aligned_to_16(args.y, args.sum, args.x, args.residual, args.weight,
                                         args.bias, args.quantized.codes);
    const std::int64_t vectors = aligned ? n / kWidth : n;
    if (!aligned) {
      if (n <= 1024) return launch_rows<32>(long_forward_kernel<kKind, T, 32, 1>, args);
      return launch_rows<kLongRow>(long_forward_kernel<kKind, T, kLongRow, 1>, args);
    }
    if (vectors <= 32) return launch_rows<32>(forward_kernel<kKind, T, 32, 1>, args);
    if (vectors <= 128) return launch_rows<32>(forward_kernel<kKind, T, 32, 4>, args);
    if (vectors <= 256) return launch_rows<128>(forward_kernel<kKind, T, 128, 2>, args);
    if (vectors <= 512) return launch_rows<128>(forward_kernel<kKind, T, 128, 4>, args);
    if (vectors <= 1024) return launch_rows<256>(forward_kernel<kKind, T, 256, 4>, args);
    if (vectors <= 2048) return launch_rows<512>(forward_kernel<kKind, T, 512, 4>, args);
    launch_rows<kLongRow>(long_forward_kernel<kKind, T, kLongRow, kWidth>, args);
  });
}

// ---- without a norm ----

constexpr int kAddTurns = 4;

/// sum = a + b, rounded, or a; copy = of, or that sum. All but a may be null.
template <class T>
struct Add {
  T *sum, *copy;
  const T *a, *b, *of;
};

/// An item is read, then written: copy may be a.
template <class T, int kWidth>
__global__ void __launch_bounds__(kTurnThreads)
    add_kernel(Add<T> args, std::int64_t first, std::int64_t items) {
  struct Read {
    Summands<T, kWidth> summands;
    Vector<T, kWidth> of;
  };
  const auto at = [&](std::int64_t item) { return first + item * kWidth; };
  for_each_item<kAddTurns>(
      items,
      [&](std::int64_t item) {
        Read read = {};
        read.summands.x = load<kWidth>(args.a + at(item));
        if (args.b != nullptr) read.summands.residual = load<kWidth>(args.b + at(item));
        if (args.of != nullptr) read.of = load<kWidth>(args.of + at(item));
        return read;
      },
      [&](std::int64_t item, const Read& read) {
        Vector<T, kWidth> sum = read.summands.x;
        if (args.b != nullptr) sum = rounded_sum<T, kWidth>(read.summands);
        if (args.sum != nullptr) store(args.sum + at(item), sum);
        if (args.of != nullptr) sum = read.of;
        if (args.copy != nullptr) store(args.copy + at(item), sum);
      });
}

template <class T>
void run_add(const Exec& exec, const Add<T>& args, std::int64_t count, const char* name) {
  for_vectors_and_rest<kWide<T>>(count, aligned_to_16(args.sum, args.copy, args.a, args.b, args.of),
                                 [&](auto width, std::int64_t first, std::int64_t items) {
                                   launch(add_kernel<T, decltype(width)::value>,
                                          config_of_turns(exec, kAddTurns, items, name), args,
                                          first, items);
                                 });
}

void none_forward(const NormForwardArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    const auto in = [](const void* data) { return static_cast<const T*>(data); };
    run_add<T>(args.exec,
               {static_cast<T*>(args.sum), static_cast<T*>(args.y), in(args.x), in(args.residual),
                nullptr},
               args.tokens * args.channels, "norm_forward");
  });
}

void none_backward(const NormBackwardArgs& args) {
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    const auto in = [](const void* data) { return static_cast<const T*>(data); };
    run_add<T>(args.exec,
               {static_cast<T*>(args.dx), static_cast<T*>(args.y), in(args.dy), in(args.dresidual),
                in(args.s)},
               args.tokens * args.channels, "norm_backward");
  });
}

}  // namespace

const NormKernels norm_cuda = {
    forward<NormKind::kRms>,     forward<NormKind::kLayer>, none_forward,
    norm_rms_backward,           norm_layer_backward,       none_backward,
    norm_backward_scratch_floats};

}  // namespace trireme::cuda
