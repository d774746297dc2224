// Twenty steps with clipping and a cosine schedule against PyTorch in float64.

#include <gtest/gtest.h>

#include <set>

#include "base/file.h"
#include "checkpoint/boxes.h"
#include "checkpoint/expert_adapters.h"
#include "config/adapters.h"
#include "config/dropout.h"
#include "config/fields.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "support/gradient_norm.h"
#include "support/model_fixture.h"
#include "train/router_bias.h"

namespace trireme {
namespace {

class GoldenTraining : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(all, GoldenTraining,
                         testing::Values("llama_gqa", "olmo3", "gemma3", "qwen2_moe", "qwen3_moe",
                                         "mixtral", "olmoe", "glm4_moe", "deepseek_v3", "gpt_oss",
                                         "gpt2"));

/// The uint16 tokens of a .bin file.
std::vector<std::int64_t> read_tokens(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    tokens.push_back(static_cast<unsigned char>(bytes[i]) | static_cast<unsigned char>(bytes[i + 1])
                                                                << 8);
  }
  return tokens;
}

/// That of expected.json, whose section `optimizer` says what the recipe does not.
RunConfig::Optimizer optimizer_of(const Json& golden) {
  RunConfig run;
  run.optimizer.lr = golden.find("lr")->as_double();
  run.optimizer.weight_decay = golden.find("weight_decay")->as_double();
  run.optimizer.clip_grad_norm = golden.find("clip_grad_norm")->as_double();
  if (const Json* section = golden.find("optimizer")) {
    for (const auto& [key, value] : section->as_object())
      EXPECT_TRUE(find_field("optimizer." + key)->assign(value, run)) << key;
  }
  return run.optimizer;
}

/// How far losses and norms may be, relatively.
struct Near {
  double loss = 1e-5, norm = 1e-4;
};

/// The steps of expected.json, with tokens of training/, beside its losses and norms.
void expect_steps(const Json& golden, ModelFixture& model, const Near& near = {}) {
  const std::int64_t tokens = golden.find("sequence_length")->as_integer();
  const std::int64_t batch_size = golden.find("global_batch")->as_integer();
  const std::int64_t steps = golden.find("steps")->as_integer();
  const auto losses = flat_reals(*golden.find("losses")),
             norms = flat_reals(*golden.find("grad_norms"));
  const std::vector<std::int64_t> stream =
      read_tokens(golden_path("training/" + golden.find("model")->as_string() + "/tokens.bin"));
  const RunConfig::Optimizer config = optimizer_of(golden);
  RunConfig::LrSchedule schedule;
  schedule.warmup_steps = golden.find("warmup_steps")->as_integer();
  schedule.min_lr = golden.find("min_lr")->as_double();
  if (config.kind == OptimizerKind::kScheduleFree) schedule.kind = LrScheduleKind::kConstant;
  Optimizer optimizer(config, model.store);
  optimizer.begin_states(model.context);
  model.store.refresh_copies(model.context);
  const Json* bias_rate = golden.find("bias_rate");
  RouterBias router_bias(model.params, model.store,
                         bias_rate == nullptr ? 0 : bias_rate->as_double());
  const std::unique_ptr<Communicator> alone = make_self_communicator();

  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<std::unique_ptr<OwnedBatch>> owned;
    std::vector<MicroBatch> batches;
    for (std::int64_t sample = step * batch_size; sample < (step + 1) * batch_size; ++sample) {
      const std::span<const std::int64_t> window(stream.data() + sample * tokens,
                                                 static_cast<std::size_t>(tokens) + 1);
      owned.push_back(std::make_unique<OwnedBatch>(1, tokens, window.first(window.size() - 1),
                                                   window.subspan(1)));
      owned.back()->number(sample);
      batches.push_back(owned.back()->view);
    }
    const double loss = model.run(batches);
    const double norm = gradient_norm(model.context, model.store, *alone);
    const double lr = learning_rate(schedule, config.lr, steps, step + 1);
    optimizer.step(model.context, lr, clip_coefficient(norm, config.clip_grad_norm));
    optimizer.average(model.context);
    if (bias_rate != nullptr) router_bias.update(model.context, model.stage.expert_totals().load);

    EXPECT_NEAR(loss, losses[static_cast<std::size_t>(step)],
                near.loss * losses[static_cast<std::size_t>(step)])
        << step;
    EXPECT_NEAR(norm, norms[static_cast<std::size_t>(step)],
                near.norm * norms[static_cast<std::size_t>(step)])
        << step;
  }
}

/// What training has left.
void expect_left(ModelFixture& model, const GoldenTensors& final, std::size_t count) {
  ASSERT_EQ(final.size(), count);
  for (ParamIndex index = 0; index < static_cast<int>(model.params.metas.size()); ++index) {
    const auto expected = final.find(model.params.metas[static_cast<std::size_t>(index)].name);
    if (expected == final.end()) continue;
    const TensorView value = model.store.value(index);
    EXPECT_LE(relative_error_max({value.as<float>(), static_cast<std::size_t>(value.count())},
                                 expected->second.values),
              2e-4)
        << expected->first;
  }
}

TEST_P(GoldenTraining, losses_norms_and_parameters_equal_float64) {
  const std::string folder = "training/" + GetParam();
  const Json golden = read_golden_json(folder + "/expected.json");
  const auto model_directory = golden_path("model/" + golden.find("model")->as_string());
  ModelFixture model(load_model_config(model_directory),
                     {1, golden.find("sequence_length")->as_integer()});
  model.load(model_directory / "model.safetensors");
  expect_steps(golden, model);
  expect_left(model, read_tensors(golden_path(folder + "/final.safetensors")), 3);
}

class GoldenDropout : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(all, GoldenDropout, testing::Values("gpt2", "llama_gqa", "gpt_oss"));

TEST_P(GoldenDropout, losses_norms_and_parameters_equal_float64_of_a_model_that_drops_the_same) {
  const std::string folder = "dropout_training/" + GetParam();
  const Json golden = read_golden_json(folder + "/expected.json");
  const auto model_directory = golden_path("model/" + golden.find("model")->as_string());
  RunConfig run;
  run.model = load_model_config(model_directory);
  for (const auto& [key, rate] : golden.find("dropout")->as_object()) run.model.source[key] = rate;
  run.model_backend.dropout = true;
  std::vector<std::string> notes;
  take_dropout(run, notes);
  ModelFixture model(run.model, {1, golden.find("sequence_length")->as_integer()});
  model.load(model_directory / "model.safetensors");
  expect_steps(golden, model);
  expect_left(model, read_tensors(golden_path(folder + "/final.safetensors")), 3);
}

class GoldenOptimizers : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(all, GoldenOptimizers,
                         testing::Values("groups", "groups_tied", "lion", "schedule_free", "muon",
                                         "muon_gpt2", "adafactor"));

TEST_P(GoldenOptimizers, losses_norms_parameters_and_states_equal_float64) {
  const std::string folder = "optimizers/" + GetParam();
  const Json golden = read_golden_json(folder + "/expected.json");
  const RunConfig::Optimizer config = optimizer_of(golden);
  const auto model_directory = golden_path("model/" + golden.find("model")->as_string());
  ModelConfig architecture = load_model_config(model_directory);
  architecture.groups = config.groups;
  ModelFixture model(architecture, {1, golden.find("sequence_length")->as_integer()}, DType::kF32,
                     1, Optimizer::contents(config));
  model.load(model_directory / "model.safetensors");
  expect_steps(golden, model);
  std::size_t found = 0;
  const GoldenTensors final = read_tensors(golden_path(folder + "/final.safetensors"));
  const auto compare = [&](const std::string& name, const TensorView& value) {
    const auto expected = final.find(name);
    if (expected == final.end()) return;
    ++found;
    std::vector<float> values(static_cast<std::size_t>(value.count()));
    copy_out(model.context, std::as_writable_bytes(std::span(values)), value);
    EXPECT_LE(relative_error_max(values, expected->second.values), 2e-4) << name;
  };
  for (ParamIndex index = 0; index < static_cast<int>(model.params.metas.size()); ++index) {
    if (!model.store.has_value(index)) continue;
    const std::string& name = model.params.metas[static_cast<std::size_t>(index)].name;
    compare(name, model.store.value(index));
    const std::vector<OptimizerState>& states = model.store.contents().states;
    for (std::size_t slot = 0; slot < states.size(); ++slot) {
      const TensorView state = model.store.optimizer_state(slot, index);
      if (state.count() > 0) compare(states[slot].name + "/" + name, state);
    }
  }
  EXPECT_EQ(found, final.size());
}

