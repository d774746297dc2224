// What `train plan` says that a rank sends, beside what its channels have counted.

#include <gtest/gtest.h>

#include "config/adapters.h"
#include "dataset/loader.h"
#include "plan/traffic.h"
#include "support/gradient_norm.h"
#include "support/mpi_test.h"
#include "support/small_config.h"
#include "support/temporary_directory.h"
#include "train/rank_placement.h"
#include "train/run_data.h"
#include "train/step.h"

namespace trireme {
namespace {

// 4 heads that share 2 of keys; nothing divides 61 and 37. A step has fewer tokens than half of
// 1,301, so that the embedding's gradient travels as rows.
const char* const kModels[] = {
    R"({"model_type":"llama","hidden_size":24,"num_attention_heads":4,"num_key_value_heads":2,
        "num_hidden_layers":3,"intermediate_size":40,"vocab_size":61})",
    R"({"model_type":"qwen3","hidden_size":10,"head_dim":6,"num_attention_heads":4,
        "num_key_value_heads":1,"num_hidden_layers":2,"intermediate_size":12,"vocab_size":37,
        "tie_word_embeddings":true})",
    R"({"model_type":"gpt2","n_embd":24,"n_head":4,"n_layer":2,"n_positions":24,
        "vocab_size":37})",
    R"({"model_type":"llama","hidden_size":24,"num_attention_heads":4,"num_key_value_heads":2,
        "num_hidden_layers":1,"intermediate_size":40,"vocab_size":1301})"};

/// Settings that are dealt out to the cells in turn, so that all of them meet.
RunConfig config_of(int turn) {
  RunConfig config = small_config(parse_json(kModels[turn % 4], "model"));
  config.run.threads_per_rank = 1;
  config.run.device = DeviceChoice::kCpu;
  config.data.sequence_length = 24;
  config.data.document_mask = turn % 3 != 0;
  config.batch.micro = 1 + turn % 2;
  config.batch.accumulation = 1 + turn % 5 % 3;
  config.precision.compute = turn % 7 < 2 ? ComputePrecision::kBf16 : ComputePrecision::kFp32;
  config.optimizer.state = turn % 8 > 3 ? MomentType::k8bit : MomentType::kFp32;
  config.precision.wire = turn % 5 < 2 ? DType::kBF16 : DType::kF32;
  config.parallel.sequence_parallel = turn % 4 != 0;
  config.parallel.recompute = static_cast<Recompute>(turn / 2 % 3);
  if (turn % 3 == 1) config.optimizer.kind = OptimizerKind::kMuon;
  if (turn % 5 == 2) config.optimizer.kind = OptimizerKind::kAdafactor;
  if (config.optimizer.kind != OptimizerKind::kAdamW) config.optimizer.state = MomentType::kFp32;
  return config;
}

ByAxis sum_by_axis(const std::vector<Traffic>& traffic) {
  ByAxis sum;
  for (const Traffic& each : traffic) sum[each.axis] += each.bytes;
  return sum;
}

/// False where the rules refuse the config on this world.
bool run_cell(const RunConfig& config, int turn) {
  Communicator& world = test_world();
  PreparedRun prepared;
  prepared.config = config;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ResolveInput input;
  input.world = world.size();
  prepared.run = resolve_run(config, input, problems, notes);
  if (!problems.empty()) return false;
  Placement placement;
  placement.threads = 1;
  Runtime runtime(test_launch(), config, prepared.run,
                  runtime_options(prepared, test_launch(), placement, StagePurpose::kTraining));
  runtime.store.initialise(runtime.context, 1);
  runtime.weights_changed(Runtime::Copies::kStale);
  const ByAxis planned = sum_by_axis(step_traffic(
      config.model, memory_request(config, prepared.run, StagePurpose::kTraining, world.rank()),
      config.data.document_mask));
  SourceRequest request;
  request.vocab_size = config.model.vocab_size;
  Loader loader(make_training_source(config, request), config.data, batch_shape(prepared, runtime),
                -1, config.model.vocab_size);
  Step step(runtime);
  const std::string cell = fmt::format("turn {}: {}, zero {}, rank {}", turn, runtime.mesh.text(),
                                       config.parallel.zero_stage, world.rank());
  for (int i = 0; i < 2; ++i) {
    const ByAxis before = runtime.channels.sent_bytes();
    const StepBatch batch = loader.next();
    step.forward_backward(batch.micro_batches, batch.target_count);
    step.update(config.optimizer.lr,
                gradient_norm(runtime.context, runtime.store, runtime.replica()));
    const ByAxis sent = runtime.channels.sent_bytes() - before;
    for (const Axis axis : kAxes) {
      if (axis == Axis::kExpert && config.model.has_experts()) continue;  // as tokens choose
      EXPECT_EQ(sent[axis], planned[axis]) << cell << ", step " << i << ", " << name_of(axis);
    }
  }
  return true;
}

