#include "tokenizer/byte_tokenizer.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(ByteTokenizer, ids_are_the_bytes) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.encode(std::string_view("a\0\xff<|endoftext|>", 3)),
            (std::vector<std::int32_t>{97, 0, 255}));
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.end_token(), 256);
  EXPECT_EQ(tokenizer.hash(), "byte");
}

TEST(ByteTokenizer, decode_gives_every_byte_back) {
  const ByteTokenizer tokenizer;
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(all)), all);
}

TEST(ByteTokenizer, the_end_token_is_shown_or_skipped_and_foreign_ids_are_empty) {
  const ByteTokenizer tokenizer;
  const std::vector<std::int32_t> ids = {104, 256, 105, 257, -1, 2000000000};
  EXPECT_EQ(tokenizer.decode(ids), "h<|endoftext|>i");
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokens::kSkip), "hi");
}

TEST(ByteTokenizer, encode_appends) {
  const ByteTokenizer tokenizer;
  std::vector<std::int32_t> ids = {7};
  tokenizer.encode("ab", ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{7, 97, 98}));
}

TEST(LoadTokenizer, knows_byte_by_name) { EXPECT_EQ(load_tokenizer("byte")->vocab_size(), 257); }

}  // namespace
}  // namespace trireme
