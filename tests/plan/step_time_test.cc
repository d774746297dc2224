#include "plan/step_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/adapters.h"
#include "model/flops.h"
#include "optim/orthogonalize.h"
#include "plan/memory.h"
#include "plan/traffic.h"
#include "support/small_config.h"

namespace trireme {
namespace {

/// Products alone take time: 1 TFLOP/s of any type.
Cluster arithmetic_alone(DeviceKind kind = DeviceKind::kCpu) {
  Cluster cluster;
  cluster.devices_per_node = 8;
  cluster.device.kind = kind;
  cluster.device.tflops = {1, 1, 1};
  cluster.device.bytes_per_second = 1e24;
  cluster.node = {1e24, 0};
  cluster.network = {1e24, 0};
  cluster.efficiency = {1, 1, 1, 1, 1};
  return cluster;
}

/// Layers of 256 with the keys of a Llama, or of a Mixtral.
RunConfig config_of(const char* more = R"({"model_type":"llama"})", std::int64_t layers = 4) {
  Json model = parse_json(R"({"hidden_size":256,"num_attention_heads":8,"num_key_value_heads":8,
      "intermediate_size":512,"vocab_size":512,"max_position_embeddings":256})",
                          "model");
  const Json given = parse_json(more, "more");
  Json all = Json::object();
  for (const auto& [key, value] : given.as_object()) all[key] = value;
  for (const auto& [key, value] : model.as_object()) all[key] = value;
  all["num_hidden_layers"] = layers;
  RunConfig config = small_config(all);
  config.run.threads_per_rank = 1;  // however many ranks of a CPU's node there are
  config.data.sequence_length = 256;
  config.batch.micro = 2;
  return config;
}
constexpr const char* kMixtral =
    R"({"model_type":"mixtral","num_local_experts":8,"num_experts_per_tok":2})";

ResolvedRun resolved(const RunConfig& config, std::int64_t world, DeviceKind device) {
  ResolveInput input;
  input.world = world;
  input.device = device;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ResolvedRun run = resolve_run(config, input, problems, notes);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  return run;
}

PredictedStep predict(const RunConfig& config, std::int64_t world, const Cluster& cluster) {
  const ResolvedRun run = resolved(config, world, cluster.device.kind);
  return predict_step(config.model, step_layout(config, run), cluster);
}

TEST(StepTime, without_limits_of_memory_it_is_the_models_operations) {
  for (const char* keys : {R"({"model_type":"llama"})", R"({"model_type":"olmo2"})", kMixtral}) {
    const RunConfig config = config_of(keys);
    const PredictedStep step = predict(config, 1, arithmetic_alone());
    // Attention's backward makes the scores again: five products for two.
    double each = static_cast<double>(model_flops_per_token(config.model, 256));
    for (const LayerConfig& layer : config.model.layers)
      each += static_cast<double>(layer.attention.pair_size() * 256);
    EXPECT_NEAR(step.seconds, 512 * each / 1e12, 1e-6 * step.seconds) << keys;
    EXPECT_DOUBLE_EQ(step.seconds, step.compute + step.optimizer);
  }
}

TEST(StepTime, full_recomputation_adds_a_forward_pass) {
  RunConfig config = config_of();
  const double without = predict(config, 1, arithmetic_alone()).seconds;
  config.parallel.recompute = Recompute::kFull;
  const double with = predict(config, 1, arithmetic_alone()).seconds;
  // Of a layer's 6 N + 7 Q T it adds 2 N + 2 Q T less its last product.
  const double down = 2.0 * 512 * 256 * 512, in = 2.0 * 512 * 256 * (4 * 256 + 2 * 512);
  const double attention = 4.0 * 256 * 256 * 256;
  EXPECT_NEAR(with - without, 4 * (in + attention) / 1e12, 1e-6 * with);
  EXPECT_GT(down, 0);
}

