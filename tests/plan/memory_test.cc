#include "plan/memory.h"

#include <gtest/gtest.h>

#include "config/adapters.h"
#include "model/flops.h"
#include "support/small_config.h"

namespace trireme {
namespace {

MemoryRequest request_for(const ResolvedBatch& batch, std::int64_t tokens,
                          DType compute = DType::kF32,
                          StagePurpose purpose = StagePurpose::kTraining) {
  MemoryRequest request;
  request.passes = batch;
  request.sequence_length = tokens;
  request.compute = compute;
  request.purpose = purpose;
  return request;
}

TEST(Memory, of_gpt2_124m_is_known_from_its_124_million_parameters) {
  const ModelConfig model = model_of(R"({"model_type":"gpt2"})");
  constexpr std::int64_t kParameters = 124439808;  // as published
  const RankMemory fp32 = estimate_memory(model, request_for({8, 4, 2, 1}, 1024));
  // Padding between groups stays far below a thousandth.
  EXPECT_NEAR(static_cast<double>(fp32.parameters), 4.0 * kParameters, 4e5);
  EXPECT_NEAR(static_cast<double>(fp32.optimizer), 8.0 * kParameters, 8e5);
  // The tied embedding has a second accumulator.
  EXPECT_NEAR(static_cast<double>(fp32.gradients), 4.0 * (kParameters + 50257 * 768), 4e5);
  const RankMemory bf16 = estimate_memory(model, request_for({8, 4, 2, 1}, 1024, DType::kBF16));
  EXPECT_NEAR(static_cast<double>(bf16.parameters), 6.0 * kParameters, 6e5);
  EXPECT_LT(bf16.activations, fp32.activations);
  RunConfig config;
  config.model = model;
  EXPECT_EQ(checkpoint_bytes(config), 12 * kParameters);
}

TEST(Memory, an_optimizer_takes_its_moments_and_averages_of_what_is_trained) {
  RunConfig config;
  config.model = model_of(R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,
      "num_hidden_layers":2,"intermediate_size":96,"vocab_size":128})");
  MemoryRequest request = request_for({1, 1, 1, 1}, 16);
  const std::int64_t adamw = estimate_memory(config.model, request).optimizer, moment = adamw / 2,
                     all = count_parameters(config.model).total;
  EXPECT_EQ(checkpoint_bytes(config), 12 * all);
  request.speculative_step = true;
  EXPECT_EQ(estimate_memory(config.model, request).undo, 12 * all);
  request.optimizer.ema = config.optimizer.ema = 0.5;
  EXPECT_EQ(estimate_memory(config.model, request).optimizer, 3 * moment);
  EXPECT_EQ(estimate_memory(config.model, request).undo, 12 * all);
  EXPECT_EQ(checkpoint_bytes(config), 16 * all);
  request.optimizer.kind = config.optimizer.kind = OptimizerKind::kLion;
  EXPECT_EQ(estimate_memory(config.model, request).optimizer, 2 * moment);
  EXPECT_EQ(estimate_memory(config.model, request).undo, 8 * all);
  EXPECT_EQ(checkpoint_bytes(config), 12 * all);
  RunConfig::Optimizer free = request.optimizer;
  free.kind = OptimizerKind::kScheduleFree;
  free.ema = 0;
  MemoryRequest apart = request;
  apart.optimizer = free;
  EXPECT_EQ(estimate_memory(config.model, apart).optimizer, adamw);
  EXPECT_EQ(estimate_memory(config.model, apart).undo, 12 * all);
  EXPECT_EQ(estimate_memory(config.model, apart).parameters, 8 * all) << "fp32: x and y";
  // Matrices of layers have one moment and no other's; each comes together somewhere.
  const std::int64_t matrices = 2 * (4 * 64 * 64 + 3 * 64 * 96), others = all - matrices,
                     buffers = estimate_memory(config.model, request).buffers;
  request.optimizer.kind = config.optimizer.kind = OptimizerKind::kMuon;
  const RankMemory muon = estimate_memory(config.model, request);
  EXPECT_EQ(muon.optimizer, 8 * matrices + 12 * others);
  EXPECT_EQ(muon.undo, 8 * matrices + 12 * others);
  EXPECT_EQ(checkpoint_bytes(config), 12 * matrices + 16 * others);
  EXPECT_EQ(muon.buffers - buffers, 4 * (64 * 96 + 2 * 64 * 96 + 2 * 64 * 64));
  request.optimizer.kind = config.optimizer.kind = OptimizerKind::kLion;
  // Of Adafactor a value for each row and column, of vectors one for each element.
  RunConfig factored = config;
  factored.optimizer = RunConfig::Optimizer();
  apart.optimizer.kind = factored.optimizer.kind = OptimizerKind::kAdafactor;
  const std::int64_t layer = 2 * (64 + 64) + 2 * (64 + 64) + 3 * (64 + 96) + 2 * 64;
  const std::int64_t lines = 2 * (128 + 64) + 2 * layer + 64;
  EXPECT_EQ(estimate_memory(config.model, apart).optimizer, 4 * lines);
  EXPECT_EQ(estimate_memory(config.model, apart).undo, 4 * (all + lines));
  EXPECT_EQ(checkpoint_bytes(factored), 4 * (all + lines));
  // What stands still has neither gradient nor moments.
  const std::int64_t before = estimate_memory(config.model, request).gradients;
  config.model.groups = {{"layers", 1, std::nullopt, false}};
  const std::int64_t trained = count_parameters(config.model).trained;
  const RankMemory found = estimate_memory(config.model, request);
  EXPECT_EQ(trained, 2 * 64 * 128 + 64);
  EXPECT_EQ(found.gradients, 4 * trained);
  EXPECT_LT(found.gradients, before);
  EXPECT_EQ(found.optimizer, 8 * trained);
  EXPECT_EQ(checkpoint_bytes(config), 4 * all + 8 * trained);
}

TEST(Memory, activations_grow_with_the_micro_batch_and_not_with_accumulation) {
  const ModelConfig model =
      model_of(R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,
      "num_hidden_layers":2,"intermediate_size":128,"vocab_size":257})");
  const auto of = [&](std::int64_t micro, std::int64_t accumulation) {
    return estimate_memory(model, request_for({micro * accumulation, micro, accumulation, 1}, 64));
  };
  EXPECT_GT(of(2, 1).activations, of(1, 1).activations);
  EXPECT_EQ(of(2, 4).activations, of(2, 1).activations);
  EXPECT_GT(of(2, 4).buffers, of(2, 1).buffers);
  const RankMemory evaluation =
      estimate_memory(model, request_for({2, 2, 1, 1}, 64, DType::kF32, StagePurpose::kEvaluation));
  EXPECT_EQ(evaluation.gradients + evaluation.optimizer, 0);
  EXPECT_LT(evaluation.activations, of(2, 1).activations);
  EXPECT_EQ(of(1, 1).total(), of(1, 1).parameters + of(1, 1).gradients + of(1, 1).optimizer +
                                  of(1, 1).activations + of(1, 1).buffers);
}

