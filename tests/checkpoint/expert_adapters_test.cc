// Adapters of experts beside those that peft saves and merges: mixtral (beside another module),
// gpt_oss (gate and up in turns), qwen3_moe (of the last product alone).

#include "checkpoint/expert_adapters.h"

#include <gtest/gtest.h>

#include "adapter_fixture.h"
#include "checkpoint/adapted_weights.h"
#include "checkpoint/average.h"
#include "checkpoint/huggingface.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

/// What of a tensor of all experts [E, out, in] is a weight's, of the first half of out or the
/// second.
GoldenTensor rows_of_expert(const GoldenTensor& all, const ExpertWeight& of, std::int64_t out) {
  const std::int64_t in = all.shape[2], first = of.up ? out : 0;
  const auto begin = all.values.begin() + (of.expert * all.shape[1] + first) * in;
  return {{out, in}, {begin, begin + out * in}};
}

class ExpertAdapters : public testing::TestWithParam<std::string> {
 protected:
  ExpertAdapters()
      : golden_(GetParam()),
        file_(read_tensors(golden_.base / "model.safetensors")),
        base_(with_experts_apart(file_)),
        merged_(read_tensors(golden_.folder / "merged.safetensors")) {
    if (gpt_oss()) {
      merged_of_parts_ = with_experts_apart(merged_);
      return;
    }
    for (const auto& [name, tensor] : file_) {
      const auto of = expert_weight_of(name);
      const auto all = of ? merged_.find(of->module) : merged_.find(name);
      if (all == merged_.end()) continue;
      merged_of_parts_[name] = of ? rows_of_expert(all->second, *of, tensor.shape[0]) : all->second;
    }
  }
  [[nodiscard]] bool gpt_oss() const { return golden_.model.family == Family::kGptOss; }

  /// 1 where peft changes a weight, and it was compared.
  static int expect_near(const GoldenTensors& merged, const std::string& name, const float* found,
                         const Box& box) {
    const auto wanted = merged.find(name);
    if (wanted == merged.end()) return 0;
    std::vector<float> all(wanted->second.values.begin(), wanted->second.values.end()),
        part(static_cast<std::size_t>(box.shape.count()));
    copy_box({reinterpret_cast<const std::byte*>(all.data()), whole(Shape(wanted->second.shape))},
             {reinterpret_cast<std::byte*>(part.data()), box}, box, sizeof(float));
    double worst = 0;
    for (std::size_t i = 0; i < part.size(); ++i)
      worst = std::max<double>(worst, std::abs(found[i] - part[i]));
    EXPECT_LE(worst, 1e-6) << name;
    return 1;
  }
  /// A checkpoint of the golden adapters, as a run saves them: of each expert by itself.
  std::filesystem::path save_run(const char* directory) {
    TestState state;
    const auto parts = expert_adapter_parts(golden_.model);
    std::map<std::string, Shape> shapes;
    for (const auto& [name, tensor] : base_) shapes[name] = Shape(tensor.shape);
    for (const auto& [name, shape] : adapter_shapes(golden_.model, shapes))
      state.add_whole("parameters/" + name, shape);
    import_adapter(golden_.folder, golden_.model, state.state(), *self_);
    state.state().scalars["config"]["lora"] = lora_json(golden_.facts.lora);
    state.state().scalars["base"] = base_json(golden_.base, *self_);
    SaveRequest request = request_for(directory_ / directory, 7, state.state());
    request.model = model_keys_json(golden_.model);
    const SaveResult saved = save_checkpoint(request, *self_);
    expect(saved.error.empty(), "{}", saved.error);
    return saved.path;
  }
  void expect_pefts(const std::filesystem::path& folder) const {
    const GoldenTensors theirs = read_tensors(golden_.folder / kAdapterWeightsName),
                        ours = read_tensors(folder / kAdapterWeightsName);
    ASSERT_EQ(ours.size(), theirs.size());
    for (const auto& [name, tensor] : theirs) {
      ASSERT_TRUE(ours.contains(name)) << name;
      EXPECT_EQ(ours.at(name).shape, tensor.shape) << name;
      EXPECT_EQ(ours.at(name).values, tensor.values) << name;
    }
    const AdapterFacts facts = read_adapter_config(folder);
    EXPECT_EQ(adapter_difference(facts.lora, golden_.facts.lora, golden_.model, "peft's"), "");
  }

