#include "plan/traffic.h"

#include <gtest/gtest.h>

#include "config/adapters.h"
#include "model/param_table.h"
#include "support/small_config.h"

namespace trireme {
namespace {

/// One layer of 2 heads of 4, no number of which hides another.
ModelConfig small_model() {
  return model_of(R"({"model_type":"llama","hidden_size":8,"num_attention_heads":2,
      "num_hidden_layers":1,"intermediate_size":6,"vocab_size":17})");
}

MemoryRequest request_of(const RunConfig::Parallel& parallel, const MeshShape& mesh, int rank = 0) {
  MemoryRequest request;
  request.sequence_length = 8;
  request.recompute = parallel.recompute;
  request.part = part_of_rank(parallel, mesh, rank, StagePurpose::kTraining);
  return request;
}

std::int64_t bytes_of(const MemoryRequest& request, Axis axis, const std::string& kind,
                      bool document_mask = false) {
  for (const Traffic& traffic : step_traffic(small_model(), request, document_mask)) {
    if (traffic.axis == axis && traffic.kind == kind) return traffic.bytes;
  }
  return 0;
}

TEST(Traffic, one_rank_sends_nothing) {
  EXPECT_TRUE(step_traffic(small_model(), request_of({}, MeshShape()), true).empty());
}

TEST(Traffic, of_the_stream_on_two_tensor_places) {
  const MeshShape mesh({1, 1, 1, 2});
  RunConfig::Parallel parallel;
  parallel.sequence_parallel = false;
  // 4 sums of a layer, that of the embedding and of the head's gradient: 8 x 8 fp32, half each way.
  EXPECT_EQ(bytes_of(request_of(parallel, mesh), Axis::kTensor, "activations"), 6 * 256);
  EXPECT_EQ(bytes_of(request_of(parallel, mesh), Axis::kTensor, "gradients"), 0);
  parallel.sequence_parallel = true;
  // Each sum is half of one, and 6 + 2 gathers are the other halves and more.
  EXPECT_EQ(bytes_of(request_of(parallel, mesh), Axis::kTensor, "activations"), (8 + 6) * 128);
  EXPECT_EQ(bytes_of(request_of(parallel, mesh), Axis::kTensor, "gradients"), 3 * 8 * 4);
  EXPECT_EQ(bytes_of(request_of(parallel, mesh), Axis::kTensor, "statistics"), 3 * 4 * 8);
  parallel.recompute = Recompute::kFull;
  EXPECT_EQ(bytes_of(request_of(parallel, mesh), Axis::kTensor, "activations"), (10 + 7) * 128);
  MemoryRequest more = request_of(parallel, mesh);
  more.passes.accumulation = 3;
  EXPECT_EQ(bytes_of(more, Axis::kTensor, "activations"), 3 * (10 + 7) * 128);
  EXPECT_EQ(bytes_of(more, Axis::kTensor, "gradients"), 3 * 8 * 4);  // once a step
}

TEST(Traffic, of_keys_and_values_by_each_method) {
  const MeshShape mesh({1, 1, 2, 1});
  RunConfig::Parallel parallel;
  const auto bytes = [&](ContextMethod method, bool mask) {
    parallel.context_method = method;
    return bytes_of(request_of(parallel, mesh), Axis::kContext, "keys_values", mask);
  };
  // 4 tokens of 16 numbers. Forward, and backward with sums that also reach their owner.
  EXPECT_EQ(bytes(ContextMethod::kRing, false), 256 + 256 + 2 * 256);
  EXPECT_EQ(bytes(ContextMethod::kAllGather, true), 256 + 256 + 256);
  // One of two heads for the other's tokens: q, k, v and o; then those, delta and dq, dk, dv.
  EXPECT_EQ(bytes(ContextMethod::kUlysses, false), 4 * 64 + 4 * 64 + 16 + 3 * 64);
  EXPECT_EQ(bytes(ContextMethod::kUlysses, true), 4 * 64 + 4 * 64 + 16 + 3 * 64 + 2 * 16);
}

TEST(Traffic, of_tokens_to_two_ranks_of_experts_as_expected_and_at_worst) {
  const ModelConfig model = model_of(R"({"model_type":"mixtral","hidden_size":8,
      "num_attention_heads":2,"num_key_value_heads":2,"num_hidden_layers":1,"intermediate_size":6,
      "vocab_size":17,"num_local_experts":4,"num_experts_per_tok":2})");
  RunConfig::Parallel parallel;
  parallel.expert = 2;
  MemoryRequest request = request_of(parallel, MeshShape({1, 2, 1, 1}));
  const auto tokens = [&]() -> Traffic {
    for (const Traffic& traffic : step_traffic(model, request, false))
      if (traffic.axis == Axis::kExpert) return traffic;
    return {};
  };
  // 8 tokens of 32 bytes and 16 of choices: 1 in 6 has both experts here. There and back, twice;
  // of 8 rows that come back also the weights' gradients.
  EXPECT_EQ(tokens().bytes, (2 * 32 + 16) * 40 / 6 + 8 * (2 * 32 + 4));
  EXPECT_EQ(tokens().worst_bytes, 8 * (2 * 32 + 16) + 16 * (2 * 32 + 4));
  request.dispatch = DispatchMethod::kAllGather;
  EXPECT_EQ(tokens().bytes, 8 * (2 * 32 + 16) + 8 * (2 * 32 + 4));
  EXPECT_EQ(tokens().worst_bytes, 8 * (2 * 32 + 16) + 16 * (2 * 32 + 4));
}