/// Two ranks of a host: a slot holds what one writes for the other and its own sum, and it reads
/// the other's of both. A GPU's has room for the other's version of two sums under way.
TEST(Memory, ranks_stage_their_sums_in_rank_order) {
  const ModelConfig model =
      model_of(R"({"model_type":"llama","hidden_size":16,"num_attention_heads":4,
      "num_hidden_layers":1,"intermediate_size":16,"vocab_size":32})");
  DeviceKind device = DeviceKind::kCpu;
  const auto staged = [&](std::array<int, kAxisCount> mesh, std::int64_t zero_stage) {
    RunConfig::Parallel parallel;
    parallel.zero_stage = zero_stage;
    MemoryRequest request = request_for({1, 1, 1, 1}, 64);
    request.part = part_of_rank(parallel, MeshShape(mesh), 0, StagePurpose::kTraining);
    request.device = device;
    const std::int64_t in_rank_order = estimate_memory(model, request).buffers;
    request.sums = ReductionOrder::kLibrary;
    return in_rank_order - estimate_memory(model, request).buffers;
  };
  EXPECT_EQ(staged({1, 1, 1, 1}, 0), 0);
  // The largest block: four 16 x 16 projections, three of the MLP, two norms.
  constexpr std::int64_t kLayer = (7 * 16 * 16 + 2 * 16) * 4;
  EXPECT_EQ(staged({1, 2, 1, 1}, 0), 3 * 4 * (kLayer / 2));
  // A sum to the owners, and a gather of the weights; 8 rows of a norm take the room of 16.
  constexpr std::int64_t kShard = kLayer / 2 + 2 * 8 * 4;
  EXPECT_EQ(staged({1, 2, 1, 1}, 1), 3 * 2 * kShard + 3 * 2 * kShard);
  EXPECT_EQ(staged({1, 1, 1, 2}, 0), 3 * 4 * (64 * 16 * 4 / 2));  // residual rows
  EXPECT_EQ(staged({1, 1, 2, 1}, 0), 3 * 4 * (kLayer / 2));  // gradients; a ring stages nothing
  device = DeviceKind::kCuda;
  EXPECT_EQ(staged({1, 1, 1, 1}, 0), 0);
  EXPECT_EQ(staged({1, 2, 1, 1}, 0), 2 * kLayer / 2);
  EXPECT_EQ(staged({1, 4, 1, 1}, 0), 2 * kLayer / 4 * 3);
  EXPECT_EQ(staged({1, 1, 1, 2}, 0), 2 * 64 * 16 * 4 / 2);
}

