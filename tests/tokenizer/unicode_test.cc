#include "tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "tokenizer/unicode_tables.h"

namespace trireme {
namespace {

std::string nfc(std::string_view text) {
  std::string out;
  return normalize_nfc(text, out) ? out : std::string(text);
}

TEST(Nfc, composes_orders_and_keeps) {
  EXPECT_EQ(nfc("cafe\u0301"), "caf\u00e9");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(nfc("\u212b\u2126"), "\u00c5\u03a9");
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(nfc(std::string("a\0b\u0301", 5)), std::string("a\0b\u0301", 5));
  EXPECT_EQ(nfc("plain \xE4\xB8\xAD"), "plain \xE4\xB8\xAD");
}

TEST(Nfc, characters_that_the_peer_does_not_know_stay_where_they_are) {
  EXPECT_EQ(nfc("a\u0898\u0323"), "a\u0898\u0323");
  EXPECT_EQ(nfc("e\u0301\U00011935\U00011930x\u0301"), "\u00e9\U00011935\U00011930x\u0301");
}

TEST(Nfc, the_short_cut_skips_only_text_that_is_normal) {
  // Every character alone and beside each neighbour of a few scripts: the short cut must not change
  // the answer.
  const std::string marker = "\u0301";  // not on the short cut
  for (std::uint32_t c = 0x80; c < 0xD800; ++c) {
    std::string text;
    utf8_append(text, c);
    std::string out;
    if (normalize_nfc(text, out)) continue;
    ASSERT_EQ(nfc(marker + "\n" + text), marker + "\n" + text) << std::hex << c;
  }
}

TEST(YoungCharacters, are_replaced_at_equal_length) {
  std::string out;
  EXPECT_FALSE(replace_young_characters("ascii \u00e9 \u4e2d \U0001F600", out));
  const std::string text = "a\u0ece\u061db\U00031350";
  ASSERT_TRUE(replace_young_characters(text, out));
  EXPECT_EQ(out.size(), text.size());
  EXPECT_EQ(out, "a\u0816\u00a1b\U00010000");
}

TEST(YoungCharacters, tables_ascend_and_stand_ins_are_as_long) {
  std::uint32_t last = 0;
  for (const StandInRange& range : stand_in_ranges()) {
    EXPECT_GT(range.first, last);
    EXPECT_GE(range.last, range.first);
    last = range.last;
    for (const std::uint32_t c : {range.first, range.last}) {
      std::string young, old;
      utf8_append(young, c);
      utf8_append(old, range.stand_in);
      EXPECT_EQ(young.size(), old.size()) << std::hex << c;
    }
  }
  last = 0;
  for (const CodePointRange& range : nfc_inert_ranges()) {
    EXPECT_GT(range.first, last);
    EXPECT_GE(range.last, range.first);
    last = range.last;
  }
}

}  // namespace
}  // namespace trireme
