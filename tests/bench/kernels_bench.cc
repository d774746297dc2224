// The ops that memory binds, in GB/s of what their formulas must move, beside a plain copy; gemm in
// GFLOP/s. The argument is the number of threads. One row of output each:
// build/.../kernels_bench --benchmark_filter=norm

#include <benchmark/benchmark.h>

#include <cmath>

#include "base/random.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gemm/gemm.h"
#include "kernels/grad_norm/grad_norm.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"
#include "tensor/buffer.h"

namespace trireme {
namespace {

constexpr std::int64_t kTokens = 2048, kChannels = 1024, kHeads = 16, kHeadDim = 64, kRows = 4096;

Context context_of(const benchmark::State& state) {
  return Context(Device{}, static_cast<int>(state.range(0)), detect_isa());
}

/// Finite, neither zero nor subnormal, and quick to make.
Buffer filled(DType dtype, Shape shape) {
  Buffer buffer(dtype, shape);
  for (std::int64_t i = 0; i < shape.count(); ++i) {
    const float value = uniform(1, static_cast<std::uint64_t>(i)) - 0.5F;
    if (dtype == DType::kF32) buffer.view().as<float>()[i] = value;
    if (dtype == DType::kBF16) buffer.view().as<BFloat16>()[i] = to_bfloat16(value);
  }
  return buffer;
}

Buffer indices(std::int64_t count, std::int64_t below) {
  Buffer buffer(DType::kI32, {count});
  std::uint64_t counter = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    buffer.view().as<std::int32_t>()[i] =
        static_cast<std::int32_t>(uniform_below(2, static_cast<std::uint64_t>(below), &counter));
  }
  return buffer;
}

/// `moved`: elements of kTokens x kChannels that are read and written, of `dtype`.
void report(benchmark::State& state, double moved, DType dtype) {
  const double bytes =
      moved * static_cast<double>(kTokens * kChannels) * static_cast<double>(size_of(dtype));
  state.counters["GB/s"] = benchmark::Counter(
      bytes * static_cast<double>(state.iterations()) * 1e-9, benchmark::Counter::kIsRate);
}

template <DType kType>
void copy(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer from = filled(kType, {kTokens, kChannels}), to = filled(kType, {kTokens, kChannels});
  for (auto _ : state) cast(context, to.view(), from.view());
  report(state, 2, kType);
}

void cast_to_bf16(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer from = filled(DType::kF32, {kTokens, kChannels});
  const Buffer to = filled(DType::kBF16, {kTokens, kChannels});
  for (auto _ : state) cast(context, to.view(), from.view());
  report(state, 1.5, DType::kF32);
}

void accumulate_f32(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer from = filled(DType::kF32, {kTokens, kChannels}),
               to = filled(DType::kF32, {kTokens, kChannels});
  for (auto _ : state) accumulate(context, to.view(), from.view());
  report(state, 3, DType::kF32);
}

template <DType kType>
void column_sum_of(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer x = filled(kType, {kTokens, kChannels}), sum = filled(DType::kF32, {kChannels});
  for (auto _ : state) column_sum(context, sum.view(), x.view());
  report(state, 1, kType);
}

void grad_norm(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer x = filled(DType::kF32, {kTokens, kChannels});
  for (auto _ : state) {
    ExactSum sum;
    grad_norm_accumulate(context, sum, x.view());
    benchmark::DoNotOptimize(sum);
  }
  report(state, 1, DType::kF32);
}

template <DType kType>
void embedding_pass(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer table = filled(kType, {kRows, kChannels}), out = filled(kType, {kTokens, kChannels});
  const Buffer ids = indices(kTokens, kRows);
  EmbeddingForward args;
  args.out_TC = out.view();
  args.ids_T = ids.view();
  args.table_VC = table.view();
  for (auto _ : state) embedding_forward(context, args);
  report(state, 2, kType);
}

void embedding_gradient(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer table = filled(DType::kF32, {kRows, kChannels}),
               dout = filled(DType::kF32, {kTokens, kChannels});
  const Buffer ids = indices(kTokens, kRows);
  for (auto _ : state) embedding_backward(context, table.view(), ids.view(), dout.view());
  report(state, 3, DType::kF32);
}

struct NormOperands {
  Buffer x, residual, sum, y, dy, dx, weight, bias, mean, rstd, dweight, dbias;

