// How fast samples become micro-batches, on data written for the purpose. The loader has to be far
// ahead of any model: compare items_per_second (tokens) with the tokens a second that a run
// reports.

#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>

#include "base/file.h"
#include "dataset/blend.h"
#include "dataset/loader.h"
#include "dataset/permutation.h"
#include "dataset/sample_order.h"

namespace trireme {
namespace {

constexpr std::int64_t kDocuments = 1 << 16, kTokensPerDocument = 512, kVocab = 50000;

/// A corpus of 32 Mi tokens in uint16, removed at the end of the process.
class BenchCorpus {
 public:
  BenchCorpus() {
    char name[] = "/tmp/dataset-bench-XXXXXX";
    folder_ = ::mkdtemp(name);
    std::string bin, lengths, offsets, bounds(8, '\0');
    std::uint32_t state = 1;
    const auto append = [](std::string& out, auto value) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    for (std::int64_t d = 0; d < kDocuments; ++d) {
      append(lengths, static_cast<std::int32_t>(kTokensPerDocument));
      append(offsets, d * kTokensPerDocument * 2);
      append(bounds, d + 1);
      for (std::int64_t i = 0; i < kTokensPerDocument; ++i) {
        state = state * 1664525 + 1013904223;
        append(bin, static_cast<std::uint16_t>((state >> 16) % kVocab));
      }
    }
    std::string idx("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18);
    append(idx, std::uint64_t{kDocuments});
    append(idx, std::uint64_t{kDocuments + 1});
    write_file_atomically(prefix() + ".bin", bin);
    write_file_atomically(prefix() + ".idx", idx + lengths + offsets + bounds);
  }
  ~BenchCorpus() { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string prefix() const { return folder_ + "/tokens"; }

 private:
  std::string folder_;
};

std::shared_ptr<const SampleSource> shuffled_source(std::int64_t tokens) {
  static const BenchCorpus corpus;
  return std::make_shared<WindowSource>(Corpus(std::make_shared<IndexedFile>(corpus.prefix())),
                                        tokens, WindowSource::Order::kShuffled,
                                        WindowSource::Shuffle{1, 0});
}

void loader_step(benchmark::State& state) {
  const std::int64_t tokens = state.range(0), global = 64;
  RunConfig::Data data;
  data.document_mask = state.range(1) != 0;
  Loader loader(shuffled_source(tokens), data, {global, 8, 8, 0, 1, tokens}, -1, kVocab);
  for (auto _ : state) benchmark::DoNotOptimize(loader.next().target_count);
  state.SetItemsProcessed(state.iterations() * global * tokens);
}
BENCHMARK(loader_step)
    ->ArgNames({"tokens", "document_mask"})
    ->ArgsProduct({{128, 2048, 8192}, {0, 1}})
    ->UseRealTime();

void open_index(benchmark::State& state) {
  static const BenchCorpus corpus;
  for (auto _ : state) benchmark::DoNotOptimize(IndexedFile(corpus.prefix()).tokens());
  state.SetItemsProcessed(state.iterations() * kDocuments);
}
BENCHMARK(open_index);

void permuted_index(benchmark::State& state) {
  const RandomPermutation permutation(1, 2, 1'000'000'007);
  std::int64_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(permutation(i++));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(permuted_index);

void blend_draws(benchmark::State& state) {
  const GreedyBlend blend(
      normalized(std::vector<double>(static_cast<std::size_t>(state.range(0)), 1.0)));
  std::int64_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(blend.at(i++));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(blend_draws)->Arg(2)->Arg(20);

}  // namespace
}  // namespace trireme

BENCHMARK_MAIN();