TEST(Memory, nccl_is_counted_apart_for_each_axis_that_connects_ranks) {
  const ModelConfig model =
      model_of(R"({"model_type":"llama","hidden_size":16,"num_attention_heads":4,
      "num_hidden_layers":2,"intermediate_size":16,"vocab_size":32})");
  const auto of = [&](std::array<int, kAxisCount> mesh, DeviceKind device, std::int64_t ctas = 0) {
    MemoryRequest request = request_for({1, 1, 1, 1}, 64);
    request.part = part_of_rank({}, MeshShape(mesh), 0, StagePurpose::kTraining);
    request.device = device;
    request.nccl_max_ctas = ctas;
    const RankMemory memory = estimate_memory(model, request);
    EXPECT_EQ(memory.total(), memory.parameters + memory.gradients + memory.optimizer +
                                  memory.activations + memory.buffers + memory.libraries);
    return memory.libraries;
  };
  EXPECT_EQ(of({1, 2, 1, 2}, DeviceKind::kCpu), 0);
  EXPECT_EQ(of({1, 1, 1, 1}, DeviceKind::kCuda), 0);
  const std::int64_t axis = of({1, 2, 1, 1}, DeviceKind::kCuda);
  EXPECT_EQ(axis, 24 * 9728 * 1024);
  EXPECT_EQ(of({1, 2, 1, 2}, DeviceKind::kCuda), 2 * axis);
  EXPECT_EQ(of({1, 2, 1, 1}, DeviceKind::kCuda, 8), axis / 3);
}

TEST(Memory, nccl_of_experts_has_axes_of_its_own) {
  const ModelConfig model = model_of(R"({"model_type":"mixtral","hidden_size":16,
      "num_attention_heads":4,"num_key_value_heads":4,"num_hidden_layers":2,"intermediate_size":16,"vocab_size":32,
      "num_local_experts":4})");
  ModelConfig adapted = model;
  set_adapters(adapted, {2, 1, false, {"experts.down_proj"}});
  const auto axes = [&](std::int64_t expert, std::int64_t expert_tensor, bool fp8,
                        const ModelConfig& of) {
    RunConfig::Parallel parallel;
    parallel.expert = expert;
    parallel.expert_tensor = expert_tensor;
    MemoryRequest request = request_for({1, 1, 1, 1}, 64);
    request.part = part_of_rank(parallel, MeshShape({1, 4, 1, 1}), 0, StagePurpose::kTraining);
    if (fp8) request.part.fp8.emplace();
    request.device = DeviceKind::kCuda;
    return estimate_memory(of, request).libraries / (24 * 9728 * 1024);
  };
  EXPECT_EQ(axes(1, 1, false, model), 2);  // gradients of either kind
  EXPECT_EQ(axes(2, 1, true, model), 3);   // and tokens
  EXPECT_EQ(axes(4, 1, false, model), 2);  // experts' gradients are summed on one rank
  EXPECT_EQ(axes(2, 2, false, model), 2);
  EXPECT_EQ(axes(2, 2, true, model), 3);     // and maxima of weights
  EXPECT_EQ(axes(2, 2, false, adapted), 3);  // or gradients of adapters
}

