#include "tokenizer/byte_level.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(ByteLevel, the_alphabet_is_one_to_one_and_gpt2s) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(from_byte_level(to_byte_level(all)), all);
  EXPECT_EQ(to_byte_level(" \n~\x7f\xad\xff"), "\u0120\u010a~\u0121\u0143\u00ff");
}

TEST(ByteLevel, other_characters_are_none_of_it) {
  EXPECT_EQ(from_byte_level("a b"), std::nullopt);
  EXPECT_EQ(from_byte_level("\u0144"), std::nullopt);
  EXPECT_EQ(from_byte_level("\xff"), std::nullopt);
}

}  // namespace
}  // namespace trireme
