// The files that a config names, looked at before a run begins.
#include "train/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/safetensors.h"
#include "model/param_table.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

constexpr std::string_view kModel =
    R"({"model_type":"llama","vocab_size":257,"hidden_size":32,"intermediate_size":64,"num_hidden_layers":1,)"
    R"("num_attention_heads":2,"num_key_value_heads":1,"max_position_embeddings":64,)"
    R"("tie_word_embeddings":false})";

/// A config without a model and data of its own, and what it is given.
LoadedConfig load(const TemporaryDirectory& folder, const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"run.directory=" + (folder.path() / "run").string()};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return read_config_with_model(
      {{folder.write("c.json",
                     R"({"run":{"steps":1},"data":{"train":"synthetic","sequence_length":8},)"
                     R"("batch":{"micro":1},"optimizer":{"lr":0.1}})")},
       all});
}

/// "init.weights 74 text", the one problem of config and files together.
std::string fault_of(const TemporaryDirectory& folder, const std::vector<std::string>& overrides) {
  LoadedConfig loaded = load(folder, overrides);
  std::vector<Problem> problems = loaded.problems;
  for (Problem& problem : check_inputs(loaded, DataFiles::kChecked).problems)
    problems.push_back(std::move(problem));
  if (problems.size() != 1) return format_problems(problems);
  return fmt::format("{} {} {}", problems[0].path, static_cast<int>(problems[0].code),
                     problems[0].message);
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Weights of kModel with values of no interest.
void write_weights(const std::filesystem::path& folder, std::int64_t surplus_columns = 0) {
  const TemporaryDirectory model_folder;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  std::vector<SafetensorsWriter::Tensor> tensors;
  const LoadedConfig loaded = load(model_folder, {fmt::format("model={}", kModel)});
  for (const ParamMeta& param : declare_params(loaded.config.model).metas)
    tensors.push_back({param.name, param.shape});
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  if (surplus_columns > 0) tensors[0].shape = Shape({257, 32 + surplus_columns});
  SafetensorsWriter writer(folder, DType::kF32, tensors);
  for (const SafetensorsWriter::Tensor& tensor : tensors)
    writer.write(std::vector<float>(static_cast<std::size_t>(tensor.shape.count())));
  writer.finish();
}

TEST(Inputs, weights_that_are_not_there_are_a_fault_of_init_weights) {
  const TemporaryDirectory folder;
  const std::string missing = (folder.path() / "absent" / "step-00000010").string();
  for (const std::string& model : {std::string("model=null"), fmt::format("model={}", kModel)}) {
    const std::string fault = fault_of(folder, {model, "init.weights=" + missing});
    EXPECT_TRUE(fault.starts_with("init.weights 74 " + missing)) << fault;
    EXPECT_TRUE(has(fault, "absent in it is not")) << fault;
  }
}

TEST(Inputs, weights_of_every_wrong_kind_are_reported_as_what_they_are) {
  const TemporaryDirectory folder;
  std::filesystem::create_directories(folder.path() / "empty");
  std::filesystem::create_directories(folder.path() / "run_without");
  std::filesystem::create_directories(folder.path() / "broken");
  std::filesystem::create_directories(folder.path() / "unknown");
  folder.write("run_without/config.json", R"({"run":{"directory":"r"}})");
  folder.write("broken/config.json", R"({"model_type":)");
  folder.write("unknown/config.json", R"({"model_type":"mamba"})");
  folder.write("file", "x");
  const auto fault = [&](const std::string& name) {
    return fault_of(folder, {"init.weights=" + (folder.path() / name).string()});
  };
  EXPECT_TRUE(has(fault("empty"), "init.weights 74 ") && has(fault("empty"), "has no config.json"))
      << fault("empty");
  EXPECT_TRUE(has(fault("file"), "init.weights 74 ") && has(fault("file"), "is a file"))
      << fault("file");
  EXPECT_TRUE(has(fault("run_without"), "74") && has(fault("run_without"), "without checkpoints"))
      << fault("run_without");
  EXPECT_TRUE(has(fault("broken"), "init.weights 2 ")) << fault("broken");
  EXPECT_TRUE(has(fault("unknown"), "model.model_type 2 ")) << fault("unknown");
}

TEST(Inputs, weights_are_compared_with_the_model_before_anything_starts) {
  const TemporaryDirectory folder;
  folder.write("config.json", std::string(kModel));
  const std::string weights = "init.weights=" + folder.path().string();
  EXPECT_TRUE(has(fault_of(folder, {weights}), "init.weights 74 ")) << fault_of(folder, {weights});
  write_weights(folder.path());
  LoadedConfig loaded = load(folder, {weights});
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.config.model.hidden, 32);
  EXPECT_TRUE(check_inputs(loaded, DataFiles::kOpened).problems.empty());
  const std::string other = fmt::format("model={}", kModel);
  EXPECT_TRUE(has(fault_of(folder, {other, "model.num_hidden_layers=2", weights}), "Missing"))
      << fault_of(folder, {other, "model.num_hidden_layers=2", weights});
  write_weights(folder.path(), 1);
  EXPECT_TRUE(has(fault_of(folder, {weights}), "the model has")) << fault_of(folder, {weights});
}

TEST(Inputs, all_files_that_are_missing_are_reported_at_once_each_with_its_key) {
  const TemporaryDirectory folder;
  const std::string at = folder.path().string();
  LoadedConfig loaded =
      load(folder, {fmt::format("model={}", kModel), "tokenizer=" + at + "/t.json",
                    "init.weights=" + at + "/w", "data.train=" + at + "/a",
                    "data.validation=" + at + "/b", "run.resume=" + at + "/r"});
  ASSERT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  std::vector<std::string> paths;
  const Inputs inputs = check_inputs(loaded, DataFiles::kOpened);
  for (const Problem& problem : inputs.problems) {
    paths.push_back(problem.path);
    EXPECT_EQ(problem.code, ExitCode::kData) << format_problem(problem);
  }
  EXPECT_EQ(paths, (std::vector<std::string>{"tokenizer", "init.weights", "run.resume",
                                             "data.train", "data.validation"}));
  try {
    throw_problems(inputs.problems);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
  }
  EXPECT_EQ(check_inputs(loaded, DataFiles::kLeftOut).problems.size(), 3U);
}

}  // namespace
}  // namespace trireme
