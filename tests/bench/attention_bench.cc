// Attention of a training step, in GFLOP/s over the visible (query, key) pairs: 4 D each forward,
// 10 D backward, beside oneDNN's product of two square matrices on as many threads. Type:
// build/.../attention_bench
// --benchmark_filter=...; the arguments are head size, tokens, heads, threads.

#include <benchmark/benchmark.h>

#include <cmath>

#include "base/random.h"
#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "tensor/buffer.h"

namespace trireme {
namespace {

void fill(TensorView x, std::uint64_t seed) {
  for (std::int64_t i = 0; i < x.count(); ++i)
    x.as<float>()[i] = normal(seed, static_cast<std::uint64_t>(i));
}

struct Operands {
  std::int64_t sequences = 4, tokens, heads, head_dim;
  Buffer qkv, o, lse, delta, d_o, dqkv;
  PositionRange range;

  explicit Operands(const benchmark::State& state)
      : tokens(state.range(1)),
        heads(state.range(2)),
        head_dim(state.range(0)),
        qkv(DType::kF32, {sequences * tokens, 3 * heads * head_dim}),
        o(DType::kF32, {sequences * tokens, heads * head_dim}),
        lse(DType::kF32, {sequences * tokens, heads}),
        delta(DType::kF32, {sequences * tokens, heads}),
        d_o(DType::kF32, {sequences * tokens, heads * head_dim}),
        dqkv(DType::kF32, {sequences * tokens, 3 * heads * head_dim}),
        range{0, tokens} {
    fill(qkv.view(), 1);
    fill(d_o.view(), 2);
  }
  [[nodiscard]] HeadsView part(const Buffer& buffer, int index) const {
    return heads_of(buffer.view(), index * heads * head_dim, heads, head_dim);
  }
  [[nodiscard]] AttentionMask mask() const { return {sequences, {&range, 1}, {&range, 1}, {}}; }
  [[nodiscard]] float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
  [[nodiscard]] AttentionForward forward() const {
    return {part(o, 0), lse.view(), part(qkv, 0), part(qkv, 1), part(qkv, 2), mask(), scale()};
  }
  [[nodiscard]] AttentionBackward backward() const {
    return {part(dqkv, 0), part(dqkv, 1), part(dqkv, 2), part(d_o, 0), part(qkv, 0), part(qkv, 1),
            part(qkv, 2),  lse.view(),    delta.view(),  mask(),       scale()};
  }
  /// `per_pair` operations for each element of a head and visible pair.
  void report(benchmark::State& state, double per_pair) const {
    const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
    const double operations = per_pair * static_cast<double>(sequences * heads * head_dim) * pairs;
    state.counters["GFLOP/s"] = benchmark::Counter(
        operations * static_cast<double>(state.iterations()) * 1e-9, benchmark::Counter::kIsRate);
  }
};

Context context_of(const benchmark::State& state, int argument) {
  return Context(Device{}, static_cast<int>(state.range(argument)), detect_isa());
}

void forward(benchmark::State& state) {
  Context context = context_of(state, 3);
  const Operands operands(state);
  for (auto _ : state) attention_forward(context, operands.forward());
  operands.report(state, 4);
}

void backward(benchmark::State& state) {
  Context context = context_of(state, 3);
  const Operands operands(state);
  attention_forward(context, operands.forward());
  attention_delta(context, operands.delta.view(), operands.part(operands.d_o, 0),
                  operands.part(operands.o, 0));
  for (auto _ : state) attention_backward(context, operands.backward());
  operands.report(state, 10);
}

/// One new token for each of the sequences, over a cache.
void one_token(benchmark::State& state) {
  Context context = context_of(state, 3);
  const Operands operands(state);
  const PositionRange last{operands.tokens - 1, 1};
  AttentionForward args = operands.forward();
  args.mask.q = {&last, 1};
  args.q.tokens = args.o.tokens = operands.sequences;
  args.lse_TH.shape = {operands.sequences, operands.heads};
  for (auto _ : state) attention_forward(context, args);
}

void square_product(benchmark::State& state) {
  Context context = context_of(state, 1);
  const std::int64_t n = state.range(0);
  const Buffer a(DType::kF32, {n, n}), b(DType::kF32, {n, n}), c(DType::kF32, {n, n});
  fill(a.view(), 1);
  fill(b.view(), 2);
  Gemm args;
  args.c_MN = c.view();
  args.a = a.view();
  args.b = b.view();
  for (auto _ : state) gemm(context, args);
  const double operations = 2 * std::pow(static_cast<double>(n), 3);
  state.counters["GFLOP/s"] = benchmark::Counter(
      operations * static_cast<double>(state.iterations()) * 1e-9, benchmark::Counter::kIsRate);
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgsProduct({{64}, {256, 512}, {6, 12}, {1, 2}})
      ->Args({128, 512, 6, 1})
      ->Args({24, 256, 6, 1});
  benchmark->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(forward)->Apply(shapes);
BENCHMARK(backward)->Apply(shapes);
BENCHMARK(one_token)->Apply(shapes);
BENCHMARK(square_product)
    ->ArgsProduct({{512, 1024}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trireme

BENCHMARK_MAIN();
