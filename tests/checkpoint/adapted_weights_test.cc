#include "checkpoint/adapted_weights.h"

#include <gtest/gtest.h>

#include "adapter_fixture.h"
#include "checkpoint/huggingface.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

class AdaptedWeights : public testing::TestWithParam<std::string> {
 protected:
  AdapterGolden golden_{GetParam()};
  MergedGolden merged_{golden_};
  TemporaryDirectory directory_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
};

TEST_P(AdaptedWeights, of_a_state_are_pefts) {
  TestState state;
  for (const auto& [name, tensor] : merged_.base())
    state.add_whole("parameters/" + name, Shape(tensor.shape));
  import_weights(golden_.base, state.state(), *self_);
  add_adapters(
      golden_.model, state.state(),
      [&](State& adapters) { import_adapter(golden_.folder, golden_.model, adapters, *self_); },
      *self_);
  int compared = 0;
  for (const StateTensor& tensor : state.state().tensors)
    compared += merged_.expect_box(tensor.name.substr(std::string("parameters/").size()),
                                   {tensor.data, tensor.box});
  EXPECT_EQ(compared, merged_.changed());
}

TEST_P(AdaptedWeights, are_exported_as_a_whole_model) {
  const std::filesystem::path step = save_adapters(golden_, directory_ / "run", golden_.base);
  // From a checkpoint, beside which files are kept; and from a folder of peft's, with the base's.
  for (const std::filesystem::path& adapters : {step, golden_.folder}) {
    const std::filesystem::path output = directory_ / "whole";
    const ExportResult result =
        export_merged({adapters, golden_.base, golden_.model}, output, {}, *self_);
    EXPECT_EQ(result.tensors, std::ssize(merged_.base()));
    int compared = 0;
    for (const auto& [name, tensor] : read_tensors(output / "model.safetensors")) {
      const std::vector<float> values(tensor.values.begin(), tensor.values.end());
      compared += merged_.expect_box(
          name, {reinterpret_cast<const std::byte*>(values.data()), whole(Shape(tensor.shape))});
    }
    EXPECT_EQ(compared, merged_.changed());
    EXPECT_EQ(shape_difference(load_model_config(output / "config.json"), golden_.model, "output"),
              "");
    EXPECT_EQ(read_file(output / "generation_config.json") == R"({"eos_token_id": 306})",
              adapters == step);
    EXPECT_FALSE(is_there(output / kAdapterConfigName));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, AdaptedWeights, testing::ValuesIn(adapter_cases()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace trireme