TEST(StepTime, the_parts_add_up) {
  RunConfig config = config_of();
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  config.parallel.zero_stage = 1;
  config.batch.accumulation = 4;
  Cluster cluster = arithmetic_alone(DeviceKind::kCuda);
  cluster.device.bytes_per_second = 1e11;
  cluster.node = {1e10, 1e-6};
  cluster.network = {1e9, 1e-5};
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      config.parallel.pipeline_schedule = schedule;
      config.parallel.recompute = recompute;
      const PredictedStep step = predict(config, 16, cluster);
      EXPECT_NEAR(step.seconds,
                  step.compute + step.host + step.exposed.total() + step.bubble + step.optimizer,
                  1e-9 * step.seconds)
          << schedule;
      for (const double part :
           {step.compute, step.optimizer, step.exposed[Axis::kTensor], step.exposed[Axis::kData]})
        EXPECT_GT(part, 0) << schedule;
      EXPECT_GE(step.bubble, 0) << schedule;
    }
  }
}

TEST(StepTime, a_bubble_is_the_schedules) {
  RunConfig config = config_of();
  config.parallel.pipeline = 4;
  config.batch.accumulation = 8;
  const PredictedStep step = predict(config, 4, arithmetic_alone());
  // The head is on the last stage, which is then the longest; the first is done before it.
  const RunConfig one = config_of();
  const double layers = predict(one, 1, arithmetic_alone()).compute;
  EXPECT_GT(step.bubble, 0);
  EXPECT_GT(step.seconds, 8 * layers / 4 * (8 + 3) / 8 * 0.95);
  EXPECT_LT(step.seconds, 8 * layers / 4 * (8 + 3) / 8 * 1.5);
}

TEST(StepTime, transfers_hide_behind_work_on_gpus_and_between_nodes) {
  RunConfig config = config_of();
  config.batch.accumulation = 1;
  Cluster cluster = arithmetic_alone();
  cluster.node.bytes_per_second = cluster.network.bytes_per_second = 1e12;
  const PredictedStep in_node = predict(config, 2, cluster);
  EXPECT_EQ(in_node.hidden[Axis::kData], 0);  // cores move the bytes themselves
  cluster.devices_per_node = 1;
  const PredictedStep across = predict(config, 2, cluster);
  EXPECT_GT(across.hidden[Axis::kData], 0);
  EXPECT_NEAR(across.hidden[Axis::kData] + across.exposed[Axis::kData],
              in_node.exposed[Axis::kData], 1e-12);
  cluster.network.bytes_per_second = 1e8;  // slower than there is work
  const PredictedStep slow = predict(config, 2, cluster);
  EXPECT_GT(slow.exposed[Axis::kData], 10 * across.exposed[Axis::kData]);
}

TEST(StepTime, on_a_node_of_cpus_work_hides_that_ranks_wait_and_not_what_they_move) {
  RunConfig config = config_of();
  config.parallel.tensor = 2;
  Cluster cluster = arithmetic_alone();
  cluster.node.bytes_per_second = 1e12;
  const AxisNumbers moved = predict(config, 2, cluster).exposed;
  cluster.node.latency_seconds = 1e-9;  // shorter than any product
  const PredictedStep step = predict(config, 2, cluster);
  EXPECT_GT(step.hidden[Axis::kTensor], 0);
  EXPECT_LT(step.exposed[Axis::kTensor] - moved[Axis::kTensor], step.hidden[Axis::kTensor]);
}

TEST(StepTime, ranks_that_share_cores_wait_behind_the_work_of_others) {
  RunConfig config = config_of();
  config.parallel.tensor = 2;
  Cluster cluster = arithmetic_alone();
  cluster.devices_per_node = 4;
  cluster.node.latency_seconds = 1;  // longer than any work
  cluster.cores_per_node = 4;
  EXPECT_GT(predict(config, 4, cluster).exposed[Axis::kTensor], 1);
  cluster.cores_per_node = 2;
  const PredictedStep step = predict(config, 4, cluster);
  EXPECT_NEAR(step.hidden[Axis::kTensor], 4 * 10, 1);  // of each layer ten, but no head's
  EXPECT_LT(step.exposed[Axis::kTensor], 4);
}

TEST(StepTime, each_exchange_of_the_context_axis_waits) {
  RunConfig config = config_of();
  config.parallel.context = 2;
  Cluster cluster = arithmetic_alone();
  const auto waits = [&](ContextMethod method) {
    config.parallel.context_method = method;
    cluster.node.latency_seconds = 1;  // longer than any product
    const PredictedStep step = predict(config, 2, cluster);
    return std::round(step.exposed[Axis::kContext] + step.hidden[Axis::kContext]);
  };
  EXPECT_EQ(waits(ContextMethod::kRing), 4 * 4);       // of 4 layers, one forward and three back
  EXPECT_EQ(waits(ContextMethod::kAllGather), 4 * 3);  // back: keys and values again, their sums
  EXPECT_EQ(waits(ContextMethod::kUlysses), 4 * 6);
}