TEST(Memory, of_experts_adapters_are_masters_gradients_and_moments_beside_a_base_in_one_copy) {
  const ModelConfig model = model_of(R"({"model_type":"mixtral","hidden_size":32,
      "num_attention_heads":4,"num_key_value_heads":4,"num_hidden_layers":2,"intermediate_size":16,
      "vocab_size":64,"num_local_experts":4})");
  ModelConfig adapted = model;
  set_adapters(adapted, {16, 1, false, {"experts.gate_up_proj", "experts.down_proj"}});
  const MemoryRequest request = request_for({1, 1, 1, 1}, 16, DType::kBF16);
  const RankMemory found = estimate_memory(adapted, request);
  // Of each expert A [16, 32] and B [32, 16], A [16, 16] and B [32, 16].
  const std::int64_t trained = 2 * 4 * (16 * 32 + 32 * 16 + 16 * 16 + 32 * 16);
  EXPECT_EQ(found.gradients, 4 * trained);
  EXPECT_EQ(found.optimizer, 8 * trained);
  EXPECT_EQ(found.parameters, 2 * count_parameters(model).total + 6 * trained);
  // us for each of 32 rows, of two layers, and du of one.
  ModelConfig other = model;
  set_adapters(other, {16, 1, false, {"experts.down_proj"}});
  EXPECT_EQ(found.activations - estimate_memory(other, request).activations, 2 * 32 * 16 * (2 + 1));
}

TEST(Memory, stepping_ahead_keeps_owned_values_and_moments_a_second_time) {
  const ModelConfig model =
      model_of(R"({"model_type":"gpt2","n_embd":64,"n_head":4,"n_layer":2,"vocab_size":256})");
  const auto of = [&](bool ahead, std::int64_t zero_stage, DType compute) {
    RunConfig::Parallel parallel;
    parallel.zero_stage = zero_stage;
    MemoryRequest request = request_for({4, 1, 2, 2}, 32, compute);
    request.part = part_of_rank(parallel, MeshShape({1, 2, 1, 1}), 1, StagePurpose::kTraining);
    request.speculative_step = ahead;
    return estimate_memory(model, request);
  };
  // Tied: the head's gradient has no value of its own.
  const std::int64_t state = 12 * count_parameters(model).total;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(of(false, 0, compute).undo, 0);
    EXPECT_EQ(of(true, 0, compute).undo, state);
    for (const int zero_stage : {1, 2, 3}) EXPECT_EQ(of(true, zero_stage, compute).undo, state / 2);
  }
  const RankMemory with = of(true, 0, DType::kF32), without = of(false, 0, DType::kF32);
  // The loader has two steps more, of two micro-batches of 32 tokens.
  EXPECT_EQ(with.buffers - without.buffers, 2 * 2 * 32 * 16);
  EXPECT_EQ(with.total() - without.total(), state + with.buffers - without.buffers);
  std::int64_t total = 0;
  for (const auto& [name, bytes] : items_of(with)) total += bytes;
  EXPECT_EQ(total, with.total());
}

