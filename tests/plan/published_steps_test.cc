// Step times that other people have published, beside predictions for their layouts. The constants
// that a table was fitted with are printed with its errors; rows that no fit has seen stand apart.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "pipeline/schedules/schedules.h"
#include "plan/step_time.h"
#include "support/small_config.h"

namespace trireme {
namespace {

/// A run as a table has it: sizes of a GPT and its layout.
struct Row {
  std::int64_t hidden = 0, heads = 0, layers = 0;
  int tensor = 1, pipeline = 1, virtual_stages = 1;
  std::int64_t gpus = 1, micro = 1, batch = 1;
  double published = 0;  ///< seconds
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kFull;
};

struct Sizes {
  std::int64_t sequence, vocabulary;
};

ModelConfig gpt(const Row& row, const Sizes& sizes) {
  Json keys;
  keys["model_type"] = "gpt2";
  keys["n_embd"] = row.hidden;
  keys["n_head"] = row.heads;
  keys["n_layer"] = row.layers;
  keys["n_positions"] = sizes.sequence;
  keys["vocab_size"] = sizes.vocabulary;
  keys["tie_word_embeddings"] = true;
  return accepted_model(keys);
}

/// Layers dealt out evenly over virtual stages; ends may have `fewer`.
std::vector<ChunkRange> stages_of(std::int64_t layers, std::int64_t stages) {
  std::vector<ChunkRange> ranges;
  std::int64_t first = 0;
  for (std::int64_t s = 0; s < stages; ++s) {
    const std::int64_t end = layers * (s + 1) / stages;
    ranges.push_back({first, end - first, s == 0, s + 1 == stages});
    first = end;
  }
  return ranges;
}

/// A published run: what predict_step asks for.
struct PublishedRun {
  ModelConfig model;
  Schedule schedule;
  StepLayout layout;
  double published = 0;
  [[nodiscard]] double predicted(const Cluster& cluster) const {
    StepLayout of = layout;
    of.schedule = &schedule;
    return predict_step(model, of, cluster).seconds;
  }
  [[nodiscard]] double error(const Cluster& cluster) const {
    return predicted(cluster) / published - 1;
  }
};

Schedule schedule_of(int pipeline, int virtual_stages, std::int64_t micro_batches) {
  ScheduleRequest request;
  request.kind = virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::kOneFOneB;
  request.stages = pipeline;
  if (virtual_stages > 1) request.virtual_stages = virtual_stages;
  request.micro_batches = static_cast<int>(micro_batches);
  return make_schedule(request);
}

PublishedRun run_of(const Row& row, const Sizes& sizes) {
  PublishedRun run;
  run.model = gpt(row, sizes);
  run.published = row.published;
  StepLayout& layout = run.layout;
  const int data = static_cast<int>(row.gpus / row.tensor / row.pipeline);
  layout.mesh = MeshShape({row.pipeline, data, 1, row.tensor});
  layout.passes = {row.batch, row.micro, row.batch / row.micro / data, data};
  layout.sequence_length = sizes.sequence;
  layout.device = DeviceKind::kCuda;
  layout.compute = DType::kBF16;
  layout.sums = ReductionOrder::kLibrary;
  layout.sequence_parallel = row.sequence_parallel;
  layout.recompute = row.recompute;
  layout.stages = stages_of(row.layers, std::int64_t{row.pipeline} * row.virtual_stages);
  run.schedule = schedule_of(row.pipeline, row.virtual_stages, layout.passes.accumulation);
  return run;
}

/// A constant that is fitted, as a factor of what stands there.
using Constant = std::function<double&(Cluster&)>;

struct Fit {
  Cluster cluster;
  double mean = 0, worst = 0;
};

/// Errors of the runs, printed.
Fit errors_of(const char* what, const std::vector<PublishedRun>& runs, Cluster cluster) {
  Fit fit{std::move(cluster)};
  std::string text;
  for (const PublishedRun& run : runs) {
    const double error = run.error(fit.cluster);
    fit.mean += std::abs(error) / static_cast<double>(runs.size());
    fit.worst = std::max(fit.worst, std::abs(error));
    text += fmt::format(" {:+.1f}", 100 * error);
  }
  fmt::print("{}: mean {:.1f} %, worst {:.1f} %:{}\n", what, 100 * fit.mean, 100 * fit.worst, text);
  return fit;
}

/// Solves a x = b, by elimination.
std::vector<double> solved(std::vector<std::vector<double>> a, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t row = i + 1; row < n; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (std::size_t k = i; k < n; ++k) a[row][k] -= factor * a[i][k];
      b[row] -= factor * b[i];
    }
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

/// Least squares of the logarithms of predicted over published, by Gauss and Newton.
Cluster fitted(const std::vector<PublishedRun>& runs, Cluster cluster,
               const std::vector<Constant>& constants) {
  const auto residuals = [&](const Cluster& of) {
    std::vector<double> all;
    for (const PublishedRun& run : runs) all.push_back(std::log1p(run.error(of)));
    return all;
  };
  constexpr double kStep = 1e-3;
  for (int iteration = 0; iteration < 3; ++iteration) {
    const std::vector<double> now = residuals(cluster);
    std::vector<std::vector<double>> slopes;
    for (const Constant& constant : constants) {
      Cluster more = cluster;
      constant(more) *= 1 + kStep;
      std::vector<double> slope = residuals(more);
      for (std::size_t i = 0; i < now.size(); ++i) slope[i] = (slope[i] - now[i]) / kStep;
      slopes.push_back(std::move(slope));
    }
    const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    };
    std::vector<std::vector<double>> matrix(constants.size());
    std::vector<double> right;
    for (std::size_t i = 0; i < constants.size(); ++i) {
      for (const auto& slope : slopes) matrix[i].push_back(dot(slopes[i], slope));
      matrix[i][i] += 1e-9;
      right.push_back(-dot(slopes[i], now));
    }
    const std::vector<double> change = solved(matrix, right);
    for (std::size_t i = 0; i < constants.size(); ++i)
      constants[i](cluster) *= std::exp(std::clamp(change[i], -0.5, 0.5));
  }
  return cluster;
}

double& gemm(Cluster& cluster) { return cluster.efficiency.gemm; }
double& memory(Cluster& cluster) { return cluster.efficiency.memory; }
double& node(Cluster& cluster) { return cluster.efficiency.node; }
double& step_seconds(Cluster& cluster) { return cluster.host.step_seconds; }

/// Selene's A100 of 80 GB, with the host of Megatron at that time (fitted to vTrain's rows of
/// one node that are not ours to ship).
Cluster selene() {
  Cluster cluster;
  cluster.devices_per_node = 8;
  cluster.device.tflops = {19.5, 312, 0};
  cluster.device.bytes_per_second = 2039e9;
  cluster.device.multiprocessors = 108;
  cluster.node = {300e9, 8e-6};
  cluster.network = {25e9, 8e-6};
  cluster.efficiency = {0.81, 1, 0.45, 0.6, 0.8};
  cluster.host = {1.2e-3, 0.577e-3, 0.105, 0.005};
  OtherProgram program;
  program.flash = false;
  program.elementwise_bytes = 20;
  program.cut_elementwise_bytes = 28;
  program.score_bytes = 13;
  program.logit_bytes = 14;
  program.embedding_bytes = 24;
  program.gradient_bytes = 2;
  program.optimizer_bytes = 50;
  cluster.program = program;
  return cluster;
}

/// Seconds of a step from the TFLOP/s that a paper's own formula gives.
double seconds_of(const Row& row, const Sizes& sizes, double tflops, double passes) {
  const double h = static_cast<double>(row.hidden), L = static_cast<double>(row.layers);
  const double s = static_cast<double>(sizes.sequence), V = static_cast<double>(sizes.vocabulary);
  const double flops = 24 * passes * static_cast<double>(row.batch) * s * L * h * h *
                       (1 + s / (6 * h) + V / (4 * passes * L * h));
  return flops / static_cast<double>(row.gpus) / tflops / 1e12;
}

constexpr Sizes kA100Sizes{2048, 51200}, kH100Sizes{4096, 131072};

/// Narayanan et al. 2021 (SC '21), table 1: fp16, full recomputation.
std::vector<PublishedRun> sc21() {
  struct Of {
    Row row;
    double tflops;
  };
  const Of table[] = {{{2304, 24, 24, 1, 1, 1, 32, 16, 512}, 137},
                      {{3072, 32, 30, 2, 1, 1, 64, 16, 512}, 138},
                      {{4096, 32, 36, 4, 1, 1, 128, 16, 512}, 142},
                      {{6144, 48, 40, 8, 1, 1, 256, 8, 1024}, 135},
                      {{8192, 64, 48, 8, 2, 1, 512, 4, 1536}, 138},
                      {{10240, 80, 60, 8, 4, 3, 1024, 2, 1792}, 140},
                      {{12288, 96, 80, 8, 8, 2, 1536, 2, 2304}, 148},
                      {{16384, 128, 96, 8, 16, 2, 1920, 1, 2160}, 155},
                      {{20480, 128, 105, 8, 35, 3, 2520, 1, 2520}, 163},
                      {{25600, 160, 128, 8, 64, 1, 3072, 1, 3072}, 163}};
  std::vector<PublishedRun> runs;
  for (Of of : table) {
    of.row.published = seconds_of(of.row, kA100Sizes, of.tflops, 4);
    runs.push_back(run_of(of.row, kA100Sizes));
  }
  return runs;
}

/// Korthikanti et al. 2022 (arXiv 2205.05198), table 5: full recomputation, then sequence
/// parallelism with selective recomputation.
std::vector<PublishedRun> sequence_parallel() {
  const Row table[] = {{6144, 64, 48, 8, 1, 1, 8, 4, 4, 1.42},
                       {12288, 96, 96, 8, 8, 3, 64, 1, 64, 18.13},
                       {20480, 128, 105, 8, 35, 3, 280, 1, 280, 49.05},
                       {25600, 160, 128, 8, 64, 1, 512, 1, 512, 94.42}};
  const double selective[] = {1.10, 13.75, 37.83, 71.49};
  std::vector<PublishedRun> runs;
  for (std::size_t i = 0; i < std::size(table); ++i) {
    Row row = table[i];
    runs.push_back(run_of(row, kA100Sizes));
    row.published = selective[i];
    row.sequence_parallel = true;
    row.recompute = Recompute::kSelective;
    runs.push_back(run_of(row, kA100Sizes));
  }
  return runs;
}

TEST(PublishedSteps, megatron_on_a100_by_three_constants) {
  const std::vector<PublishedRun> first = sc21(), second = sequence_parallel();
  errors_of("SC21, nothing fitted", first, selene());
  errors_of("sequence parallel, nothing fitted", second, selene());
  std::vector<PublishedRun> all = first;
  all.insert(all.end(), second.begin(), second.end());
  const Cluster cluster = fitted(all, selene(), {gemm, memory, node});
  fmt::print("fitted on both: efficiency.gemm {:.3f}, memory {:.3f}, node {:.3f}\n",
             cluster.efficiency.gemm, cluster.efficiency.memory, cluster.efficiency.node);
  EXPECT_LT(errors_of("SC21", first, cluster).mean, 0.05);
  EXPECT_LT(errors_of("sequence parallel", second, cluster).mean, 0.05);
}

/// H100 SXM nodes with InfiniBand of 400 Gbit/s a GPU, as megatron-core trains on them: flash
/// attention, transfers behind work, a distributed optimizer.
Cluster eos() {
  Cluster cluster;
  cluster.devices_per_node = 8;
  cluster.device.tflops = {67, 989, 1979};
  cluster.device.bytes_per_second = 3350e9;
  cluster.device.multiprocessors = 132;
  cluster.node = {450e9, 4e-6};
  cluster.network = {50e9, 8e-6};
  cluster.efficiency = {0.75, 0.85, 0.6, 0.75, 0.8};
  cluster.host = {4e-4, 6e-4, 0, 0.001};
  OtherProgram program;
  program.elementwise_bytes = 20;
  program.cut_elementwise_bytes = 28;
  program.logit_bytes = 14;
  program.embedding_bytes = 24;
  program.gradient_bytes = 4;
  program.optimizer_bytes = 40;
  program.overlap = {0.5, 0.9, 0.5};
  cluster.program = program;
  return cluster;
}

/// Megatron-core's README (images/model_table.png): bf16, 48 data ranks. It names neither
/// micro-batches nor virtual stages, which are assumed.
std::vector<PublishedRun> megatron_core() {
  struct Of {
    Row row;
    double tflops;
  };
  const Of table[] = {{{2048, 16, 24, 1, 1, 1, 48, 4, 192}, 408.8},
                      {{4096, 32, 30, 2, 1, 1, 96, 4, 192}, 465.9},
                      {{6144, 48, 32, 4, 1, 1, 192, 4, 192}, 489.1},
                      {{7168, 56, 48, 8, 1, 1, 384, 4, 192}, 459.6},
                      {{8192, 64, 84, 8, 2, 6, 768, 1, 384}, 419.7},
                      {{10240, 80, 92, 8, 4, 4, 1536, 1, 768}, 420.5},
                      {{12288, 96, 96, 8, 6, 4, 2304, 1, 1152}, 432.8},
                      {{16384, 128, 96, 8, 8, 3, 3072, 1, 1536}, 474.4},
                      {{18432, 144, 112, 8, 16, 1, 6144, 1, 3072}, 459.9}};
  std::vector<PublishedRun> runs;
  for (Of of : table) {
    of.row.sequence_parallel = of.row.tensor > 1;
    of.row.recompute = Recompute::kNone;
    of.row.published = seconds_of(of.row, kH100Sizes, of.tflops, 3);
    runs.push_back(run_of(of.row, kH100Sizes));
    runs.back().layout.zero_stage = 1;
    runs.back().layout.zero_ranks = 48;
  }
  return runs;
}

TEST(PublishedSteps, megatron_core_on_h100) {
  const std::vector<PublishedRun> runs = megatron_core();
  errors_of("megatron-core, nothing fitted", runs, eos());
  const Cluster cluster = fitted(runs, eos(), {gemm, memory});
  fmt::print("fitted: efficiency.gemm {:.3f}, memory {:.3f}\n", cluster.efficiency.gemm,
             cluster.efficiency.memory);
  EXPECT_LT(errors_of("megatron-core", runs, cluster).mean, 0.08);
}

/// MLPerf Training v5.0, Llama 3.1 405B in fp8 at 8,192 tokens: interleaved, 8 virtual stages a
/// rank, micro-batches of 1, the first and the last stage a layer short.
struct MlperfRow {
  int gpus, tensor;
  std::int64_t micro_batches, batch;
  double seconds;
};

PublishedRun run_of(const MlperfRow& row) {
  static const ModelConfig model = model_of(R"({"model_type":"llama","hidden_size":16384,
      "num_attention_heads":128,"num_key_value_heads":8,"num_hidden_layers":126,
      "intermediate_size":53248,"vocab_size":128256,"max_position_embeddings":8192,
      "tie_word_embeddings":false})");
  constexpr int kPipeline = 8, kVirtual = 8, kContext = 2;
  PublishedRun run;
  run.model = model;
  run.published = row.seconds;
  StepLayout& layout = run.layout;
  const int data = row.gpus / row.tensor / kPipeline / kContext;
  layout.mesh = MeshShape({kPipeline, data, kContext, row.tensor});
  layout.passes = {row.batch, 1, row.micro_batches, data};
  EXPECT_EQ(row.micro_batches * data, row.batch);
  layout.sequence_length = 8192;
  layout.device = DeviceKind::kCuda;
  layout.compute = DType::kBF16;
  layout.fp8 = Fp8Precision{};
  layout.sums = ReductionOrder::kLibrary;
  layout.sequence_parallel = true;
  layout.zero_stage = 1;
  layout.zero_ranks = data * kContext;
  std::int64_t first = 0;
  for (int s = 0; s < kPipeline * kVirtual; ++s) {
    const bool head = s + 1 == kPipeline * kVirtual;
    const std::int64_t layers = s == 0 || head ? 1 : 2;
    layout.stages.push_back({first, layers, s == 0, head});
    first += layers;
  }
  run.schedule = schedule_of(kPipeline, kVirtual, row.micro_batches);
  return run;
}

std::vector<PublishedRun> runs_of(std::initializer_list<MlperfRow> rows) {
  std::vector<PublishedRun> runs;
  for (const MlperfRow& row : rows) runs.push_back(run_of(row));
  return runs;
}

/// Two rows give two constants; the others are predicted.
void expect_scales(const char* what, const std::vector<PublishedRun>& known,
                   const std::vector<PublishedRun>& others, const Cluster& cluster, double worst) {
  const Cluster of = fitted(known, cluster, {gemm, step_seconds});
  fmt::print("{}: fitted on two rows: efficiency.gemm {:.3f}, host.step_seconds {:.3f}\n", what,
             of.efficiency.gemm, of.host.step_seconds);
  EXPECT_LT(errors_of("  those rows", known, of).worst, 0.001);
  EXPECT_LT(errors_of("  rows never used in fitting", others, of).worst, worst);
}

TEST(PublishedSteps, mlperf_405b_from_two_rows) {
  Cluster cluster = eos();
  cluster.host.step_seconds = 0.3;
  cluster.program->overlap = {0.7, 0.9, 0.9};
  expect_scales(
      "H100", runs_of({{512, 8, 288, 1152, 55.102}, {2048, 8, 72, 1152, 14.207}}),
      runs_of(
          {{2432, 8, 64, 1216, 12.701}, {2560, 8, 56, 1120, 11.185}, {8192, 8, 24, 1536, 5.182}}),
      cluster, 0.02);
}

