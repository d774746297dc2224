#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "commands/commands.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

class TokenizeCommand : public testing::Test {
 protected:
  using Words = std::vector<std::string>;
  std::string path(const char* name) const { return (folder_ / name).string(); }
  int tokenize(Words words) const { return quietly(tokenize_command, std::move(words)); }
  int tokenizer(Words words) const { return quietly(tokenizer_command, std::move(words)); }
  Json summary(const char* prefix) const {
    return parse_json(read_file(path(prefix) + ".json"), prefix);
  }

  TemporaryDirectory folder_;
  std::string text_ = folder_.write("text", "the cat sat on the mat, the cat sat").string();

 private:
  static int quietly(int (*command)(Arguments), Words words) {
    testing::internal::CaptureStdout();
    int code = -1;
    try {
      code = command(words);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    testing::internal::GetCapturedStdout();
    return code;
  }
};

TEST_F(TokenizeCommand, writes_bytes_with_their_end_and_describes_them) {
  EXPECT_EQ(tokenize({"--tokenizer", "byte", "--output", path("out"), text_}), 0);
  const Json about = summary("out");
  EXPECT_EQ(about.find("tokenizer_hash")->as_string(), "byte");
  EXPECT_EQ(about.find("tokenizer_kind")->as_string(), "byte");
  EXPECT_EQ(about.find("documents")->as_integer(), 1);
  EXPECT_EQ(about.find("tokens")->as_integer(), 36);
  EXPECT_EQ(about.find("largest_id")->as_integer(), 256);
  EXPECT_EQ(about.find("vocab_size")->as_integer(), 257);
  EXPECT_EQ(about.find("end_token")->as_integer(), 256);
}

TEST_F(TokenizeCommand, a_trained_tokenizer_is_used_by_tokenize) {
  EXPECT_EQ(tokenizer({"--vocab-size", "262", "--output", path("t.json"), text_}), 0);
  EXPECT_EQ(tokenize({"--tokenizer", path("t.json"), "--output", path("out"), "--workers", "2",
                      text_, text_}),
            0);
  EXPECT_EQ(summary("out").find("documents")->as_integer(), 2);
  EXPECT_EQ(summary("out").find("end_token")->as_integer(), 0);
  EXPECT_EQ(summary("out").find("tokenizer_hash")->as_string().size(), 32u);
}

TEST_F(TokenizeCommand, the_end_token_is_named_numbered_or_left_out) {
  EXPECT_EQ(tokenize({"--tokenizer", "byte", "--output", path("out"), "--eod", "10", text_}), 0);
  EXPECT_EQ(summary("out").find("end_token")->as_integer(), 10);
  EXPECT_EQ(
      tokenize({"--tokenizer", "byte", "--output", path("out"), "--eod", "<|endoftext|>", text_}),
      0);
  EXPECT_EQ(summary("out").find("end_token")->as_integer(), 256);
  EXPECT_EQ(tokenize({"--tokenizer", "byte", "--output", path("out"), "--no-eod", text_}), 0);
  EXPECT_TRUE(summary("out").find("end_token")->is_null());
  EXPECT_EQ(summary("out").find("tokens")->as_integer(), 35);
  EXPECT_THROW(tokenize({"--tokenizer", "byte", "--output", path("out"), "--eod", "257", text_}),
               ConfigError);
  EXPECT_THROW(tokenize({"--tokenizer", "byte", "--output", path("out"), "--eod", "-1", text_}),
               ConfigError);
  EXPECT_THROW(tokenize({"--tokenizer", "byte", "--output", path("out"), "--eod", "<none>", text_}),
               ConfigError);
  EXPECT_THROW(
      tokenize({"--tokenizer", "byte", "--output", path("out"), "--eod", "1", "--no-eod", text_}),
      ConfigError);
}

TEST_F(TokenizeCommand, what_is_read_is_never_overwritten) {
  EXPECT_EQ(tokenizer({"--vocab-size", "262", "--output", path("t.json"), text_}), 0);
  EXPECT_THROW(tokenize({"--tokenizer", path("t.json"), "--output", path("t"), text_}),
               ConfigError);
  const std::string input = folder_.write("in.bin", "abc").string();
  EXPECT_THROW(tokenize({"--tokenizer", "byte", "--output", path("in"), input}), ConfigError);
  EXPECT_EQ(read_file(input), "abc");
}

TEST_F(TokenizeCommand, faults_of_usage_are_config_errors) {
  const std::vector<Words> faulty = {
      {},
      {"--tokenizer", "byte", text_},
      {"--tokenizer", "byte", "--output", path("out")},
      {"--tokenizer", "byte", "--output", path("out"), "--workers", "0", text_},
      {"--tokenizer", "byte", "--output", path("out"), "--workers", "2.5", text_},
      {"--tokenizer", "byte", "--output", path("out"), "--progress", "maybe", text_},
      {"--tokenizer", "byte", "--output", path("out"), "--unknown", text_}};
  for (const Words& words : faulty)
    EXPECT_THROW(tokenize(words), ConfigError) << testing::PrintToString(words);
  EXPECT_THROW(tokenizer({"--vocab-size", "256", "--output", path("t.json"), text_}), ConfigError);
  EXPECT_THROW(tokenizer({"--vocab-size", "many", "--output", path("t.json"), text_}), ConfigError);
  EXPECT_THROW(tokenizer({"--vocab-size", "100000", "--output", path("t.json"), text_}),
               ConfigError);
  EXPECT_FALSE(std::filesystem::exists(path("t.json")));
  EXPECT_FALSE(std::filesystem::exists(path("out.bin")));
}

TEST_F(TokenizeCommand, missing_and_empty_files_are_data_errors_that_leave_nothing) {
  const std::string empty = folder_.write("empty", "").string();
  EXPECT_THROW(tokenize({"--tokenizer", "byte", "--output", path("out"), path("absent")}),
               DataError);
  EXPECT_THROW(tokenize({"--tokenizer", path("absent"), "--output", path("out"), text_}),
               DataError);
  EXPECT_THROW(tokenize({"--tokenizer", "byte", "--output", path("out"), empty}), DataError);
  EXPECT_THROW(tokenizer({"--vocab-size", "300", "--output", path("t.json"), empty}), DataError);
  EXPECT_THROW(tokenizer({"--vocab-size", "300", "--output", path("t.json"), path("absent")}),
               DataError);
  EXPECT_THROW(tokenizer({"--vocab-size", "258", "--output", path("absent/t.json"), text_}),
               DataError);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2)
      << "text and empty";
}

TEST_F(TokenizeCommand, help_is_a_result) {
  for (const auto command : {tokenize_command, tokenizer_command}) {
    testing::internal::CaptureStdout();
    const std::string help = "--help";
    EXPECT_EQ(command(Words{help}), 0);
    EXPECT_NE(testing::internal::GetCapturedStdout().find("--output"), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme
