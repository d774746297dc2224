#include "train/model_source.h"

#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/adapter_fixture.h"
#include "checkpoint/test_state.h"
#include "model/param_table.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include "train/inputs.h"

namespace trireme {
namespace {

std::vector<std::int64_t> end_tokens(const std::string& of_config, const std::string& generation) {
  const TemporaryDirectory folder;
  folder.write("config.json", R"({"model_type":"llama","vocab_size":257,"hidden_size":32,)"
                              R"("intermediate_size":64,"num_hidden_layers":1,)"
                              R"("num_attention_heads":2)" +
                                  of_config + "}");
  if (!generation.empty()) folder.write("generation_config.json", generation);
  const auto self = make_self_communicator();
  return ModelSource(folder.path(), *self).end_tokens();
}

using Ids = std::vector<std::int64_t>;

TEST(ModelSource, a_text_ends_at_any_token_that_the_generation_config_names) {
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":5)", R"({"eos_token_id":[7,9]})"), (Ids{7, 9}));
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":5)", R"({"eos_token_id":7})"), Ids{7});
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":5)", R"({"temperature":0.6})"), Ids{5});
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":[5,6])", ""), (Ids{5, 6}));
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":5)", ""), Ids{5});
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":null)", R"({"eos_token_id":null})"), Ids());
}

TEST(ModelSource, end_tokens_that_are_none_are_refused_by_file) {
  for (const char* hostile :
       {R"({"eos_token_id":"7"})", R"({"eos_token_id":[7,true]})", R"({"eos_token_id":-1})",
        R"({"eos_token_id":1e400})", R"({"eos_token_id":4294967296})", "[]", "{", ""}) {
    try {
      end_tokens("", std::string(hostile).empty() ? " " : hostile);
      ADD_FAILURE() << hostile;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
      EXPECT_NE(std::string(error.what()).find("generation_config.json: "), std::string::npos)
          << error.what();
    }
  }
}

/// Each tensor by itself, as BaseValues asks for parts; experts that a file has in one, and a head
/// that repeats the embedding.
TEST(ModelSource, parts_are_those_of_the_whole) {
  const std::unique_ptr<Communicator> self = make_self_communicator();
  for (const char* model : {"gpt2", "qwen3_moe", "llama_gqa", "gemma3"}) {
    const ModelSource source(golden_path(std::string("model/") + model), *self);
    TestState whole, parts;
    for (const ParamMeta& param : declare_params(source.model()).metas) {
      if (param.shares != kNoParam) continue;
      whole.add_whole("parameters/" + param.name, param.shape);
      parts.add_whole("parameters/" + param.name, param.shape);
    }
    source.load(whole.state(), *self);
    for (std::size_t i = 0; i < parts.state().tensors.size(); ++i) {
      const StateTensor &tensor = parts.state().tensors[i], &same = whole.state().tensors[i];
      State one;
      one.tensors = {tensor};
      source.load_part(one, *self);
      const std::size_t bytes = static_cast<std::size_t>(tensor.box.shape.count()) * sizeof(float);
      EXPECT_EQ(std::memcmp(tensor.data, same.data, bytes), 0) << model << ": " << tensor.name;
    }
    State none;
    source.load_part(none, *self);
  }
}

/// Adapters, and a copy of their base that may change or move.
class AdapterModelSource : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::filesystem::copy(golden_.base, base_);
    step_ = save_adapters(golden_, directory_ / "run", base_);
  }
  /// Loads as generation does, and compares with what peft makes of it.
  void expect_merged(const ModelSource& source) {
    const MergedGolden merged(golden_);
    TestState state;
    for (const auto& [name, tensor] : merged.base())
      state.add_whole("parameters/" + name, Shape(tensor.shape));
    source.load(state.state(), *self_);
    int compared = 0;
    for (const StateTensor& tensor : state.state().tensors)
      compared += merged.expect_box(tensor.name.substr(std::string("parameters/").size()),
                                    {tensor.data, tensor.box});
    EXPECT_EQ(compared, merged.changed());
  }
  std::string fault(const std::filesystem::path& path, const std::filesystem::path& base,
                    ExitCode code = ExitCode::kData) {
    try {
      expect_merged(ModelSource(path, *self_, base));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "";
  }

  AdapterGolden golden_{GetParam()};
  TemporaryDirectory directory_;
  std::filesystem::path base_ = directory_ / "base", step_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
};

TEST_P(AdapterModelSource, is_the_base_with_the_adapters_merged) {
  const ModelSource of_run(directory_ / "run", *self_);
  EXPECT_EQ(of_run.path(), step_);
  EXPECT_FALSE(of_run.model().adapters);
  EXPECT_EQ(of_run.end_tokens(), Ids{306});
  expect_merged(of_run);
  check_own_model(of_run);
  const ModelSource of_peft(golden_.folder, *self_, golden_.base);
  EXPECT_EQ(of_peft.model(), load_model_config(golden_.base / "config.json"));
  expect_merged(of_peft);
  check_own_model(of_peft);
}

TEST_P(AdapterModelSource, needs_its_base_as_it_was) {
  const std::filesystem::path moved = directory_ / "moved";
  std::filesystem::rename(base_, moved);
  std::string said = fault(step_, "");
  EXPECT_NE(said.find(base_.string()), std::string::npos) << said;
  EXPECT_NE(said.find("--base DIR"), std::string::npos) << said;
  EXPECT_EQ(fault(step_, moved), "");
  std::string bytes = read_file(moved / "model.safetensors");
  bytes.back() ^= 1;
  write_file_atomically(moved / "model.safetensors", bytes);
  said = fault(step_, moved);
  EXPECT_NE(said.find("moved/model.safetensors: is not the file"), std::string::npos) << said;
  std::filesystem::remove(moved / "config.json");
  EXPECT_NE(fault(step_, moved).find("no config.json"), std::string::npos);
  EXPECT_NE(fault(golden_.folder, "").find("--base DIR"), std::string::npos);
  EXPECT_NE(fault(golden_.base, moved, ExitCode::kConfig).find("holds a whole model"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Golden, AdapterModelSource,
                         testing::Values("llama_lora", "gpt2_dora", "llama_head_dora"),
                         [](const auto& instance) { return instance.param; });

TEST(InitAdapter, has_the_rank_the_targets_and_the_scale_of_the_run) {
  const AdapterGolden golden("gpt2_lora");
  RunConfig config;
  config.model = golden.model;
  config.lora = golden.facts.lora;
  config.init.adapter = golden.folder.string();
  check_init_adapter(config);
  const auto fault = [](const RunConfig& changed, ExitCode code) -> std::string {
    try {
      check_init_adapter(changed);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "";
  };
  RunConfig other = config;
  other.lora.rank = 4;
  EXPECT_NE(fault(other, ExitCode::kConfig).find("rank 2, lora has 4"), std::string::npos);
  other = config;
  other.lora.targets = {"c_attn"};
  EXPECT_NE(fault(other, ExitCode::kConfig).find("mlp.c_fc, lora has none"), std::string::npos);
  const TemporaryDirectory folder;
  std::filesystem::copy(golden.folder, folder / "adapter");
  folder.write("adapter/adapter_model.safetensors", "cut");
  other = config;
  other.init.adapter = (folder / "adapter").string();
  EXPECT_NE(fault(other, ExitCode::kData).find("adapter_model.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace trireme