TEST(PublishedSteps, mlperf_405b_on_gb200_from_two_rows) {
  Cluster cluster = eos();
  cluster.devices_per_node = 8;  // of NVLink's 72, as groups of eight divide the ranks
  cluster.device.tflops = {80, 2500, 5000};
  cluster.device.bytes_per_second = 8e12;
  cluster.device.multiprocessors = 148;
  cluster.node.bytes_per_second = 900e9;
  cluster.host.step_seconds = 0.2;
  cluster.program->overlap = {0.7, 0.9, 0.9};
  // CoreWeave's, of one machine; 1,536 GPUs have the layout of 1,024.
  expect_scales(
      "GB200", runs_of({{512, 4, 112, 896, 19.429}, {2048, 4, 40, 1280, 7.152}}),
      runs_of({{1024, 4, 48, 768, 8.448}, {1536, 4, 48, 1152, 8.491}, {2496, 4, 32, 1248, 5.823}}),
      cluster, 0.02);
}

/// A Llama on one GPU, as benchmarks of this program have run it (tests/bench/results).
double tokens_per_second(const Json& model, std::int64_t micro, std::int64_t accumulation, bool fp8,
                         const char* name) {
  std::vector<Problem> problems;
  const Cluster cluster = read_cluster(name, problems);
  PublishedRun run;
  run.model = accepted_model(model);
  StepLayout& layout = run.layout;
  layout.passes = {micro * accumulation, micro, accumulation, 1};
  layout.sequence_length = run.model.max_positions;
  layout.device = DeviceKind::kCuda;
  layout.compute = DType::kBF16;
  if (fp8) layout.fp8 = Fp8Precision{};
  layout.recorded = true;
  layout.stages = {whole_model(run.model)};
  run.schedule = schedule_of(1, 1, accumulation);
  return static_cast<double>(layout.passes.global * layout.sequence_length) /
         run.predicted(cluster);
}

