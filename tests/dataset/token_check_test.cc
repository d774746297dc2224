#include "dataset/token_check.h"

#include <gtest/gtest.h>

#include "token_fixture.h"

namespace trireme {
namespace {

// Earlier versions noted the hash of the tokenizer's file, later ones that of what it does.
TEST(TokenCheck, data_that_name_any_hash_of_the_runs_tokenizer_are_not_warned_of) {
  const TemporaryDirectory folder;
  const std::string prefix = token_file({{1, 2, 3}}).write(folder, "data");
  folder.write("data.json",
               R"({"documents": 1, "tokens": 3, "largest_id": 3, "tokenizer_hash": "old"})");
  const Corpus corpus(std::make_shared<const IndexedFile>(prefix));
  const auto told = [&](std::vector<std::string> hashes) {
    testing::internal::CaptureStderr();
    check_tokens(corpus, {.vocab_size = 10, .scan_bytes = 0, .tokenizer_hashes = hashes});
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(told({"new", "old"}), "");
  EXPECT_EQ(told({"old", "file"}), "");
  EXPECT_EQ(told({}), "");
  const std::string warning = told({"new", "file"});
  EXPECT_NE(warning.find("data.bin: made with another tokenizer (old) than the run's (new)"),
            std::string::npos)
      << warning;
}

}  // namespace
}  // namespace trireme