TEST(Memory, what_a_library_of_attention_works_in_is_counted) {
  const ModelConfig model =
      model_of(R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,
      "num_hidden_layers":2,"intermediate_size":128,"vocab_size":257})");
  MemoryRequest request = request_for({2, 2, 1, 1}, 2048, DType::kBF16);
  request.device = DeviceKind::kCuda;
  const std::int64_t own = scratch_bytes(model, request);
  EXPECT_EQ(own, (32 << 20) + 256) << "products by a library take the most of these";
  const std::int64_t with_own = estimate_memory(model, request).buffers;
  request.attention = &cudnn_attention;
  const std::int64_t deterministic = scratch_bytes(model, request);
  EXPECT_EQ(estimate_memory(model, request).buffers - with_own, deterministic - own);
  // Scores and their gradients of all pairs, bf16, and the tensors of a pass.
  EXPECT_GT(deterministic, 2 * 2 * 4 * 2048 * 2048);
  EXPECT_LT(deterministic, 4 * 2 * 4 * 2048 * 2048);
  request.deterministic = false;
  EXPECT_LT(scratch_bytes(model, request), deterministic);
  request.purpose = StagePurpose::kEvaluation;
  EXPECT_LT(scratch_bytes(model, request), 2 * 2 * 4 * 2048 * 2048);
}

TEST(Memory, prompts_that_a_run_continues_take_keys_and_values) {
  const ModelConfig model =
      model_of(R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,
      "num_key_value_heads":2,"num_hidden_layers":6,"intermediate_size":128,"vocab_size":200})");
  MemoryRequest request = request_for({2, 1, 1, 1}, 64);
  const std::int64_t without = estimate_memory(model, request).buffers;
  request.sample_tokens = 70;
  EXPECT_EQ(estimate_memory(model, request).buffers - without, 2 * (6 * 2 * 64 + 70) * 32 * 4);
  request.compute = DType::kBF16;
  const std::int64_t of_bf16 = estimate_memory(model, request).buffers;
  request.sample_tokens = 0;
  EXPECT_EQ(of_bf16 - estimate_memory(model, request).buffers, 2 * (6 * 2 * 64 + 70) * 32 * 2);
}

TEST(Memory, a_save_is_staged_in_as_much_as_the_rank_writes_of_it) {
  const ModelConfig model =
      model_of(R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,
      "num_hidden_layers":2,"intermediate_size":128,"vocab_size":2000})");
  MemoryRequest request = request_for({2, 1, 1, 1}, 64);
  const std::int64_t without = estimate_memory(model, request).buffers;
  EXPECT_EQ(estimate_memory(model, request).saving, 0);
  RunConfig run;
  run.model = model;
  RunConfig::Checkpoint& config = run.checkpoint;
  request.saving_max = saving_memory_max(config);
  const RankMemory alone = estimate_memory(model, request);
  EXPECT_GE(alone.saving, checkpoint_bytes(run));
  EXPECT_LT(alone.saving, checkpoint_bytes(run) + 100 * 64);
  EXPECT_EQ(alone.buffers, without + alone.saving);
  // Replicas share out the writing.
  request.part = part_of_rank({}, MeshShape({1, 2, 1, 1}), 1, StagePurpose::kTraining);
  const RankMemory one_of_two = estimate_memory(model, request);
  EXPECT_GE(one_of_two.saving, checkpoint_bytes(run) / 2);
  EXPECT_LT(one_of_two.saving, checkpoint_bytes(run) * 6 / 10);
  // A GPU's memory has no part in it.
  request.device = DeviceKind::kCuda;
  const RankMemory on_gpu = estimate_memory(model, request);
  EXPECT_EQ(on_gpu.saving, one_of_two.saving);
  request.saving_max = 0;
  EXPECT_EQ(on_gpu.buffers, estimate_memory(model, request).buffers);
  // What the config says, and what a waiting save takes.
  config.staging_bytes = 1 << 20;
  request.saving_max = saving_memory_max(config);
  EXPECT_EQ(estimate_memory(model, request).saving, 1 << 20);
  config = {};
  config.async = false;
  EXPECT_EQ(saving_memory_max(config), std::int64_t{128} << 20);
}

}  // namespace
}  // namespace trireme
