#include "checkpoint/huggingface.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/boxes.h"
#include "checkpoint/reader.h"
#include "support/golden.h"
#include "support/save_checkpoint.h"
#include "support/temporary_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

/// A state with the names and shapes of a folder of weights.
void add_parameters_of(TestState& state, const GoldenTensors& tensors) {
  for (const auto& [name, tensor] : tensors)
    state.add_whole("parameters/" + name, Shape(tensor.shape));
}

/// The first tensor of the state that differs, "" where there is none.
std::string first_difference(State& state, const GoldenTensors& tensors) {
  for (const StateTensor& tensor : state.tensors) {
    const auto& values = tensors.at(tensor.name.substr(std::string("parameters/").size())).values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      float value = 0;
      std::memcpy(&value, tensor.data + i * sizeof value, sizeof value);
      if (value != static_cast<float>(values[i])) return tensor.name;
    }
  }
  return "";
}

class HuggingFace : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder_ = golden_path("model/" + GetParam());
  std::unique_ptr<Communicator> world_ = make_self_communicator();
};

TEST_P(HuggingFace, import_then_export_gives_the_same_tensor_bytes) {
  const GoldenTensors stored = read_tensors(folder_ / "model.safetensors"),
                      golden = with_experts_apart(stored);
  TestState state;
  add_parameters_of(state, golden);
  import_weights(folder_, state.state(), *world_);
  EXPECT_EQ(first_difference(state.state(), golden), "");

  TemporaryDirectory directory;
  SaveRequest request = request_for(directory / "checkpoints", 3, state.state());
  request.model = parse_json(read_file(folder_ / "config.json"), "config.json");
  request.files.push_back({"tokenizer.json", R"({"added_tokens":[{"id":306,"content":"<end>"}]})"});
  const SaveResult saved = save_checkpoint(request, *world_);
  ASSERT_EQ(saved.error, "");
  const std::filesystem::path output = directory / "deep/hf";
  const ExportResult result = export_checkpoint(saved.path, output, {}, *world_);
  EXPECT_EQ(result.tensors, static_cast<std::int64_t>(stored.size()));
  EXPECT_EQ(result.dtype, DType::kF32);
  const auto data_of = [](const std::filesystem::path& path) {
    const std::string bytes = read_file(path);
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    return bytes.substr(8 + header_bytes);
  };
  EXPECT_EQ(data_of(output / "model.safetensors"), data_of(folder_ / "model.safetensors"));
  EXPECT_EQ(read_tensors(output / "model.safetensors").size(), stored.size());
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_TRUE(std::filesystem::exists(output / name)) << name;
  }
  // Again over itself, in several files and in bf16.
  export_checkpoint(saved.path, output, {DType::kBF16, 5000, {}}, *world_);
  EXPECT_FALSE(std::filesystem::exists(output / "model.safetensors"));
  TestState again;
  add_parameters_of(again, golden);
  import_weights(output, again.state(), *world_);
  for (const StateTensor& tensor : again.state().tensors) {
    float value = 0;
    std::memcpy(&value, tensor.data, sizeof value);
    const double exact = golden.at(tensor.name.substr(std::string("parameters/").size())).values[0];
    const auto kept = static_cast<float>(exact);
    const bool in_f32 = tensor.name.ends_with(".e_score_correction_bias");
    EXPECT_EQ(value, in_f32 ? kept : to_float(to_bfloat16(kept))) << tensor.name;
  }
}

// Chat template, generation settings and the vocabulary's other forms cannot be derived from a
// checkpoint.
TEST_P(HuggingFace, what_a_checkpoint_keeps_of_a_tokenizer_is_exported_as_it_is) {
  TestState state;
  add_parameters_of(state, with_experts_apart(read_tensors(folder_ / "model.safetensors")));
  TemporaryDirectory directory;
  SaveRequest request = request_for(directory / "checkpoints", 3, state.state());
  request.model = parse_json(read_file(folder_ / "config.json"), "config.json");
  const std::vector<ExtraFile> files = {
      {"tokenizer.json", R"({"added_tokens": [] })"},
      {"tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "pad_token": "<pad>"})"},
      {"special_tokens_map.json", R"({"pad_token": "<pad>"})"},
      {"added_tokens.json", "{}"},
      {"vocab.json", "{ }"},
      {"merges.txt", "#version: 0.2\n"},
      {"tokenizer.model", std::string("\0\1\xff", 3)},
      {"chat_template.jinja", "{{ messages }}"},
      {"chat_template.json", R"({"chat_template": "x"})"},
      {"generation_config.json", R"({"eos_token_id": [1, 2], "temperature": 0.6})"}};
  request.files = files;
  request.files.push_back({"kernel_choices.json", "{}"});
  const SaveResult saved = save_checkpoint(request, *world_);
  ASSERT_EQ(saved.error, "");
  export_checkpoint(saved.path, directory / "hf", {}, *world_);
  for (const ExtraFile& file : files)
    EXPECT_EQ(read_file(directory / "hf" / file.name), file.content) << file.name;
  EXPECT_FALSE(std::filesystem::exists(directory / "hf" / "kernel_choices.json"));

  // Settings that were not kept are derived, beside those that were.
  request.files = {files[0], files[2]};
  request.directory = directory / "others";
  const SaveResult fewer = save_checkpoint(request, *world_);
  ASSERT_EQ(fewer.error, "");
  export_checkpoint(fewer.path, directory / "derived", {}, *world_);
  EXPECT_EQ(read_file(directory / "derived/special_tokens_map.json"), files[2].content);
  const Json settings =
      parse_json(read_file(directory / "derived/tokenizer_config.json"), "settings");
  EXPECT_EQ(settings.find("tokenizer_class")->as_string(), "PreTrainedTokenizerFast");
  EXPECT_TRUE(std::filesystem::exists(directory / "derived/generation_config.json"));
}