Json llama(std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t layers,
           std::int64_t ffn, std::int64_t tokens) {
  Json keys;
  keys["model_type"] = "llama";
  keys["hidden_size"] = hidden;
  keys["num_attention_heads"] = heads;
  keys["num_key_value_heads"] = kv_heads;
  keys["num_hidden_layers"] = layers;
  keys["intermediate_size"] = ffn;
  keys["vocab_size"] = hidden == 4096 ? 32000 : 50304;
  keys["max_position_embeddings"] = tokens;
  return keys;
}

TEST(PublishedSteps, our_own_on_one_gpu_from_the_files_of_clusters) {
  const Json small = llama(768, 12, 12, 12, 2048, 1024),
             large = llama(1600, 25, 25, 48, 4352, 1024);
  const Json wide = llama(4096, 32, 8, 8, 14336, 8192);
  struct Case {
    const char* what;
    double predicted, measured;
  };
  const Case cases[] = {
      {"124 M, H100", tokens_per_second(small, 16, 1, false, "h100"), 491947},
      {"1,558 M, H100", tokens_per_second(large, 8, 1, false, "h100"), 45155},
      {"1,558 M, H200", tokens_per_second(large, 8, 1, false, "h200"), 46316},
      {"8B layers, H200", tokens_per_second(wide, 2, 4, false, "h200"), 44647},
      {"8B layers in fp8, H200", tokens_per_second(wide, 2, 4, true, "h200"), 51384},
      {"1,558 M in fp8, H200", tokens_per_second(large, 8, 1, true, "h200"), 46383},
  };
  for (const auto& [what, predicted, measured] : cases) {
    fmt::print("{}: {:.0f} tokens/s predicted, {:.0f} measured, {:+.1f} %\n", what, predicted,
               measured, 100 * (predicted / measured - 1));
    EXPECT_NEAR(predicted / measured, 1, 0.15) << what;
  }
}

}  // namespace
}  // namespace trireme
