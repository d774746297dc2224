#include "tokenizer/tokenize_corpus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "support/temporary_directory.h"
#include "support/thread_limit.h"
#include "tokenizer/byte_tokenizer.h"

namespace trireme {
namespace {

const std::string kGpt2 = TRIREME_GOLDEN "/tokenizer/gpt2.tokenizer.json";
const std::string kHostile = TRIREME_GOLDEN "/tokenizer/hostile.jsonl";

class TokenizeCorpus : public testing::Test {
 protected:
  struct Files {
    std::string bin, idx;
    IndexedTotals totals;
    friend bool operator==(const Files& a, const Files& b) {
      return a.bin == b.bin && a.idx == b.idx;
    }
  };
  Files run(const Tokenizer& tokenizer, const TokenizeOptions& options) {
    const std::string prefix = (folder_ / fmt::format("out{}", runs_++)).string();
    IndexedWriter writer(prefix, tokenizer.vocab_size());
    tokenize_corpus(tokenizer, options, writer);
    writer.finish(describe_tokenizer(tokenizer, options.end_token));
    return {read_file(prefix + ".bin"), read_file(prefix + ".idx"), writer.totals()};
  }
  std::string fault(const TokenizeOptions& options) {
    const ByteTokenizer tokenizer;
    try {
      (void)run(tokenizer, options);
    } catch (const DataError& error) {
      return error.what();
    }
    return "accepted";
  }
  TokenizeOptions options(std::vector<std::string> inputs) {
    TokenizeOptions made;
    made.inputs = std::move(inputs);
    made.progress = Show::kNever;
    return made;
  }

