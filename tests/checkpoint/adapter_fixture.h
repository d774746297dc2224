#pragma once
// The adapters of tests/golden/adapters, and checkpoints of such a run.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/base_hashes.h"
#include "config/adapters.h"
#include "config/model_parse.h"
#include "support/golden.h"
#include "support/save_checkpoint.h"
#include "test_state.h"

namespace trireme {

inline const std::vector<std::string>& adapter_cases() {
  static const std::vector<std::string> cases = {"llama_lora", "qwen2_rslora_dora", "gpt2_lora",
                                                 "gpt2_dora",  "llama_head_dora",   "gpt2_head"};
  return cases;
}

struct AdapterGolden {
  explicit AdapterGolden(const std::string& name)
      : folder(golden_path("adapters/" + name)),
        facts(read_adapter_config(folder)),
        base(golden_path(facts.base.substr(std::string("tests/golden/").size()))),
        model(with_adapters(load_model_config(base / "config.json"), facts.lora, name)) {}

  /// The adapters' own.
  [[nodiscard]] GoldenTensors tensors() const {
    GoldenTensors all = read_tensors(folder / kAdapterWeightsName);
    all.erase("base_model.model.lm_head.base_layer.weight");
    return all;
  }

  std::filesystem::path folder;
  AdapterFacts facts;
  std::filesystem::path base;
  ModelConfig model;  ///< with adapters
};

/// What peft's merge makes of layer 0, and all else as it was.
class MergedGolden {
 public:
  explicit MergedGolden(const AdapterGolden& golden)
      : base_(read_tensors(golden.base / "model.safetensors")),
        merged_(read_tensors(golden.folder / "merged.safetensors")) {}

  [[nodiscard]] const GoldenTensors& base() const { return base_; }
  [[nodiscard]] int changed() const { return static_cast<int>(merged_.size()); }
  /// Compares a box of a weight; 1 where peft changes the weight, and it was compared.
  int expect_box(const std::string& name, const ConstBoxBuffer& found) const {
    const auto peft = merged_.find(name);
    if (peft == merged_.end() && name.find(".1.") != std::string::npos) return 0;  // in no file
    const GoldenTensor& wanted = peft == merged_.end() ? base_.at(name) : peft->second;
    std::vector<float> all(wanted.values.begin(), wanted.values.end());
    std::vector<float> box(static_cast<std::size_t>(found.box.shape.count()));
    copy_box({reinterpret_cast<const std::byte*>(all.data()), whole(Shape(wanted.shape))},
             {reinterpret_cast<std::byte*>(box.data()), found.box}, found.box, sizeof(float));
    const auto* values = reinterpret_cast<const float*>(found.data);
    double worst = 0;
    for (std::size_t i = 0; i < box.size(); ++i)
      worst = std::max<double>(worst, std::abs(values[i] - box[i]));
    EXPECT_LE(worst, peft == merged_.end() ? 0 : 1e-6) << name;
    return peft != merged_.end();
  }

 private:
  GoldenTensors base_, merged_;
};

/// Whole tensors "parameters/NAME" with these values.
inline void add_values(TestState& state, const std::string& name, const GoldenTensor& tensor) {
  state.add_whole("parameters/" + name, Shape(tensor.shape));
  auto* to = reinterpret_cast<float*>(state.state().tensors.back().data);
  for (const double value : tensor.values) *to++ = static_cast<float>(value);
}

/// The lora section of a run's resolved config.
inline Json lora_json(const RunConfig::Lora& lora) {
  Json json = Json::object();
  json["rank"] = *lora.rank;
  json["alpha"] = *lora.alpha;
  json["dropout"] = lora.dropout;
  json["targets"] = Json::array();
  for (const std::string& target : lora.targets) json["targets"].push_back(target);
  json["dora"] = lora.dora;
  json["rslora"] = lora.rslora;
  json["base"] = "compute";
  return json;
}

/// A checkpoint of adapters in `directory` with the values of the golden folder, and moments, as a
/// run beside `base` saves it; its step folder.
inline std::filesystem::path save_adapters(const AdapterGolden& golden,
                                           const std::filesystem::path& directory,
                                           const std::filesystem::path& base) {
  const std::unique_ptr<Communicator> self = make_self_communicator();
  TestState state;
  for (const auto& [name, tensor] : golden.tensors()) {
    const std::string ours = name.substr(kAdapterPrefix.size());
    add_values(state, ours, tensor);
    state.add_whole("optimizer/" + ours + "/exp_avg", Shape(tensor.shape));
  }
  state.state().scalars["config"]["lora"] = lora_json(golden.facts.lora);
  state.state().scalars["base"] = base_json(base, *self);
  SaveRequest request = request_for(directory, 7, state.state());
  request.model = model_keys_json(golden.model);
  request.files.push_back({"generation_config.json", R"({"eos_token_id": 306})"});
  const SaveResult saved = save_checkpoint(request, *self);
  expect(saved.error.empty(), "{}", saved.error);
  return saved.path;
}

}  // namespace trireme