TEST(Traffic, is_what_the_channels_have_sent) {
  const int ranks = test_world().size();
  const TemporaryDirectory directory;
  int turn = 0, cells = 0;
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int context = 1; tensor * context <= ranks; ++context) {
      if (ranks % (tensor * context) != 0) continue;
      for (std::int64_t stage = 0; stage <= 3; ++stage) {
        for (const ContextMethod method :
             {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
          if (context == 1 && method != ContextMethod::kRing) continue;
          RunConfig config = config_of(++turn);
          config.parallel.tensor = tensor;
          config.parallel.context = context;
          config.parallel.context_method = method;
          config.parallel.zero_stage = stage;
          if (turn % 6 == 3) {  // three layers, more than are gathered at a time
            config.parallel.recompute = Recompute::kFull;
            Schedule schedule = make_1f1b(1, static_cast<int>(*config.batch.accumulation));
            schedule.ranks[0].insert(schedule.ranks[0].begin() + 1, {ActionKind::kRecompute, 0, 0});
            config.parallel.pipeline_schedule =
                directory.write("schedule.json", schedule_json(schedule).dump()).string();
          }
          const int peers = ranks / tensor;
          if (stage > 0 && peers == 4 && turn % 2 == 0) config.parallel.zero_group = 2;
          cells += run_cell(config, turn);
        }
      }
    }
  }
  // Three divide no number of heads here.
  EXPECT_EQ(cells, ranks == 3 ? 12 : turn);
}

TEST(Traffic, of_norms_behind_branches_and_of_all_heads_is_what_the_channels_have_sent) {
  const int ranks = test_world().size();
  if (4 % ranks != 0) GTEST_SKIP() << "the heads do not divide";
  int cells = 0;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const bool sequence_parallel : {false, true}) {
      RunConfig config = config_of(1 + cells);
      config.model = small_config(parse_json(R"({"model_type":"olmo2","hidden_size":24,
          "num_attention_heads":4,"num_key_value_heads":1,"num_hidden_layers":2,
          "intermediate_size":40,"vocab_size":61})",
                                             "model"))
                         .model;
      config.parallel.tensor = ranks;
      config.parallel.sequence_parallel = sequence_parallel;
      config.parallel.recompute = recompute;
      cells += run_cell(config, cells);
    }
  }
  EXPECT_EQ(cells, 6);
}

TEST(Traffic, of_values_of_fewer_dims_than_keys_is_what_the_channels_have_sent) {
  const int ranks = test_world().size();
  int cells = 0;
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      RunConfig config = config_of(1 + cells);
      config.model = small_config(parse_json(R"({"model_type":"deepseek_v3","hidden_size":24,
          "num_attention_heads":12,"num_key_value_heads":12,"num_hidden_layers":2,
          "intermediate_size":40,"first_k_dense_replace":2,"q_lora_rank":16,"kv_lora_rank":12,
          "qk_nope_head_dim":6,"qk_rope_head_dim":4,"v_head_dim":4,"vocab_size":61})",
                                             "model"))
                         .model;
      config.parallel.context = ranks;
      config.parallel.context_method = method;
      config.parallel.recompute = recompute;
      cells += run_cell(config, cells);
    }
  }
  EXPECT_EQ(cells, 6);
}

TEST(Traffic, between_stages_is_what_the_channels_have_sent) {
  const int ranks = test_world().size();
  if (ranks % 2 != 0) GTEST_SKIP() << "two stages are on an even number of ranks";
  int turn = 0, cells = 0;
  for (std::int64_t stage = 0; stage <= 3; ++stage) {
    for (const bool tensor : {false, true}) {
      if (tensor && ranks < 4) continue;
      for (int model = 0; model < 3; ++model) {  // those of two layers and more; one is tied
        RunConfig config = config_of(12 * ++turn + model);
        config.parallel.pipeline = 2;
        config.parallel.tensor = tensor ? 2 : 1;
        config.parallel.zero_stage = stage;
        cells += run_cell(config, turn);
      }
    }
  }
  EXPECT_EQ(cells, ranks < 4 ? 12 : 24);
}

