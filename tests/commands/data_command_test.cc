#include <gtest/gtest.h>

#include <cstdio>

#include "base/error.h"
#include "base/json.h"
#include "commands/commands.h"
#include "support/golden.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

/// What the command prints.
std::vector<Json> lines_of(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  const int code = data_command(arguments);
  std::fflush(stdout);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  std::vector<Json> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(parse_json(text.substr(begin, end - begin), "standard output"));
    begin = end + 1;
  }
  return lines;
}

class DataCommandTest : public ::testing::Test {
 protected:
  DataCommandTest() {
    Json config;
    config["run"] = Json::Object{{"directory", (folder_ / "run").string()}, {"steps", 20}};
    config["model"] = Json::Object{
        {"model_type", "llama"},         {"vocab_size", 307},        {"hidden_size", 16},
        {"num_hidden_layers", 1},        {"num_attention_heads", 2}, {"intermediate_size", 16},
        {"max_position_embeddings", 512}};
    config["data"] = Json::Object{{"train", golden_path("megatron/small").string()},
                                  {"sequence_length", 16},
                                  {"cache_directory", folder_.path().string()},
                                  {"order", "megatron"}};
    config["batch"] = Json::Object{{"global", 1}};
    config["optimizer"] = Json::Object{{"lr", 0.001}};
    config_ = folder_.write("config.json", config.dump()).string();
  }
  TemporaryDirectory folder_;
  std::string config_;
};

TEST_F(DataCommandTest, shows_the_samples_that_the_run_will_see) {
  const Json settings = read_golden_json("megatron/order.json");
  const Json& golden = settings.as_array().at(0);  // 20 samples of 16 tokens, seed 1234
  ASSERT_EQ(golden.find("name")->as_string(), "part_of_one_epoch");
  const auto lines = lines_of({config_, "--json", "--count", "100"});
  ASSERT_EQ(lines.size(), 20U);
  for (std::int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(lines[i].find("sample")->as_integer(), i);
    EXPECT_EQ(lines[i].find("source")->as_string(), golden_path("megatron/small").string());
    EXPECT_EQ(lines[i].find("tokens")->as_array().size(), 17U);
    EXPECT_TRUE(lines[i].find("text")->is_string());
  }
  EXPECT_EQ(flat_integers(*lines[0].find("tokens")),
            flat_integers(*golden.find("windows")->find("head")));
}

TEST_F(DataCommandTest, from_and_count_choose_samples) {
  const auto all = lines_of({config_, "--json", "--count", "20"});
  const auto some = lines_of({config_, "--json", "--from", "18", "--count", "5"});
  ASSERT_EQ(some.size(), 2U);
  EXPECT_EQ(some[0].dump(), all[18].dump());
  EXPECT_EQ(some[1].dump(), all[19].dump());
  EXPECT_TRUE(lines_of({config_, "--json", "--from", "3", "--count", "0"}).empty());
  EXPECT_THROW(data_command(std::vector<std::string>{config_, "--from", "20"}), ConfigError);
}

TEST_F(DataCommandTest, refuses_ids_that_training_would_refuse) {
  EXPECT_THROW(
      data_command(std::vector<std::string>{config_, "--set", "model.vocab_size=300", "--json"}),
      DataError);
}

TEST_F(DataCommandTest, epochs_count_the_windows_of_the_data) {
  const auto lines = lines_of({config_, "--set", "run.steps=null", "--set", "run.epochs=1", "--set",
                               "data.order=sequential", "--json", "--count", "1000"});
  EXPECT_EQ(lines.size(), 78U);
}

}  // namespace
}  // namespace trireme
