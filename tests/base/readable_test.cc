#include "base/readable.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

std::string line(std::string_view text) { return readable(text, LineFeeds::kEscaped, 100); }

TEST(Readable, text_passes_and_what_a_terminal_obeys_does_not) {
  EXPECT_EQ(line("Gänge, 漢字 \"x\""), "Gänge, 漢字 \"x\"");
  EXPECT_EQ(line("a\x1b[2Jb\x7f"), "a\\x1b[2Jb\\x7f");
  EXPECT_EQ(line("a\nb\tc"), "a\\x0ab\\x09c");
  EXPECT_EQ(line("\u009b"), "\\xc2\\x9b");
  EXPECT_EQ(readable("a\nb\tc", LineFeeds::kKept, 100), "a\nb\\x09c");
}

TEST(Readable, bytes_that_are_no_text_are_named) {
  EXPECT_EQ(line("a\xff\xc3"), "a\\xff\\xc3");
  EXPECT_EQ(line(std::string_view("\0", 1)), "\\x00");
}

TEST(Readable, a_long_text_keeps_begin_and_end_in_whole_characters) {
  EXPECT_EQ(readable("file: " + std::string(1000, 'x') + " is wrong", LineFeeds::kEscaped, 30),
            "file: xxxxxxxxxxxxxx [of 1015 bytes] x is wrong");
  std::string characters;
  for (int i = 0; i < 1000; ++i) characters += "漢";
  for (std::size_t bytes_max = 30; bytes_max < 40; ++bytes_max) {
    const std::string cut = readable(characters, LineFeeds::kEscaped, bytes_max);
    EXPECT_EQ(cut.find('\\'), std::string::npos) << cut;
    EXPECT_LT(cut.size(), bytes_max + 30);
  }
}

TEST(Readable, the_bound_holds_for_what_is_shown) {
  for (const std::size_t count : {10, 100, 1000}) {
    const std::string shown = line("file: " + std::string(count, '\x7f') + " end");
    EXPECT_LE(shown.size(), 100U + 30);
    EXPECT_TRUE(shown.starts_with("file: \\x7f"));
    EXPECT_TRUE(shown.ends_with("\\x7f end"));
  }
  EXPECT_EQ(line(std::string(25, '\x7f')).find("of"), std::string::npos);
}

TEST(Readable, an_error_quotes_a_hostile_name_on_one_line) {
  const std::string name = "w\n\x1b[31m\xff" + std::string(100'000, 'x');
  const DataError fault("a.bin: {}: is missing", name);
  const std::string_view text = fault.what();
  EXPECT_EQ(text.substr(0, 24), "a.bin: w\\x0a\\x1b[31m\\xff");
  EXPECT_TRUE(text.ends_with("x: is missing"));
  EXPECT_LT(text.size(), 4096u);
  EXPECT_STREQ(ConfigError("a list:\n  one").what(), "a list:\n  one");
}

}  // namespace
}  // namespace trireme
