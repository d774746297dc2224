#include "checkpoint/adapter_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "adapter_fixture.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

class AdapterFiles : public testing::TestWithParam<std::string> {
 protected:
  AdapterGolden golden_{GetParam()};
  TemporaryDirectory directory_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
};

TEST_P(AdapterFiles, a_checkpoint_is_exported_as_peft_writes_it) {
  const std::filesystem::path step = save_adapters(golden_, directory_ / "run", golden_.base),
                              output = directory_ / "peft";
  const ExportResult result = export_adapter(step, output, {}, *self_);
  EXPECT_EQ(result.dtype, DType::kF32);
  const GoldenTensors theirs = golden_.tensors(), ours = read_tensors(output / kAdapterWeightsName);
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) {
    EXPECT_EQ(ours.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(ours.at(name).values, tensor.values) << name;
  }
  const AdapterFacts facts = read_adapter_config(output);
  EXPECT_EQ(adapter_difference(facts.lora, golden_.facts.lora, golden_.model, "peft's"), "");
  EXPECT_EQ(facts.base, std::filesystem::absolute(golden_.base));
  EXPECT_FALSE(is_there(output / "model.safetensors"));
  export_adapter(step, output, {DType::kBF16, 1, {}}, *self_);  // over itself
  EXPECT_EQ(SafetensorsFile(output / kAdapterWeightsName).tensors().front().dtype, "BF16");
}

TEST_P(AdapterFiles, boxes_of_a_folder_are_read) {
  TestState state;
  const GoldenTensors tensors = golden_.tensors();
  for (const auto& [name, tensor] : tensors) {  // the last rows
    const Shape shape(tensor.shape);
    Box box = whole(shape);
    box.offset.set(0, shape[0] / 2);
    box.shape.set(0, shape[0] - shape[0] / 2);
    state.add({"parameters/" + name.substr(kAdapterPrefix.size()), DType::kF32, shape, box});
  }
  import_adapter(golden_.folder, golden_.model, state.state(), *self_);
  for (const StateTensor& read : state.state().tensors) {
    const auto& values =
        tensors
            .at(std::string(kAdapterPrefix) + read.name.substr(std::string("parameters/").size()))
            .values;
    float last = 0;
    std::memcpy(&last, read.data + (read.box.shape.count() - 1) * sizeof last, sizeof last);
    EXPECT_EQ(last, static_cast<float>(values.back())) << read.name;
  }
}

TEST_P(AdapterFiles, names_and_shapes_follow_from_the_model) {
  std::map<std::string, Shape> weights;
  for (const auto& [name, tensor] : read_tensors(golden_.base / "model.safetensors"))
    weights.emplace(name, Shape(tensor.shape));
  const std::map<std::string, Shape> wanted = adapter_shapes(golden_.model, weights);
  check_adapter(golden_.folder, golden_.model, wanted);
  EXPECT_EQ(std::ssize(wanted), std::ssize(golden_.tensors()));
  check_head_of_adapter(golden_.folder, golden_.base);
}

// peft saves it beside the adapter; beside another the adapter would be another model.
TEST(AdapterHead, is_that_of_the_base) {
  const AdapterGolden golden("llama_head_dora");
  const TemporaryDirectory other;
  std::filesystem::copy(golden.base, other.path(), std::filesystem::copy_options::recursive);
  const SafetensorsFile file(other / "model.safetensors");
  const auto& tensors = file.tensors();
  const auto head = std::find_if(tensors.begin(), tensors.end(), [](const SafetensorsTensor& each) {
    return each.name == "lm_head.weight";
  });
  ASSERT_TRUE(head != tensors.end());
  check_head_of_adapter(golden.folder, other.path());
  std::fstream bytes(other / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  std::uint64_t data = 0;
  for (const SafetensorsTensor& each : tensors) data = std::max(data, each.end);
  bytes.seekp(-static_cast<std::streamoff>(data - head->begin), std::ios::end);
  bytes.write("\x11\x22", 2);
  bytes.close();
  try {
    check_head_of_adapter(golden.folder, other.path());
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("lm_head.base_layer.weight is another than"),
              std::string::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, AdapterFiles, testing::ValuesIn(adapter_cases()),
                         [](const auto& instance) { return instance.param; });

/// A folder with tensors of 2 x 2 under these names.
class AdapterNames : public testing::Test {
 protected:
  void write(const std::vector<std::string>& names) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const std::string& name : names) tensors.push_back({name, Shape{2, 2}});
    SafetensorsWriter writer(folder_.path(), DType::kF32, tensors);
    for (std::size_t i = 0; i < names.size(); ++i) writer.write(std::vector<float>(4, 1.0F));
    writer.finish();
    std::filesystem::rename(folder_ / "model.safetensors",
                            folder_ / std::string(kAdapterWeightsName));
  }
  std::string fault(const std::map<std::string, Shape>& wanted) {
    try {
      check_adapter(folder_.path(), {}, wanted);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }
  const std::map<std::string, Shape> wanted_ = {{"m.q_proj.lora_A.weight", {2, 2}},
                                                {"m.q_proj.lora_B.weight", {2, 2}},
                                                {"m.q_proj.lora_magnitude_vector", {2, 2}}};
  TemporaryDirectory folder_;
};

TEST_F(AdapterNames, those_of_other_versions_are_understood) {
  write({"base_model.model.m.q_proj.lora_A.default.weight",
         "base_model.model.m.q_proj.lora_B.default.weight",
         "base_model.model.m.q_proj.lora_magnitude_vector.default.weight"});
  EXPECT_EQ(fault(wanted_), "");
  write({"base_model.model.m.q_proj.lora_A.weight", "base_model.model.m.q_proj.lora_B.weight",
         "base_model.model.m.q_proj.lora_magnitude_vector.weight"});
  EXPECT_EQ(fault(wanted_), "");
}

TEST_F(AdapterNames, what_is_missing_or_left_over_or_of_another_shape_is_named) {
  write({"base_model.model.m.k_proj.lora_A.weight", "base_model.model.m.q_proj.lora_A.weight",
         "base_model.model.m.q_proj.lora_B.weight"});
  std::string said = fault(wanted_);
  EXPECT_NE(said.find("Missing: m.q_proj.lora_magnitude_vector"), std::string::npos) << said;
  EXPECT_NE(said.find("Not in the model: m.k_proj.lora_A.weight"), std::string::npos) << said;
  std::map<std::string, Shape> other = {{"m.k_proj.lora_A.weight", {2, 2}},
                                        {"m.q_proj.lora_A.weight", {3, 2}},
                                        {"m.q_proj.lora_B.weight", {2, 2}}};
  said = fault(other);
  EXPECT_NE(said.find("m.q_proj.lora_A.weight is F32 [2, 2], the model has [3, 2]"),
            std::string::npos)
      << said;
  write({"base_model.model.m.q_proj.lora_A.one.weight",
         "base_model.model.m.q_proj.lora_A.two.weight"});
  EXPECT_NE(fault({}).find("of two adapters"), std::string::npos);
  std::filesystem::remove(folder_ / std::string(kAdapterWeightsName));
  EXPECT_NE(fault({}).find("safe_serialization=True"), std::string::npos);
}

}  // namespace
}  // namespace trireme