/// What both parts of an expert have whole: A [3, 8] of gate and up, B [8, 3] of down.
TEST(Traffic, of_adapters_of_experts_in_parts_are_sums_of_what_is_whole) {
  ModelConfig model = model_of(R"({"model_type":"mixtral","hidden_size":8,
      "num_attention_heads":2,"num_key_value_heads":2,"num_hidden_layers":1,"intermediate_size":6,
      "vocab_size":17,"num_local_experts":4,"num_experts_per_tok":2})");
  set_adapters(model, {3, 1, false, {"experts.gate_up_proj", "experts.down_proj"}});
  RunConfig::Parallel parallel;
  parallel.expert_tensor = 2;
  std::int64_t bytes = 0;
  for (const Traffic& traffic :
       step_traffic(model, request_of(parallel, MeshShape({1, 2, 1, 1})), false)) {
    if (traffic.axis == Axis::kExpert && traffic.kind == std::string_view("gradients"))
      bytes += traffic.bytes;
  }
  EXPECT_EQ(bytes, 4 * (3 * 8 + 8 * 3) * 4);
}

/// Every element goes to its owner from all others and comes back to them, whoever sends the rest
/// that does not divide.
TEST(Traffic, of_gradients_is_twice_the_others_of_every_element) {
  const MeshShape mesh({1, 7, 1, 1});
  const StoreLayout whole(declare_params(small_model()).metas, {});
  std::int64_t sent = 0;
  for (int rank = 0; rank < 7; ++rank)
    sent += bytes_of(request_of({}, mesh, rank), Axis::kData, "gradients");
  EXPECT_EQ(sent, 2 * 6 * 4 * whole.local_size());
  EXPECT_NE(sent, 7 * bytes_of(request_of({}, mesh, 0), Axis::kData, "gradients"))
      << "pieces are even: this proves nothing";
}

TEST(Traffic, of_zero_is_a_sum_to_owners_and_weights_from_them) {
  const MeshShape mesh({1, 3, 1, 1});
  RunConfig::Parallel parallel;
  const auto request = [&](std::int64_t stage, std::int64_t accumulation) {
    parallel.zero_stage = stage;
    MemoryRequest made = request_of(parallel, mesh);
    made.passes.accumulation = accumulation;
    return made;
  };
  const StoreLayout layout(declare_params(small_model()).metas, request(1, 1).part.store);
  const std::int64_t shard = layout.shard_size();
  for (const std::int64_t stage : {1, 2, 3}) {
    const std::int64_t passes = stage == 1 ? 1 : 2;
    EXPECT_EQ(bytes_of(request(stage, 2), Axis::kData, "gradients"), passes * 2 * 4 * shard);
  }
  EXPECT_EQ(bytes_of(request(1, 2), Axis::kData, "weights"), 2 * 4 * shard);
  EXPECT_EQ(bytes_of(request(2, 2), Axis::kData, "weights"), 2 * 4 * shard);
  // Embedding, layer, norm and head have a place each.
  ASSERT_EQ(layout.block_count(), 4);
  EXPECT_EQ(bytes_of(request(3, 2), Axis::kData, "weights"), 2 * 4 * shard);
}

}  // namespace
}  // namespace trireme
