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

  /// What a command throws; "done" where it does not.
  static std::string fault_of(int (*command)(Arguments), Words words) {
    try {
      quietly(command, std::move(words));
    } catch (const Error& error) {
      return error.what();
    }
    return "done";
  }
  /// What a command that ends well says on standard error.
  static std::string warnings_of(int (*command)(Arguments), Words words) {
    testing::internal::CaptureStderr();
    const std::string fault = fault_of(command, std::move(words));
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_EQ(fault, "done");
    return told;
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
  EXPECT_EQ(tokenize({"--tokenizer", "byte", "--output", path("out"), "--overwrite", "--eod",
                      "<|endoftext|>", text_}),
            0);
  EXPECT_EQ(summary("out").find("end_token")->as_integer(), 256);
  EXPECT_EQ(
      tokenize({"--tokenizer", "byte", "--output", path("out"), "--overwrite", "--no-eod", text_}),
      0);
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
  EXPECT_THROW(
      tokenize({"--tokenizer", path("t.json"), "--output", path("t"), "--overwrite", text_}),
      ConfigError);
  const std::string input = folder_.write("in.bin", "abc").string();
  EXPECT_THROW(tokenize({"--tokenizer", "byte", "--output", path("in"), "--overwrite", input}),
               ConfigError);
  EXPECT_THROW(tokenizer({"--vocab-size", "262", "--output", text_, "--overwrite", text_}),
               ConfigError);
  EXPECT_EQ(read_file(input), "abc");
}

TEST_F(TokenizeCommand, an_existing_output_is_replaced_only_when_told_so) {
  for (const char* name : {"p.bin", "q.idx", "r.json"}) {
    folder_.write(name, "mine");
    const std::string prefix = path(std::string(name).substr(0, 1).c_str());
    EXPECT_EQ(fault_of(tokenize_command, {"--tokenizer", "byte", "--output", prefix, text_}),
              "--output: " + path(name) +
                  " exists (it is not overwritten unasked). Choose another name, or give "
                  "--overwrite");
    EXPECT_EQ(read_file(path(name)), "mine");
    EXPECT_EQ(tokenize({"--tokenizer", "byte", "--output", prefix, "--overwrite", text_}), 0);
    EXPECT_NE(read_file(path(name)), "mine");
  }
  folder_.write("t.json", "mine");
  EXPECT_THROW(tokenizer({"--vocab-size", "262", "--output", path("t.json"), text_}), ConfigError);
  EXPECT_EQ(read_file(path("t.json")), "mine");
  EXPECT_EQ(tokenizer({"--vocab-size", "262", "--output", path("t.json"), "--overwrite", text_}),
            0);
  EXPECT_NE(read_file(path("t.json")), "mine");
}

TEST_F(TokenizeCommand, an_output_in_a_missing_folder_says_to_make_it_before_any_work) {
  const std::string wanted = "--output: the folder " + path("new/er") +
                             " does not exist. Make it: mkdir -p " + path("new/er");
  EXPECT_EQ(fault_of(tokenize_command,
                     {"--tokenizer", "byte", "--output", path("new/er/out"), path("absent")}),
            wanted);
  EXPECT_EQ(fault_of(tokenizer_command,
                     {"--vocab-size", "300", "--output", path("new/er/t.json"), path("absent")}),
            wanted);
  EXPECT_NE(fault_of(tokenizer_command,
                     {"--vocab-size", "300", "--output", folder_.path().string(), text_})
                .find("is a folder. Name a file"),
            std::string::npos);
  EXPECT_NE(fault_of(tokenize_command,
                     {"--tokenizer", "byte", "--output", folder_.path().string() + "/", text_})
                .find("a prefix is needed"),
            std::string::npos);
}