  TemporaryDirectory folder_;
  int runs_ = 0;
};

std::string as_narrow(const std::vector<std::int32_t>& ids) {
  std::string bytes;
  for (const std::int32_t id : ids) {
    bytes += static_cast<char>(id & 0xFF);
    bytes += static_cast<char>(id >> 8);
  }
  return bytes;
}

/// Several megabytes, so that the reader cuts.
std::string large_text() {
  std::string text, lines = read_file(kHostile);
  while (text.size() < std::size_t{3} << 20) text += lines;
  return text;
}

TEST_F(TokenizeCorpus, files_become_documents_with_their_end) {
  TokenizeOptions work =
      options({folder_.write("a", "ab").string(), folder_.write("b", "").string(),
               folder_.write("c", "\xff").string()});
  work.end_token = 256;
  const Files files = run(ByteTokenizer(), work);
  EXPECT_EQ(files.bin, as_narrow({97, 98, 256, 255, 256}));
  EXPECT_EQ(files.totals.documents, 2);
  EXPECT_EQ(files.totals.empty_documents, 1);
}

TEST_F(TokenizeCorpus, a_large_file_is_one_document_with_the_ids_of_the_whole) {
  const auto tokenizer = load_tokenizer(kGpt2);
  const std::string text = large_text();
  const Files files = run(*tokenizer, options({folder_.write("a", text).string()}));
  EXPECT_EQ(files.totals.documents, 1);
  EXPECT_EQ(files.bin, as_narrow(tokenizer->encode(text)));
}

TEST_F(TokenizeCorpus, any_number_of_workers_writes_the_same_bytes) {
  const auto tokenizer = load_tokenizer(kGpt2);
  std::string lines;
  for (int i = 0; lines.size() < std::size_t{4} << 20; ++i) {
    lines += "{\"id\": 1, \"text\": " +
             Json(fmt::format("line {} \u4e2d {}", i,
                              std::string(static_cast<std::size_t>(i % 91), 'q')))
                 .dump() +
             "}\r\n";
    if (i % 10 == 0) lines += " \n";
  }
  const std::string plain = folder_.write("plain", large_text()).string();
  for (const bool json : {true, false}) {
    TokenizeOptions work = options(
        {json ? folder_.write("lines", lines).string() : plain, json ? "/dev/null" : kHostile});
    if (json) work.json_key = "text";
    work.end_token = 0;
    work.workers = 1;
    const Files one = run(*tokenizer, work);
    EXPECT_GT(one.totals.documents, 1);
    for (const int workers : {2, 5}) {
      work.workers = workers;
      EXPECT_TRUE(run(*tokenizer, work) == one) << workers;
    }
  }
}

TEST_F(TokenizeCorpus, fewer_threads_than_workers_do_it_all_and_none_is_an_error) {
  TokenizeOptions work = options({folder_.write("a", "ab").string(), kHostile});
  const Files one = run(ByteTokenizer(), work);
  work.workers = 8;
  {
    const ThreadLimit few(2);
    EXPECT_TRUE(run(ByteTokenizer(), work) == one);
  }
  const ThreadLimit none(0);
  EXPECT_THROW((void)run(ByteTokenizer(), work), EnvironmentError);
}

TEST_F(TokenizeCorpus, a_faulty_line_is_named) {
  const auto with = [&](const std::string& last) {
    TokenizeOptions work = options(
        {folder_.write("x.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\", \"id\": 3}\n" + last)
             .string()});
    work.json_key = "text";
    const std::string what = fault(work);
    EXPECT_TRUE(what.starts_with((folder_ / "x.jsonl").string() + ": line 4: ")) << what;
    return what.substr(std::min(what.size(), (folder_ / "x.jsonl").string().size() + 10));
  };
  EXPECT_TRUE(with("{\"text\": ").starts_with("column ")) << with("{\"text\": ");
  EXPECT_NE(with("{\"other\": \"a\"}\n").find("has no member \"text\" (it has \"other\")"),
            std::string::npos);
  EXPECT_NE(with("{\"text\": 3}").find("\"text\" is an integer, not a string"), std::string::npos);
  EXPECT_NE(with("[1]").find("an array stands where an object is needed"), std::string::npos);
  EXPECT_NE(with("{\"text\": \"\xff\"}").find("UTF-8"), std::string::npos);
  EXPECT_NE(with("{\"text\": \"a\"} {}").find("column"), std::string::npos);
}

TEST_F(TokenizeCorpus, conversations_are_counted_as_the_assistants_on_any_number_of_workers) {
  const auto tokenizer = load_tokenizer(TRIREME_GOLDEN "/tokenizer/qwen.tokenizer.json");
  std::string lines;
  for (int i = 0; lines.size() < std::size_t{5} << 18; ++i) {
    lines += fmt::format(R"({{"m": [{{"role": "user", "content": "line {} {}"}},)", i,
                         std::string(static_cast<std::size_t>(i % 91), 'q'));
    lines += R"({"role": "assistant", "content": "yes"}]})"
             "\n";
  }
  TokenizeOptions work = options({folder_.write("lines", lines).string()});
  work.json_key = "m";
  work.chat.emplace("chatml", "", "");
  std::string bin, mask;
  for (const int workers : {1, 3}) {
    work.workers = workers;
    const std::string prefix = (folder_ / fmt::format("chat{}", workers)).string();
    IndexedWriter writer(prefix, tokenizer->vocab_size(), TargetMask::kWritten);
    tokenize_corpus(*tokenizer, work, writer);
    writer.finish(Json::object());
    // "yes", the end of the turn, a line feed.
    const std::int64_t answer = std::ssize(tokenizer->encode("yes<|im_end|>\n"));
    EXPECT_EQ(writer.totals().counted, writer.totals().documents * answer);
    EXPECT_EQ(writer.totals().without_targets, 0);
    if (workers == 1) {
      bin = read_file(prefix + ".bin");
      mask = read_file(prefix + ".mask");
    }
    EXPECT_TRUE(read_file(prefix + ".bin") == bin && read_file(prefix + ".mask") == mask);
  }
}

TEST_F(TokenizeCorpus, a_faulty_conversation_is_named_by_line_and_message) {
  const auto with = [&](const std::string& last) {
    TokenizeOptions work =
        options({folder_
                     .write("x.jsonl", R"({"m": [{"role": "user", "content": "a"}]})"
                                       "\n\n" +
                                           last)
                     .string()});
    work.json_key = "m";
    work.chat.emplace("chatml", "", "");
    return fault(work);
  };
  const std::string place = (folder_ / "x.jsonl").string() + ": line 3: ";
  EXPECT_TRUE(with(R"({"m": [{"role": "user"}]})").starts_with(place + "m[0]: has no \"content\""))
      << with(R"({"m": [{"role": "user"}]})");
  EXPECT_TRUE(with(R"({"messages": []})").starts_with(place + "has no member \"m\""));
  EXPECT_NE(with(R"({"messages": []})").find("--messages names"), std::string::npos);
  EXPECT_TRUE(with(R"({"m": [], "tools": [{"name": "f"}]})").starts_with(place + "tools: "));
  EXPECT_TRUE(with("[1]").starts_with(place + "an array stands"));
}

TEST_F(TokenizeCorpus, lines_are_counted_over_blocks) {
  std::string lines;
  for (int i = 0; i < 40000; ++i)
    lines +=
        "{\"t\": \"0123456789012345678901234567890123456789012345678901234567890123456789\"}\n";
  TokenizeOptions work = options({folder_.write("x.jsonl", lines + "oops\n").string()});
  work.json_key = "t";
  work.workers = 3;
  EXPECT_NE(fault(work).find(": line 40001: "), std::string::npos) << fault(work);
}

TEST_F(TokenizeCorpus, a_line_longer_than_a_block_is_one_document) {
  TokenizeOptions work = options(
      {folder_.write("x.jsonl", "{\"t\": \"" + std::string(3 << 20, 'x') + "\"}\n{\"t\": \"y\"}")
           .string()});
  work.json_key = "t";
  const Files files = run(ByteTokenizer(), work);
  EXPECT_EQ(files.totals.documents, 2);
  EXPECT_EQ(files.totals.tokens, (3 << 20) + 1);
}

TEST_F(TokenizeCorpus, nothing_to_read_is_a_data_error) {
  EXPECT_NE(fault(options({folder_.write("empty", "").string()})).find("no text"),
            std::string::npos);
  EXPECT_NE(fault(options({(folder_ / "absent").string()})).find("absent: there is no such file"),
            std::string::npos);
  EXPECT_NE(fault(options({folder_.path().string()})).find("is a folder"), std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1)
      << "only the empty input";
}

}  // namespace
}  // namespace trireme
