#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern, Regex::Kind::kPattern, "here");
  RegexScratch scratch;
  std::vector<std::string> found;
  Regex::Match match{};
  for (std::size_t from = 0; regex.find(text, from, scratch, match) && match.end > from;
       from = match.end) {
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  return found;
}

using Strings = std::vector<std::string>;

TEST(Regex, white_space_is_onigurumas) {
  EXPECT_EQ(matches(R"(\s)", "\t\v \u0085\u00a0\u180e\u200b\u3000x"),
            (Strings{"\t", "\v", " ", "\u0085", "\u00a0", "\u3000"}));
  EXPECT_EQ(matches(R"(\S+)", "a\u180eb c"), (Strings{"a\u180eb", "c"}));
  EXPECT_EQ(matches(R"([^\sx]+)", "ab\u2028cxd"), (Strings{"ab", "c", "d"}));
}

TEST(Regex, case_is_folded_as_unicode_does) {
  EXPECT_EQ(matches(R"((?i:'s|'ll))", "'S 'LL '\u017f"), (Strings{"'S", "'LL", "'\u017f"}));
}

TEST(Regex, a_literal_is_no_pattern) {
  const Regex regex("a.(", Regex::Kind::kLiteral, "here");
  RegexScratch scratch;
  Regex::Match match{};
  ASSERT_TRUE(regex.find("aba.(", 0, scratch, match));
  EXPECT_EQ(match.begin, 2u);
}

TEST(Regex, escapes_of_both_kinds_are_read) {
  EXPECT_EQ(matches(R"(\u4e2d|\x{1F600}|\x41|[\u00e0-\u00ff\-])", "\u4e2d\U0001F600A\u00e9-"),
            (Strings{"\u4e2d", "\U0001F600", "A", "\u00e9", "-"}));
}

class Refused : public testing::TestWithParam<const char*> {};
TEST_P(Refused, by_name_and_place) {
  try {
    const Regex regex(GetParam(), Regex::Kind::kPattern, "file.json: pattern");
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_TRUE(
        std::string_view(error.what()).starts_with("file.json: pattern: the regular expression"))
        << error.what();
  }
}
INSTANTIATE_TEST_SUITE_P(Patterns, Refused,
                         testing::Values(R"(\w+)", R"(\bx)", R"(\p{Han})", R"(\p{Cn})", R"(\p{L)",
                                         R"(\p)", "^a", "a$", "[a[b]]", "[a&&b]", "[[:alpha:]]",
                                         "[]a]", "[abc", R"([\S])", "a{2}+", "a{2}?", "a{,3}", "a{",
                                         "{2}", "(?<n>a)", "(?i)a", "(?m:a)", "(*ACCEPT)", "(a",
                                         "a)", R"(\xff)", R"(\x{110000})", R"(\u12)", R"(\)",
                                         R"(\K)", R"(\1)", "(?", "*", "\xff", "[z-a]"));

TEST(Regex, exponential_search_ends_with_an_error) {
  const Regex regex("(?:a|a)*[bc]", Regex::Kind::kPattern, "here");
  RegexScratch scratch;
  Regex::Match match{};
  EXPECT_THROW((void)regex.find(std::string(200, 'a'), 0, scratch, match), DataError);
}

TEST(Regex, long_runs_need_no_stack) {
  const std::string text(std::size_t{24} << 20, ' ');
  EXPECT_EQ(matches(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", text), (Strings{text}));
}

}  // namespace
}  // namespace trireme