  explicit NormOperands(DType type)
      : x(filled(type, {kTokens, kChannels})),
        residual(filled(type, {kTokens, kChannels})),
        sum(filled(type, {kTokens, kChannels})),
        y(filled(type, {kTokens, kChannels})),
        dy(filled(type, {kTokens, kChannels})),
        dx(filled(type, {kTokens, kChannels})),
        weight(filled(type, {kChannels})),
        bias(filled(type, {kChannels})),
        mean(DType::kF32, {kTokens}),
        rstd(DType::kF32, {kTokens}),
        dweight(DType::kF32, {kChannels}),
        dbias(DType::kF32, {kChannels}) {}
  [[nodiscard]] NormForward forward(NormOp op) const {
    NormForward args;
    args.op = op;
    args.y_TC = y.view();
    args.sum_TC = sum.view();
    args.mean_T = mean.view();
    args.rstd_T = rstd.view();
    args.x_TC = x.view();
    args.residual_TC = residual.view();
    args.weight_C = weight.view();
    if (op == NormOp::kLayer) args.bias_C = bias.view();
    return args;
  }
  [[nodiscard]] NormBackward backward(NormOp op) const {
    NormBackward args;
    args.op = op;
    args.dx_TC = dx.view();
    args.dweight_C = dweight.view();
    if (op == NormOp::kLayer) args.dbias_C = dbias.view();
    args.dy_TC = dy.view();
    args.dresidual_TC = residual.view();
    args.s_TC = sum.view();
    args.weight_C = weight.view();
    args.mean_T = mean.view();
    args.rstd_T = rstd.view();
    return args;
  }
};

template <NormOp kOp, DType kType>
void norm_with_residual(benchmark::State& state) {
  Context context = context_of(state);
  const NormOperands x(kType);
  const NormForward args = x.forward(kOp);
  for (auto _ : state) norm_forward(context, args);
  report(state, 4, kType);
}

template <NormOp kOp, DType kType>
void norm_gradient(benchmark::State& state) {
  Context context = context_of(state);
  const NormOperands x(kType);
  norm_forward(context, x.forward(kOp));
  const NormBackward args = x.backward(kOp);
  for (auto _ : state) norm_backward(context, args);
  report(state, 4, kType);
}

enum class HeadNorm { kNone, kRms };

template <HeadNorm kNorm, DType kType>
void rope(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer in = filled(kType, {kTokens, kChannels}), out = filled(kType, {kTokens, kChannels});
  const Buffer positions = indices(kTokens, kTokens),
               cos_sin = filled(DType::kF32, {kTokens, kHeadDim});
  const Buffer weight = filled(kType, {kHeadDim}), rstd(DType::kF32, {kTokens, kHeads});
  RopeForward args;
  args.out = heads_of(out.view(), 0, kHeads, kHeadDim);
  args.in = heads_of(in.view(), 0, kHeads, kHeadDim);
  args.positions_T = positions.view();
  args.cos_sin_PD = cos_sin.view();
  if (kNorm == HeadNorm::kRms) {
    args.weight_D = weight.view();
    args.rstd_TH = rstd.view();
  }
  for (auto _ : state) rope_forward(context, args);
  report(state, 2, kType);
}

template <HeadNorm kNorm, DType kType>
void rope_gradient(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer in = filled(kType, {kTokens, kChannels}), d = filled(kType, {kTokens, kChannels});
  const Buffer positions = indices(kTokens, kTokens),
               cos_sin = filled(DType::kF32, {kTokens, kHeadDim});
  const Buffer weight = filled(kType, {kHeadDim}), rstd = filled(DType::kF32, {kTokens, kHeads});
  const Buffer dweight(DType::kF32, {kHeadDim}), din = filled(kType, {kTokens, kChannels});
  RopeBackward args;
  args.din = heads_of(din.view(), 0, kHeads, kHeadDim);
  args.dout = heads_of(d.view(), 0, kHeads, kHeadDim);
  args.positions_T = positions.view();
  args.cos_sin_PD = cos_sin.view();
  if (kNorm == HeadNorm::kRms) {
    args.in = heads_of(in.view(), 0, kHeads, kHeadDim);
    args.weight_D = weight.view();
    args.rstd_TH = rstd.view();
    args.dweight_D = dweight.view();
  }
  for (auto _ : state) rope_backward(context, args);
  report(state, kNorm == HeadNorm::kRms ? 3 : 2, kType);
}

template <DType kType>
void gemm_of(benchmark::State& state) {
  Context context = context_of(state);
  const std::int64_t m = state.range(1), n = state.range(2), k = state.range(3);
  const bool ta = state.range(4) == 2, tb = state.range(4) == 1;
  const Buffer a = filled(kType, ta ? Shape{k, m} : Shape{m, k}),
               b = filled(kType, tb ? Shape{n, k} : Shape{k, n});
  const Buffer c(DType::kF32, {m, n});
  Gemm args;
  args.c_MN = c.view();
  args.a = a.view();
  args.b = b.view();
  args.transpose_a = ta ? Transpose::kYes : Transpose::kNo;
  args.transpose_b = tb ? Transpose::kYes : Transpose::kNo;
  for (auto _ : state) gemm(context, args);
  state.counters["GFLOP/s"] = benchmark::Counter(
      2e-9 * static_cast<double>(m * n * k) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

/// Threads, M, N, K, form (0 NN, 1 NT, 2 TN): a square, and the three products of a linear layer.
void gemm_shapes(benchmark::internal::Benchmark* benchmark) {
  for (const int threads : {1, 2}) {
    benchmark->Args({threads, 2048, 2048, 2048, 0});
    benchmark->Args({threads, 1024, 2048, 768, 1});
    benchmark->Args({threads, 1024, 768, 2048, 0});
    benchmark->Args({threads, 2048, 768, 1024, 2});
  }
  benchmark->UseRealTime()->Unit(benchmark::kMillisecond);
}

#define OP_BENCHMARK(...) \
  BENCHMARK(__VA_ARGS__)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond)

OP_BENCHMARK(copy<DType::kF32>);
OP_BENCHMARK(copy<DType::kBF16>);
OP_BENCHMARK(cast_to_bf16);
OP_BENCHMARK(accumulate_f32);
OP_BENCHMARK(column_sum_of<DType::kF32>);
OP_BENCHMARK(column_sum_of<DType::kBF16>);
OP_BENCHMARK(grad_norm);
OP_BENCHMARK(embedding_pass<DType::kF32>);
OP_BENCHMARK(embedding_gradient);
OP_BENCHMARK(norm_with_residual<NormOp::kRms, DType::kF32>);
OP_BENCHMARK(norm_with_residual<NormOp::kRms, DType::kBF16>);
OP_BENCHMARK(norm_with_residual<NormOp::kLayer, DType::kF32>);
OP_BENCHMARK(norm_gradient<NormOp::kRms, DType::kF32>);
OP_BENCHMARK(norm_gradient<NormOp::kRms, DType::kBF16>);
OP_BENCHMARK(norm_gradient<NormOp::kLayer, DType::kF32>);
OP_BENCHMARK(rope<HeadNorm::kNone, DType::kF32>);
OP_BENCHMARK(rope<HeadNorm::kRms, DType::kF32>);
OP_BENCHMARK(rope<HeadNorm::kRms, DType::kBF16>);
OP_BENCHMARK(rope_gradient<HeadNorm::kNone, DType::kF32>);
OP_BENCHMARK(rope_gradient<HeadNorm::kRms, DType::kF32>);
BENCHMARK(gemm_of<DType::kF32>)->Apply(gemm_shapes);
BENCHMARK(gemm_of<DType::kBF16>)->Apply(gemm_shapes);

}  // namespace
}  // namespace trireme

BENCHMARK_MAIN();