/// Sizes of which no cut is at a block of 128, and recipes in turn.
TEST(Traffic, of_fp8_is_what_the_channels_have_sent) {
  const int ranks = test_world().size();
  int turn = 0, cells = 0;
  for (const bool by_tensor : {false, true}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const bool parts : {false, true}) {  // sequence parallelism, or ZeRO 3 and not 1
        if (by_tensor && 12 % ranks != 0) continue;
        RunConfig config = config_of(++turn);
        config.model = small_config(parse_json(R"({"model_type":"llama","hidden_size":160,
            "head_dim":16,"num_attention_heads":12,"num_key_value_heads":12,
            "num_hidden_layers":3,"intermediate_size":576,"vocab_size":61})",
                                               "model"))
                           .model;
        config.precision.compute = ComputePrecision::kFp8;
        config.precision.fp8 = Fp8Precision{turn % 2 == 0 ? Fp8Recipe::kTensor : Fp8Recipe::kBlock,
                                            DType::kF8E4M3,
                                            {turn % 3 == 0 ? 1 : 0, 0}};
        config.parallel.tensor = by_tensor ? ranks : 1;
        config.parallel.sequence_parallel = parts;
        config.parallel.zero_stage = by_tensor ? 0 : parts ? 3 : 1;
        config.parallel.recompute = recompute;
        cells += run_cell(config, turn);
      }
    }
  }
  EXPECT_EQ(cells, turn);
}

/// Alone, beside an MLP that all tokens share by a gate, and with latents.
const char* const kExpertModels[] = {
    R"({"model_type":"qwen3_moe","hidden_size":192,"num_attention_heads":12,"head_dim":16,
        "num_key_value_heads":12,"num_hidden_layers":2,"intermediate_size":192,
        "moe_intermediate_size":192,"num_experts":12,"num_experts_per_tok":2,"vocab_size":61})",
    R"({"model_type":"qwen2_moe","hidden_size":192,"num_attention_heads":12,
        "num_key_value_heads":12,"num_hidden_layers":2,"intermediate_size":192,
        "moe_intermediate_size":192,"num_experts":12,"num_experts_per_tok":2,
        "shared_expert_intermediate_size":192,"vocab_size":61})",
    R"({"model_type":"deepseek_v3","hidden_size":160,"num_attention_heads":12,
        "num_key_value_heads":12,"num_hidden_layers":2,"intermediate_size":192,
        "moe_intermediate_size":192,"n_routed_experts":12,"num_experts_per_tok":2,"n_group":1,
        "topk_group":1,"first_k_dense_replace":1,"q_lora_rank":48,"kv_lora_rank":80,
        "qk_nope_head_dim":16,"qk_rope_head_dim":16,"v_head_dim":32,"vocab_size":61})"};

TEST(Traffic, of_experts_in_fp8_is_what_the_channels_have_sent) {
  const int ranks = test_world().size();
  int turn = 0;
  for (const bool by_tensor : {false, true}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      for (const char* const model : kExpertModels) {
        RunConfig config = config_of(++turn);
        config.model = small_config(parse_json(model, "model")).model;
        config.precision.compute = ComputePrecision::kFp8;
        config.precision.fp8 = Fp8Precision{
            turn % 2 == 0 ? Fp8Recipe::kTensor : Fp8Recipe::kBlock, DType::kF8E4M3, {0, 0}};
        config.parallel.tensor = by_tensor ? ranks : 1;
        config.parallel.sequence_parallel = by_tensor;
        config.parallel.expert = turn % 3 == 1 ? 1 : ranks;
        config.parallel.zero_stage = by_tensor ? 0 : 1 + turn % 3;
        config.parallel.recompute = recompute;
        EXPECT_TRUE(run_cell(config, turn));
      }
    }
  }
}

/// Below the first layer that is trained nothing comes back, whichever axis it would come by.
TEST(Traffic, of_adapters_counts_no_gradients_below_the_first) {
  const int ranks = test_world().size();
  const std::string last = "layers.2.mlp.up_proj";
  const std::vector<std::vector<std::string>> cases = {{}, {last}, {last, "lm_head"}, {"lm_head"}};
  for (const auto& targets : cases) {
    for (const char* axis : {"tensor", "sequence", "context", "zero 2", "zero 3", "pipeline"}) {
      const std::string_view name = axis;
      RunConfig config = config_of(4);
      config.model.layers.resize(std::max<std::size_t>(3, static_cast<std::size_t>(ranks)),
                                 config.model.layer(0));
      RunConfig::Parallel& parallel = config.parallel;
      if (name == "tensor" || name == "sequence") parallel.tensor = ranks;
      parallel.sequence_parallel = name == "sequence";
      if (name == "context") parallel.context = ranks;
      if (name == "pipeline") parallel.pipeline = ranks;
      if (name.starts_with("zero")) parallel.zero_stage = name.back() - '0';
      config.lora.rank = 2;
      config.lora.dropout = 0.5;
      config.lora.dora = name == "tensor";
      config.lora.targets = targets;
      std::vector<Problem> none;
      take_adapters(config, none);
      ASSERT_TRUE(none.empty()) << format_problems(none);
      SCOPED_TRACE(fmt::format("{}, {} targets", axis, targets.size()));
      if (parallel.tensor == 3) continue;  // of four heads
      EXPECT_TRUE(run_cell(config, 4));
    }
  }
}

}  // namespace
}  // namespace trireme