TEST(StepTime, stages_that_share_cores_fill_each_others_bubbles) {
  RunConfig config = config_of();
  config.parallel.pipeline = 4;
  config.batch.accumulation = 4;
  Cluster cluster = arithmetic_alone();
  cluster.devices_per_node = 4;
  const PredictedStep own = predict(config, 4, cluster);
  cluster.cores_per_node = 4;
  EXPECT_EQ(predict(config, 4, cluster).seconds, own.seconds);
  cluster.cores_per_node = 2;  // the rates are those of four ranks at once
  const PredictedStep shared = predict(config, 4, cluster);
  EXPECT_LT(shared.seconds, 0.8 * own.seconds);
  EXPECT_GT(shared.seconds, own.seconds / 2);
  EXPECT_NEAR(shared.seconds, shared.compute + shared.exposed.total() + shared.bubble,
              1e-9 * shared.seconds);
  // Four threads of two ranks are not kept on cores: any two ranks have them evenly.
  config.run.threads_per_rank = 2;
  cluster.cores_per_node = 4;
  cluster.device.threads = 2;
  EXPECT_LT(predict(config, 4, cluster).seconds, 0.99 * shared.seconds);
}

TEST(StepTime, zero_puts_shards_together_and_takes_them_apart) {
  RunConfig config = config_of();
  config.batch.accumulation = 2;
  Cluster cluster = arithmetic_alone();
  const double alone = predict(config, 2, cluster).compute;
  cluster.device.bytes_per_second = 1e9;
  double before = predict(config, 2, cluster).compute;
  EXPECT_GT(before, alone);
  for (const std::int64_t stage : {1, 2, 3}) {  // each moves more than the one before
    config.parallel.zero_stage = stage;
    const double compute = predict(config, 2, cluster).compute;
    EXPECT_GT(compute, before) << stage;
    before = compute;
  }
}

TEST(StepTime, magnitudes_take_the_lengths_of_rows) {
  RunConfig config = config_of();
  config.lora.rank = 4;
  const auto seconds = [&](bool magnitudes, const Cluster& cluster) {
    config.lora.dora = magnitudes;
    std::vector<Problem> problems;
    take_adapters(config, problems);
    EXPECT_TRUE(problems.empty()) << format_problems(problems);
    return predict(config, 1, cluster).compute;
  };
  Cluster cluster = arithmetic_alone();
  // q, k and v together, o, gate and up together, down; of four layers.
  const double products = 4 * 2.0 * 4 * (768 * 256 * 3 + 256 * 256 + 1024 * 256 * 2 + 256 * 512);
  EXPECT_NEAR(seconds(true, cluster) - seconds(false, cluster), products / 1e12, 1e-12);
  cluster.device.bytes_per_second = 1e9;
  EXPECT_GT(seconds(true, cluster) - seconds(false, cluster), 2 * products / 1e12);
}

TEST(StepTime, ranks_of_a_cpu_have_its_cores_and_their_host_time) {
  RunConfig config = config_of();
  Cluster cluster = arithmetic_alone();
  const double one_thread = predict(config, 1, cluster).compute;
  config.run.threads_per_rank = 0;  // all cores: those of eight ranks
  EXPECT_NEAR(predict(config, 1, cluster).compute, one_thread / 8, 1e-9 * one_thread);
  cluster.host.layer_forward_seconds = 1;
  cluster.host.layer_backward_seconds = 2;
  EXPECT_NEAR(predict(config, 1, cluster).host, 4 * (1 + 2), 1e-9);
}

TEST(StepTime, hosts_bound_layers_that_are_not_replayed) {
  RunConfig config = config_of();
  Cluster cluster = arithmetic_alone(DeviceKind::kCuda);
  cluster.host = {1, 2, 0, 0};
  EXPECT_EQ(predict(config, 1, cluster).host, 0);
  config.run.cuda_graph = CudaGraph::kOff;
  EXPECT_NEAR(predict(config, 1, cluster).seconds, 4 * (1 + 2), 0.01);
}