INSTANTIATE_TEST_SUITE_P(Golden, HuggingFace, testing::ValuesIn(golden_model_cases()),
                         [](const auto& instance) { return instance.param; });

/// A little model written by hand: every name can be given.
class Import : public testing::Test {
 protected:
  void write(const std::vector<std::string>& names, const std::string& changed = "") {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const std::string& name : names) tensors.push_back({name, Shape{2, 2}});
    SafetensorsWriter writer(directory_.path(), DType::kF32, tensors);
    for (const std::string& name : names) {
      writer.write(std::vector<float>(4, name == changed ? 2.0F : 1.0F));
    }
    writer.finish();
  }
  std::string fault(const std::vector<std::string>& names) {
    TestState state;
    for (const std::string& name : names) state.add_whole("parameters/" + name, Shape{2, 2});
    try {
      import_weights(directory_.path(), state.state(), *world_);
    } catch (const DataError& error) {
      return error.what();
    }
    for (const StateTensor& tensor : state.state().tensors) {
      float value = 0;
      std::memcpy(&value, tensor.data, sizeof value);
      if (value != 1.0F) return "not filled";
    }
    return "";
  }
  TemporaryDirectory directory_;
  std::unique_ptr<Communicator> world_ = make_self_communicator();
};

TEST_F(Import, gpt2_names_are_read_with_and_without_their_prefix_and_buffers_ignored) {
  const std::vector<std::string> ours = {"transformer.h.0.attn.c_attn.bias",
                                         "transformer.wte.weight"};
  write({"h.0.attn.bias", "h.0.attn.c_attn.bias", "h.0.attn.masked_bias", "wte.weight"});
  EXPECT_EQ(fault(ours), "");
  write(
      {"transformer.h.0.attn.bias", "transformer.h.0.attn.c_attn.bias", "transformer.wte.weight"});
  EXPECT_EQ(fault(ours), "");
  write({"h.0.attn.c_attn.bias", "transformer.h.0.attn.c_attn.bias", "transformer.wte.weight"});
  EXPECT_NE(fault(ours).find("Not in the model: h.0.attn.c_attn.bias"), std::string::npos)
      << fault(ours);
}

TEST_F(Import, a_tied_head_may_stand_in_the_file_only_as_a_copy) {
  write({"lm_head.weight", "model.embed_tokens.weight"});
  EXPECT_EQ(fault({"model.embed_tokens.weight"}), "");
  write({"lm_head.weight", "model.embed_tokens.weight"}, "lm_head.weight");
  EXPECT_NE(fault({"model.embed_tokens.weight"}).find("lm_head.weight differs from the embedding"),
            std::string::npos);
}

TEST_F(Import, layers_that_predict_further_tokens_are_not_read) {
  const std::string ours = "model.layers.1.mlp.gate.weight";
  write({ours, "model.layers.2.eh_proj.weight", "model.layers.2.mlp.gate.weight",
         "model.layers.2.shared_head.head.weight"});
  EXPECT_EQ(fault({ours}), "");
  write({ours, "model.layers.2.mlp.gate.weight", "model.layers.3.eh_proj.weight"});
  EXPECT_NE(fault({ours}).find("Not in the model: model.layers.2.mlp.gate.weight."),
            std::string::npos)
      << fault({ours});
}

TEST_F(Import, missing_and_surplus_tensors_and_shapes_are_named) {
  write({"model.embed_tokens.weight", "model.extra.weight", "model.rotary_emb.inv_freq"});
  const std::string text = fault({"lm_head.weight", "model.embed_tokens.weight"});
  EXPECT_NE(text.find("Missing: lm_head.weight. Not in the model: model.extra.weight."),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("tie_word_embeddings"), std::string::npos) << text;
  write({"model.embed_tokens.weight"});
  TestState state;
  state.add_whole("parameters/model.embed_tokens.weight", Shape{4});
  try {
    import_weights(directory_.path(), state.state(), *world_);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("model.embed_tokens.weight is F32 [2, 2], the model has [4]"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Import, a_folder_that_is_not_an_export_is_never_replaced) {
  TestState state;
  state.add_whole("parameters/x", Shape{2});
  SaveRequest request = request_for(directory_ / "checkpoints", 1, state.state());
  request.model = parse_json(R"({"model_type":"llama"})", "");
  ASSERT_EQ(save_checkpoint(request, *world_).error, "");
  directory_.write("out/thesis.txt", "three years of work");
  EXPECT_THROW(
      export_checkpoint(directory_ / "checkpoints/step-00000001", directory_ / "out", {}, *world_),
      ConfigError);
  EXPECT_EQ(read_file(directory_ / "out/thesis.txt"), "three years of work");
}

}  // namespace
}  // namespace trireme
