#include "base/utf8.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Utf8, every_character_is_read_back) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    utf8_append(text, c);
    ASSERT_EQ(utf8_length(text), static_cast<int>(text.size())) << c;
    ASSERT_EQ(utf8_decode(text), c);
  }
}

TEST(Utf8, what_the_standard_forbids_is_no_character) {
  for (const char* text :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3", "\xE2\x82",
        "\xF0\x9F\x98", "\xE2\x28\xA1"}) {
    EXPECT_EQ(utf8_length(text), 0) << text;
  }
}

TEST(Utf8, the_valid_prefix_ends_at_the_first_wrong_byte) {
  EXPECT_EQ(utf8_valid_prefix(""), 0u);
  EXPECT_EQ(utf8_valid_prefix("0123456789abcdef"), 16u);
  EXPECT_EQ(utf8_valid_prefix("0123456789\xC3\xA4\xE2\x82z"), 12u);
  EXPECT_EQ(utf8_valid_prefix("\xFFzz"), 0u);
}

}  // namespace
}  // namespace trireme