TEST(StepTime, whole_matrices_take_their_products_shared_by_those_who_hold_parts) {
  RunConfig config = config_of();
  const Cluster cluster = arithmetic_alone();
  const auto longer = [&](std::int64_t world) {
    config.optimizer.kind = OptimizerKind::kAdamW;
    const double elements = predict(config, world, cluster).optimizer;
    config.optimizer.kind = OptimizerKind::kMuon;
    return predict(config, world, cluster).optimizer - elements;
  };
  const double all =
      4 * (4 * orthogonalize_operations({256, 256}) + 3 * orthogonalize_operations({512, 256})) /
      1e12;
  EXPECT_NEAR(longer(1), all, 1e-6 * all);
  EXPECT_NEAR(longer(4), all, 1e-6 * all) << "copies do the same";
  config.parallel.zero_stage = 1;
  EXPECT_NEAR(longer(4), all / 4, 1e-6 * all);
  EXPECT_NEAR(longer(8), all / 28 * 4, 1e-6 * all) << "of 28 matrices four on some rank";
  config.parallel.tensor = 2;
  EXPECT_NEAR(longer(4), all / 4, 1e-6 * all);
  config.model = config_of(kMixtral).model;
  config.parallel.tensor = 1;
  config.parallel.expert = 4;
  const double dense = 16 * orthogonalize_operations({256, 256}) / 1e12,
               experts = 4 * 24 * orthogonalize_operations({512, 256}) / 1e12;
  EXPECT_NEAR(longer(4), dense / 4 + experts / 4, 1e-6 * (dense + experts));
}

/// What a rank sends by axis, as the plan counts it without a few numbers (statistics) and partial
/// gradients of norms.
void expect_bytes(const char* what, const RunConfig& config, std::int64_t world) {
  Cluster cluster = arithmetic_alone();
  const ResolvedRun run = resolved(config, world, DeviceKind::kCpu);
  const PredictedStep step = predict_step(config.model, step_layout(config, run), cluster);
  const int rank = step.pipeline_rank * run.mesh.stage_size();
  AxisNumbers counted;
  for (const Traffic& traffic : step_traffic(
           config.model, memory_request(config, run, StagePurpose::kTraining, rank), false)) {
    if (std::string_view(traffic.kind) == "statistics") continue;
    counted[traffic.axis] += static_cast<double>(traffic.bytes);
  }
  for (const Axis axis : kTrafficAxes)
    EXPECT_NEAR(step.bytes[axis], counted[axis], 0.02 * counted[axis])
        << what << ", " << name_of(axis);
}

TEST(StepTime, walks_over_the_bytes_that_the_plan_counts) {
  const RunConfig plain = config_of();
  const auto check = [&](const char* what, std::int64_t world, auto&& change) {
    RunConfig config = plain;
    config.batch.accumulation = 2;
    change(config);
    expect_bytes(what, config, world);
  };
  check("data", 4, [](RunConfig&) {});
  for (const std::int64_t stage : {1, 2, 3})
    check("ZeRO", 4, [&](RunConfig& config) { config.parallel.zero_stage = stage; });
  const auto muon = [](RunConfig& config) { config.optimizer.kind = OptimizerKind::kMuon; };
  check("whole matrices, copies", 4, muon);
  check("whole matrices, ZeRO", 4, [&](RunConfig& config) {
    muon(config);
    config.parallel.zero_stage = 1;
  });
  check("whole matrices, tensor", 2, [&](RunConfig& config) {
    muon(config);
    config.parallel.tensor = 2;
  });
  check("tensor", 2, [](RunConfig& config) { config.parallel.tensor = 2; });
  check("recomputed", 2, [](RunConfig& config) {
    config.parallel.tensor = 2;
    config.parallel.recompute = Recompute::kFull;
  });
  check("no sequence parallelism", 2, [](RunConfig& config) {
    config.parallel.tensor = 2;
    config.parallel.sequence_parallel = false;
  });
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses})
    check("context", 2, [&](RunConfig& config) {
      config.parallel.context = 2;
      config.parallel.context_method = method;
    });
  check("pipeline", 2, [](RunConfig& config) { config.parallel.pipeline = 2; });
  check("experts", 4, [](RunConfig& config) {
    config.model = config_of(kMixtral).model;
    config.parallel.expert = 4;
  });
}

}  // namespace
}  // namespace trireme