TEST_F(TokenizeCommand, json_lines_read_as_text_are_told_once_with_the_flag_and_the_key) {
  const std::string lines =
      folder_.write("a", "\n{\"id\": \"1\", \"story\": \"the cat\"}\n{\"id\": \"2\"}\n").string();
  const std::string more = folder_.write("b", "{\"text\": \"the cat\"}\n").string();
  const std::string told =
      warnings_of(tokenize_command, {"--tokenizer", "byte", "--output", path("out"), lines, more});
  EXPECT_NE(told.find("a: looks like JSON lines"), std::string::npos) << told;
  EXPECT_NE(told.find("--jsonl story"), std::string::npos) << told;
  EXPECT_EQ(told.find("b: looks"), std::string::npos) << "once: " << told;
  EXPECT_NE(warnings_of(tokenizer_command,
                        {"--vocab-size", "258", "--output", path("t.json"), more, more})
                .find("--jsonl text"),
            std::string::npos);
  for (const char* text :
       {"the {cat}\n", "{not json\n", "{\n  \"text\": \"pretty\"\n}\n", "[1]\n"}) {
    folder_.write("c", text);
    EXPECT_EQ(warnings_of(tokenize_command, {"--tokenizer", "byte", "--output", path("out"),
                                             "--overwrite", path("c")}),
              "")
        << text;
  }
}

TEST_F(TokenizeCommand, bytes_that_are_hardly_text_are_told_once) {
  const auto told = [&](const std::string& bytes) {
    folder_.write("c", bytes);
    return warnings_of(tokenize_command,
                       {"--tokenizer", "byte", "--output", path("out"), "--overwrite", path("c")});
  };
  EXPECT_NE(told(std::string("a\0b", 3)).find("c: holds zero bytes"), std::string::npos);
  EXPECT_NE(told("caf\xe9").find("c: is not all UTF-8"), std::string::npos);
  EXPECT_NE(told(std::string("\xff\xfe"
                             "a\0",
                             4))
                .find("c: is UTF-16"),
            std::string::npos);
  EXPECT_EQ(told("caf\xc3\xa9"), "");
}

TEST_F(TokenizeCommand, an_input_that_stands_twice_is_told) {
  EXPECT_NE(
      warnings_of(tokenize_command, {"--tokenizer", "byte", "--output", path("out"), text_, text_})
          .find("is named twice"),
      std::string::npos);
  EXPECT_NE(
      fault_of(tokenize_command, {"--tokenizer", "byte", "--output", path("new"), "-", text_, "-"})
          .find("- stands twice"),
      std::string::npos);
}

TEST_F(TokenizeCommand, a_tokenizer_is_trained_on_json_lines_as_on_their_texts) {
  folder_.write("lines",
                "{\"t\": \"the cat sat on the mat, \"}\n\n{\"t\": \"the cat sat\", \"n\": 1}\n");
  EXPECT_EQ(
      tokenizer({"--vocab-size", "262", "--output", path("a.json"), "--jsonl", "t", path("lines")}),
      0);
  const std::string one = folder_.write("one", "the cat sat on the mat, ").string();
  const std::string two = folder_.write("two", "the cat sat").string();
  EXPECT_EQ(tokenizer({"--vocab-size", "262", "--output", path("b.json"), one, two}), 0);
  EXPECT_EQ(read_file(path("a.json")), read_file(path("b.json")));
  EXPECT_NE(fault_of(tokenizer_command, {"--vocab-size", "262", "--output", path("c.json"),
                                         "--jsonl", "x", path("lines")})
                .find("lines: line 1: has no member \"x\" (it has \"t\")"),
            std::string::npos);
}