/// torch.optim.Muon orthogonalises in bf16, of which two ways of rounding differ.
TEST(GoldenMuon, what_moves_is_within_two_percent_of_pytorch_s_own_roundings) {
  const Json golden = read_golden_json("optimizers/muon_bf16/expected.json");
  const RunConfig::Optimizer config = optimizer_of(golden);
  const auto model_directory = golden_path("model/" + golden.find("model")->as_string());
  const GoldenTensors before = read_tensors(model_directory / "model.safetensors"),
                      final = read_tensors(golden_path("optimizers/muon_bf16/final.safetensors"));
  ModelFixture model(load_model_config(model_directory),
                     {1, golden.find("sequence_length")->as_integer()}, DType::kF32, 1,
                     Optimizer::contents(config));
  model.load(model_directory / "model.safetensors");
  expect_steps(golden, model, {2e-3, 2e-2});
  for (ParamIndex index = 0; index < static_cast<int>(model.params.metas.size()); ++index) {
    const std::string& name = model.params.metas[static_cast<std::size_t>(index)].name;
    const auto expected = final.find(name);
    if (expected == final.end()) continue;
    const std::vector<double>&to = expected->second.values, &from = before.at(name).values;
    const float* found = model.store.value(index).as<float>();
    double difference = 0, moved = 0;
    for (std::size_t i = 0; i < to.size(); ++i) {
      difference += (found[i] - to[i]) * (found[i] - to[i]);
      moved += (to[i] - from[i]) * (to[i] - from[i]);
    }
    EXPECT_LE(std::sqrt(difference / moved), 0.02) << name;
    EXPECT_GT(moved, 0) << name;
  }
}

/// A file of peft's, by the names of parameters: of experts each by itself.
GoldenTensors read_adapters(const ModelConfig& model, const std::filesystem::path& file) {
  constexpr std::string_view kPrefix = "base_model.model.";
  GoldenTensors tensors;
  for (auto& [name, tensor] : read_tensors(file))
    tensors.emplace(name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name,
                    std::move(tensor));
  std::set<std::string> joined;
  for (const auto& [name, part] : expert_adapter_parts(model)) {
    const GoldenTensor& all = tensors.at(part.stored);
    joined.insert(part.stored);
    Shape shape(all.shape);
    shape.set(part.of_b ? 1 : 0, all.shape[part.of_b ? 1 : 0] / part.experts);
    const std::vector<float> stored(all.values.begin(), all.values.end());
    std::vector<float> values(static_cast<std::size_t>(shape.count()));
    part.take(shape, stored.data(), whole(shape), values.data());
    tensors[name] = {{shape.sizes().begin(), shape.sizes().end()}, {values.begin(), values.end()}};
  }
  for (const std::string& name : joined) tensors.erase(name);
  return tensors;
}

class GoldenAdapters : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(all, GoldenAdapters,
                         testing::Values("llama_lora", "llama_rslora", "llama_dora",
                                         "llama_dropout", "llama_head_lora", "llama_head_dora",
                                         "olmoe_head_alone", "gpt2_lora", "qwen3_moe_lora",
                                         "qwen3_moe_experts", "gpt_oss_experts", "mixtral_down",
                                         "deepseek_lora"),
                         [](const auto& of) { return of.param; });

TEST_P(GoldenAdapters, losses_norms_and_adapters_equal_those_of_peft_in_float64) {
  const std::string folder = "adapter_training/" + GetParam();
  const Json golden = read_golden_json(folder + "/expected.json");
  RunConfig run;
  run.lora.rank = golden.find("rank")->as_integer();
  run.lora.alpha = golden.find("alpha")->as_double();
  run.lora.rslora = golden.find("rslora")->as_bool();
  run.lora.dora = golden.find("dora")->as_bool();
  if (const Json* dropout = golden.find("dropout")) run.lora.dropout = dropout->as_double();
  for (const Json& target : golden.find("targets")->as_array())
    run.lora.targets.push_back(target.as_string());
  const auto model_directory = golden_path("model/" + golden.find("model")->as_string());
  run.model = load_model_config(model_directory);
  std::vector<Problem> problems;
  take_adapters(run, problems);
  ASSERT_TRUE(problems.empty()) << format_problems(problems);
  ModelFixture model(run.model, {1, golden.find("sequence_length")->as_integer()});
  const GoldenTensors adapters =
      read_adapters(run.model, golden_path(folder + "/adapter_model.safetensors"));
  model.load(model_directory / "model.safetensors", adapters);
  expect_steps(golden, model);
  expect_left(model, read_adapters(run.model, golden_path(folder + "/final.safetensors")),
              adapters.size());
}

}  // namespace
}  // namespace trireme