  AdapterGolden golden_;
  GoldenTensors file_, base_;               // by names in the file, and of parameters
  GoldenTensors merged_, merged_of_parts_;  // likewise, but that peft's names are transformers'
  TemporaryDirectory directory_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
};
INSTANTIATE_TEST_SUITE_P(Golden, ExpertAdapters,
                         testing::Values("mixtral_experts", "gpt_oss_experts", "qwen3_moe_down"),
                         [](const auto& of) { return of.param; });

TEST_P(ExpertAdapters, go_to_a_run_and_back_as_peft_has_them) {
  const std::filesystem::path step = save_run("run");
  export_adapter(step, directory_ / "peft", {}, *self_);
  expect_pefts(directory_ / "peft");
  // The mean of a checkpoint and of a folder that are equal.
  average_weights({step, directory_ / "peft"}, directory_ / "mean", {});
  expect_pefts(directory_ / "mean");
}

TEST_P(ExpertAdapters, merged_into_a_state_are_pefts) {
  for (const std::int64_t half : {0, 1}) {  // of outputs, then of inputs
    TestState state;
    for (const auto& [name, tensor] : base_) {
      const Shape shape(tensor.shape);
      Box box = whole(shape);
      const int dim = shape.rank() == 2 ? static_cast<int>(half) : 0;
      box.offset.set(dim, shape[dim] / 2);
      box.shape.set(dim, shape[dim] - shape[dim] / 2);
      state.add({"parameters/" + name, DType::kF32, shape, box});
    }
    import_weights(golden_.base, state.state(), *self_);
    add_adapters(
        golden_.model, state.state(),
        [&](State& adapters) { import_adapter(golden_.folder, golden_.model, adapters, *self_); },
        *self_);
    int compared = 0;
    for (const StateTensor& tensor : state.state().tensors)
      compared += expect_near(merged_of_parts_, tensor.name.substr(std::size("parameters/") - 1),
                              reinterpret_cast<const float*>(tensor.data), tensor.box);
    EXPECT_EQ(compared, std::ssize(merged_of_parts_));
  }
}

TEST_P(ExpertAdapters, are_exported_as_a_whole_model) {
  const GoldenTensors& wanted = gpt_oss() ? merged_ : merged_of_parts_;
  for (const std::filesystem::path& adapters : {save_run("run"), golden_.folder}) {
    export_merged({adapters, golden_.base, golden_.model}, directory_ / "whole", {}, *self_);
    int compared = 0;
    for (const auto& [name, tensor] : read_tensors(directory_ / "whole/model.safetensors")) {
      const std::vector<float> values(tensor.values.begin(), tensor.values.end());
      compared += expect_near(wanted, name, values.data(), whole(Shape(tensor.shape)));
    }
    EXPECT_EQ(compared, std::ssize(wanted));
  }
}

TEST_P(ExpertAdapters, of_another_shape_or_missing_are_refused) {
  ModelConfig other = golden_.model;
  set_adapters(other, {golden_.facts.lora.rank.value() + 1, 1, false, golden_.facts.lora.targets});
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : base_) shapes[name] = Shape(tensor.shape);
  EXPECT_THROW(check_adapter(golden_.folder, other, adapter_shapes(other, shapes)), DataError);
  check_adapter(golden_.folder, golden_.model, adapter_shapes(golden_.model, shapes));
  set_adapters(other, {*golden_.facts.lora.rank, 1, false, {"experts.gate_up_proj"}});
  EXPECT_THROW(check_adapter(golden_.folder, other, adapter_shapes(other, shapes)), DataError);
}

}  // namespace
}  // namespace trireme