TEST_F(TokenizeCommand, conversations_get_a_mask_and_no_end_token) {
  folder_.write(
      "chat",
      R"({"m": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]})"
      "\n");
  const std::string told =
      warnings_of(tokenize_command, {"--tokenizer", "byte", "--output", path("out"), "--messages",
                                     "m", "--chat-template", "chatml", path("chat")});
  EXPECT_NE(told.find("has no token <|im_end|>"), std::string::npos) << told;
  const std::string text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n";
  const std::string mask = read_file(path("out.mask"));
  ASSERT_EQ(mask.size(), text.size());
  for (std::size_t i = 0; i < mask.size(); ++i)
    EXPECT_EQ(mask[i], i >= text.rfind("Ho") ? '\1' : '\0') << i;
  EXPECT_EQ(summary("out").find("tokens")->as_integer(), std::ssize(text));
  EXPECT_EQ(summary("out").find("targets")->as_integer(), 13);
  EXPECT_EQ(summary("out").find("chat_template")->as_string(), "chatml");
  EXPECT_TRUE(summary("out").find("end_token")->is_null());
  EXPECT_EQ(summary("out").find("packed"), nullptr);
  // Text onto the same name leaves no mask of conversations behind.
  EXPECT_EQ(tokenize({"--tokenizer", "byte", "--output", path("out"), "--overwrite", text_}), 0);
  EXPECT_FALSE(std::filesystem::exists(path("out.mask")));
}

TEST_F(TokenizeCommand, documents_are_packed_into_windows) {
  folder_.write("lines", "{\"t\": \"abcdefg\"}\n{\"t\": \"hij\"}\n{\"t\": \"kl\"}\n");
  const auto pack = [&](Words more) {
    Words words = {"--tokenizer", "byte", "--output", path("out"), "--overwrite",
                   "--jsonl",     "t",    "--pack",   "8",         path("lines")};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  EXPECT_EQ(tokenize(pack({})), 0);
  EXPECT_EQ(summary("out").find("packed")->as_integer(), 8);
  EXPECT_EQ(summary("out").find("documents")->as_integer(), 2);
  EXPECT_EQ(summary("out").find("tokens")->as_integer(), 17);
  EXPECT_EQ(read_file(path("out.mask")), std::string("\0\1\1\1\1\1\1\1\0\1\1\1\0\1\1\0\0", 17));
  EXPECT_EQ(tokenize(pack({"--eod", "10"})), 0);
  EXPECT_NE(warnings_of(tokenize_command,
                        {"--tokenizer", "byte", "--output", path("out"), "--overwrite", "--jsonl",
                         "t", "--pack", "4", "--overflow", "split", path("lines")})
                .find("1 document longer than 4 tokens split"),
            std::string::npos);
  EXPECT_NE(fault_of(tokenize_command,
                     {"--tokenizer", "byte", "--output", path("out"), "--overwrite", "--jsonl", "t",
                      "--pack", "4", "--overflow", "refuse", path("lines")})
                .find("document 0 has 8 tokens, more than --pack 4"),
            std::string::npos);
}

TEST_F(TokenizeCommand, options_of_conversations_that_do_not_go_together_are_refused) {
  const auto fault = [&](Words more) {
    Words words = {"--tokenizer", "byte", "--output", path("out"), text_};
    words.insert(words.end(), more.begin(), more.end());
    return fault_of(tokenize_command, words);
  };
  EXPECT_NE(fault({"--messages", "m"}).find("has no chat template beside it"), std::string::npos);
  EXPECT_NE(fault({"--messages", "m", "--chat-template", "zephyr"}).find("legal: chatml"),
            std::string::npos);
  for (const Words& words : std::vector<Words>{{"--messages", "m", "--jsonl", "m"},
                                               {"--chat-template", "chatml"},
                                               {"--messages", "m", "--eod", "3"},
                                               {"--overflow", "split"},
                                               {"--pack", "1"},
                                               {"--pack", "8", "--overflow", "never"}})
    EXPECT_NE(fault(words), "done") << testing::PrintToString(words);
  EXPECT_FALSE(std::filesystem::exists(path("out.bin")));
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
  EXPECT_THROW(tokenizer({"--vocab-size", "0", "--output", path("t.json"), text_}), ConfigError);
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
