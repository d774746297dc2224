// Activations, loss and optimizer of a training step, in GB/s over the bytes that each must read
// and write. The argument is the number of threads. Type: build/.../training_ops_bench

#include <benchmark/benchmark.h>

#include "base/random.h"
#include "kernels/adamw/adamw.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/gelu/gelu.h"
#include "kernels/swiglu/swiglu.h"
#include "tensor/buffer.h"

namespace trireme {
namespace {

constexpr std::int64_t kTokens = 1024, kFfn = 1536, kVocabulary = 2048, kParameters = 10'000'000;

Context context_of(const benchmark::State& state) {
  return Context(Device{}, static_cast<int>(state.range(0)), detect_isa());
}

Buffer random_buffer(Shape shape) {
  Buffer buffer(DType::kF32, shape);
  float* data = buffer.view().as<float>();
  for (std::int64_t i = 0; i < shape.count(); ++i)
    data[i] = normal(1, static_cast<std::uint64_t>(i));
  return buffer;
}

void report(benchmark::State& state, std::int64_t f32_elements) {
  state.SetBytesProcessed(state.iterations() * f32_elements * 4);
}

void swiglu_step(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer gate_up = random_buffer({kTokens, 2 * kFfn}), act = random_buffer({kTokens, kFfn});
  const Buffer d(DType::kF32, {kTokens, 2 * kFfn});
  for (auto _ : state) {
    swiglu_forward(context, act.view(), gate_up.view());
    swiglu_backward(context, d.view(), act.view(), gate_up.view());
  }
  report(state, kTokens * kFfn * (3 + 5));
}

void gelu_step(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer x = random_buffer({kTokens, kFfn}), act(DType::kF32, {kTokens, kFfn}),
               dx(DType::kF32, {kTokens, kFfn});
  for (auto _ : state) {
    gelu_forward(context, act.view(), x.view());
    gelu_backward(context, dx.view(), act.view(), x.view());
  }
  report(state, kTokens * kFfn * (2 + 3));
}

void cross_entropy_step(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer logits = random_buffer({kTokens, kVocabulary}),
               dlogits(DType::kF32, {kTokens, kVocabulary});
  const Buffer row[] = {Buffer(DType::kF32, {kTokens}), Buffer(DType::kF32, {kTokens}),
                        Buffer(DType::kF32, {kTokens}), Buffer(DType::kF32, {kTokens})};
  const Buffer targets(DType::kI32, {kTokens});
  const VocabularyPart part{0, kVocabulary};
  for (auto _ : state) {
    cross_entropy_statistics(context, {row[0].view(), row[1].view(), row[2].view(), logits.view(),
                                       targets.view(), part});
    cross_entropy_finish(context, {row[3].view(), dlogits.view(), logits.view(), row[0].view(),
                                   row[1].view(), row[2].view(), targets.view(), part, 1});
  }
  report(state, kTokens * kVocabulary * (1 + 2));
}

void adamw_step(benchmark::State& state) {
  Context context = context_of(state);
  const Buffer p = random_buffer({kParameters}), g = random_buffer({kParameters}),
               m(DType::kF32, {kParameters}), v(DType::kF32, {kParameters});
  const AdamWTensor tensor{p.view(), {}, m.view(), v.view(), g.view(), 0.1};
  for (auto _ : state) adamw_update(context, {&tensor, 1}, {}, {1e-6, 0.1, 0.05, 1});
  report(state, kParameters * 7);
}

void threads(benchmark::internal::Benchmark* benchmark) {
  benchmark->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(swiglu_step)->Apply(threads);
BENCHMARK(gelu_step)->Apply(threads);
BENCHMARK(cross_entropy_step)->Apply(threads);
BENCHMARK(adamw_step)->Apply(threads);

}  // namespace
}  // namespace trireme

BENCHMARK_MAIN();
