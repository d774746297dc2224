// MLPs of every kind that leave codes in place of rows (model/mlp.h): B and W in one action, whose
// products read codes of the gradient, beside B and W apart, which quantise its rows.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/op_trace.h"
#include "store/quantized_refresh.h"
#include "support/model_fixture.h"

namespace trireme {
namespace {

constexpr std::int64_t kSequences = 2, kTokens = 70;

struct CodesCase {
  const char *name, *keys;
  std::set<std::string> ops;  ///< that leave codes
};
void PrintTo(const CodesCase& of, std::ostream* out) { *out << of.name; }

constexpr const char* kCommon =
    R"({"vocab_size": 61, "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 144, "max_position_embeddings": 96,)";
constexpr const char* kLatents =
    R"("model_type": "deepseek_v3", "q_lora_rank": 16, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
       "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
       "n_group": 1, "topk_group": 1, "moe_intermediate_size": 80,)";

const std::set<std::string> kSwiglu = {"swiglu_forward_codes", "swiglu_backward_codes"};
const CodesCase kCases[] = {
    {"gelu_and_biases",
     R"({"vocab_size": 61, "model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4,
         "n_inner": 144, "n_positions": 96})",
     {"gelu_forward_codes", "gelu_backward_codes"}},
    {"gated_and_biases", R"("model_type": "llama", "mlp_bias": true, "attention_bias": true})",
     kSwiglu},
    {"norms_behind",
     R"("model_type": "gemma3_text", "head_dim": 16})",
     {"geglu_forward_codes", "geglu_backward_codes"}},
    {"experts",
     R"("model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2})",
     {"rope_backward_codes"}},
    {"shared_by_a_gate",
     R"("model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 80, "shared_expert_intermediate_size": 144,
        "mlp_only_layers": [0]})",
     kSwiglu},
    {"latents", R"("first_k_dense_replace": 2})", kSwiglu},
    {"latents_and_a_shared_mlp", R"("n_shared_experts": 2, "first_k_dense_replace": 1})", kSwiglu},
    {"a_shared_mlp_in_each_layer", R"("n_shared_experts": 2, "first_k_dense_replace": 0})",
     kSwiglu},
};

ModelConfig model_of(const CodesCase& of) {
  const std::string keys(of.keys), name(of.name);
  const bool latent = name.starts_with("latents") || name.starts_with("a_shared");
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const std::string text =
      keys.starts_with("{") ? keys : kCommon + std::string(latent ? kLatents : "") + keys;
  ModelConfig model = read_model(parse_json(text, "fp8_codes_test.cc"), problems, notes);
  expect(problems.empty() && !model.layers.empty(), "a model that is refused: {}", of.name);
  return model;
}

struct Found {
  std::vector<std::vector<float>> gradients;
  std::map<std::string, std::int64_t> calls;
};

Schedule apart() {
  using enum ActionKind;
  Schedule schedule;
  schedule.placement = {0};
  schedule.ranks = {{{kForward, 0, 0}, {kBackwardInput, 0, 0}, {kBackwardWeight, 0, 0}}};
  return schedule;
}

Found computed(const CodesCase& of, const Fp8Precision& precision, StagePurpose purpose,
               Recompute recompute) {
  std::vector<std::int64_t> ids, targets;
  for (std::int64_t i = 0; i < kSequences * kTokens; ++i) {
    ids.push_back(i * i % 61);
    targets.push_back((i * i + 7 * i) % 61);
  }
  const OwnedBatch batch(kSequences, kTokens, ids, targets);
  StageShape shape{kSequences, kTokens};
  shape.purpose = purpose;
  shape.recompute = recompute;
  shape.fp8 = precision;
  ModelFixture model(model_of(of), shape, DType::kBF16);
  for (ParamIndex index = 0; index < static_cast<int>(model.params.metas.size()); ++index) {
    if (!model.store.has_value(index)) continue;
    std::vector<float> values(static_cast<std::size_t>(model.store.value(index).count()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 0.2F * static_cast<float>(std::sin(0.37 * static_cast<double>(i) + index));
    copy_in(model.context, model.store.value(index), std::as_bytes(std::span(values)));
  }
  const auto alone = make_self_communicator();
  for (const MeshView view : kMeshViews)
    QuantizedRefresh(model.context, model.store, *alone, *alone, view).run();
  model.store.refresh_copies(model.context);
  Found found;
  OpTrace trace(model.trace);
  model.context.set_op_trace(&trace);
  if (purpose == StagePurpose::kTrainingSplit)
    model.run({&batch.view, 1}, apart());
  else
    model.run({&batch.view, 1});
  model.context.set_op_trace(nullptr);
  for (const OpTotal& total : trace.totals()) found.calls[total.op] += total.calls;
  for (ParamIndex index = 0; index < static_cast<int>(model.params.metas.size()); ++index) {
    if (model.store.has_value(index)) found.gradients.push_back(model.gradient(index));
  }
  return found;
}

class Fp8Codes : public testing::TestWithParam<CodesCase> {};
INSTANTIATE_TEST_SUITE_P(Mlps, Fp8Codes, testing::ValuesIn(kCases),
                         [](const auto& of) { return of.param.name; });

TEST_P(Fp8Codes, of_gradients_have_the_bits_of_rows) {
  const bool on_gpu = program_device().kind == DeviceKind::kCuda;
  for (const DType gradients : {DType::kF8E5M2, DType::kF8E4M3}) {
    const Fp8Precision precision{Fp8Recipe::kBlock, gradients, {}};
    const auto of = [&](StagePurpose purpose, Recompute recompute) {
      return computed(GetParam(), precision, purpose, recompute);
    };
    const Found rows = of(StagePurpose::kTrainingSplit, Recompute::kNone);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      if (on_gpu && recompute == Recompute::kFull) continue;  // executed on the host
      const Found codes = of(StagePurpose::kTraining, recompute);
      EXPECT_EQ(codes.gradients, rows.gradients);
      for (const std::string& op : GetParam().ops) {
        EXPECT_GT(codes.calls.at(op), 0) << op;
        EXPECT_EQ(rows.calls.contains(op), op.find("forward") != std::string::npos) << op;
      }
    }
    if (on_gpu) break;
  }
}

/// What is in bf16 keeps the memory of rows beside that of codes.
TEST_P(Fp8Codes, of_gradients_stand_in_place_of_rows) {
  const ModelConfig config = model_of(GetParam());
  if (config.layers.back().experts && config.layers.back().experts->shared_gate) return;
  constexpr std::int64_t kMany = 4096;  // of few, experts' blocks of 128 rows are mostly padding
  StageShape shape{kSequences, kMany};
  const auto bytes = [&](std::int64_t bf16_layers) {
    shape.fp8 = Fp8Precision{Fp8Recipe::kBlock, DType::kF8E5M2, {bf16_layers, 0}};
    return Stage::buffer_bytes(config, shape, DType::kBF16);
  };
  std::int64_t most = 0;
  for (const LayerConfig& layer : config.layers) most = std::max(most, layer.mlp.up_size());
  EXPECT_GE(bytes(1) - bytes(0), kSequences * kMany * most * 2);
}

}  // namespace
}  // namespace trireme
