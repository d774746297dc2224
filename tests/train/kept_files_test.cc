#include "train/kept_files.h"

#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "checkpoint/companion_files.h"
#include "support/temporary_directory.h"
#include "tokenizer/tokenizer.h"

namespace trireme {
namespace {

class KeptFiles : public testing::Test {
 protected:
  static std::string tokenizer(const char* name) {
    return read_file(TRIREME_GOLDEN "/tokenizer/" + std::string(name) + ".tokenizer.json");
  }
  std::string write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    return folder_.write(name, content).string();
  }
  std::map<std::string, std::string> kept(const std::filesystem::path& resumed = {}) {
    const std::string hash = load_tokenizer(config_.tokenizer)->hash();
    std::map<std::string, std::string> files;
    for (const ExtraFile& file : kept_files(config_, hash, resumed))
      files.emplace(file.name, file.content);
    return files;
  }

  TemporaryDirectory folder_;
  RunConfig config_;
};

TEST_F(KeptFiles, the_tokenizers_folder_gives_all_that_belongs_to_it_and_nothing_else) {
  config_.tokenizer = write("hf/tokenizer.json", tokenizer("llama2"));
  write("hf/tokenizer_config.json", "{}");
  write("hf/chat_template.jinja", "{{ messages }}");
  write("hf/generation_config.json", "{ }");
  write("hf/config.json", "{}");
  write("hf/train.bin", "1");
  const auto files = kept();
  EXPECT_EQ(files.size(), 4u);
  EXPECT_EQ(files.at("tokenizer.json"), tokenizer("llama2"));
  EXPECT_EQ(files.at("chat_template.jinja"), "{{ messages }}");
  config_.tokenizer = (folder_ / "hf").string();
  EXPECT_EQ(kept(), files) << "named by its folder";
}

TEST_F(KeptFiles, a_file_of_another_name_has_no_siblings_and_is_kept_as_tokenizer_json) {
  config_.tokenizer = write("data/words.json", tokenizer("gpt2"));
  write("data/vocab.json", "of something else");
  const auto files = kept();
  EXPECT_EQ(files.size(), 1u);
  EXPECT_EQ(files.at("tokenizer.json"), tokenizer("gpt2"));
}

TEST_F(KeptFiles, init_weights_gives_what_the_tokenizers_folder_lacks) {
  config_.tokenizer = write("data/tokenizer.json", tokenizer("llama2"));
  write("data/tokenizer_config.json", "the user's");
  config_.init.weights = (folder_ / "hf").string();
  write("hf/tokenizer.json", tokenizer("llama2") + "\n\n");
  write("hf/tokenizer_config.json", "the model's");
  write("hf/special_tokens_map.json", "the model's");
  write("hf/generation_config.json", "the model's");
  const auto files = kept();
  EXPECT_EQ(files.at("tokenizer.json"), tokenizer("llama2"));
  EXPECT_EQ(files.at("tokenizer_config.json"), "the user's");
  EXPECT_EQ(files.at("special_tokens_map.json"), "the model's");
  EXPECT_EQ(files.at("generation_config.json"), "the model's");
}

TEST_F(KeptFiles, files_of_another_tokenizer_than_the_runs_are_left_where_they_are) {
  config_.init.weights = (folder_ / "hf").string();
  write("hf/tokenizer.json", tokenizer("gemma"));
  write("hf/tokenizer_config.json", "gemma's");
  write("hf/generation_config.json", "of the weights");
  config_.tokenizer = write("data/tokenizer.json", tokenizer("llama2"));
  EXPECT_EQ(kept().count("tokenizer_config.json"), 0u);
  EXPECT_EQ(kept().at("generation_config.json"), "of the weights");
  config_.tokenizer = "byte";
  const auto bytes = kept();
  EXPECT_EQ(bytes.size(), 1u);
  EXPECT_EQ(bytes.at("generation_config.json"), "of the weights");
  write("hf/tokenizer.json", "not understood");
  EXPECT_EQ(kept().size(), 1u);
}

TEST_F(KeptFiles, a_resumed_run_keeps_what_its_checkpoint_has_though_the_weights_are_gone) {
  config_.tokenizer = write("data/words.json", tokenizer("llama2"));
  config_.init.weights = (folder_ / "gone").string();
  write("step-00000010/tokenizer.json", tokenizer("llama2"));
  write("step-00000010/generation_config.json", "of the first life");
  write("step-00000010/kernel_choices.json", "{}");
  const auto files = kept(folder_ / "step-00000010");
  EXPECT_EQ(files.size(), 2u);
  EXPECT_EQ(files.at("generation_config.json"), "of the first life");
}

}  // namespace
}  // namespace trireme
