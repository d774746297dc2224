#include "tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using Strings = std::vector<std::string>;

PreTokenizer one_step(std::string_view pattern, SplitBehavior behavior,
                      SplitMatches matches = SplitMatches::kAreDelimiters) {
  PreTokenizer made;
  made.add_split(Regex(pattern, Regex::Kind::kPattern, "here"), behavior, matches);
  return made;
}

Strings pieces(const PreTokenizer& pre_tokenizer, std::string_view text) {
  PreTokenizer::Scratch scratch;
  const std::string_view cut = pre_tokenizer.split(text, Before::kNothing, scratch);
  Strings found;
  for (const auto& range : scratch.ranges)
    found.emplace_back(cut.substr(range.begin, range.end - range.begin));
  return found;
}

TEST(PreTokenizer, splits_as_gpt2_does) {
  EXPECT_EQ(pieces(one_step(kGpt2Pattern, SplitBehavior::kIsolated), "Don't  stop 42\n\n now!?"),
            (Strings{"Don", "'t", " ", " stop", " 42", "\n\n", " now", "!?"}));
}

// Found by comparing every character with Hugging Face tokenizers 0.23.
TEST(PreTokenizer, numeric_characters_are_those_of_the_peers_digits_step) {
  const PreTokenizer digits = one_step(kDigitPattern, SplitBehavior::kIsolated);
  EXPECT_EQ(pieces(digits, "a12\u00bdb"), (Strings{"a", "1", "2", "\u00bd", "b"}));
  for (const char* digit : {"\U00016A69", "\U00011DE0", "\U00011DE9", "\U00016FF4", "\U00016FF6"})
    EXPECT_EQ(pieces(digits, std::string("a") + digit + "b"), (Strings{"a", digit, "b"}));
  for (const char* other : {"\U00011DDF", "\U00011DEA", "\U00016FF3", "\U00016FF7"})
    EXPECT_EQ(pieces(digits, std::string("a") + other + "b").size(), 1u);
}

TEST(PreTokenizer, has_every_behavior) {
  // The examples of Hugging Face's documentation of SplitDelimiterBehavior.
  const std::string_view text = "the-final--countdown";
  EXPECT_EQ(pieces(one_step("-", SplitBehavior::kRemoved), text),
            (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(pieces(one_step("-", SplitBehavior::kIsolated), text),
            (Strings{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(pieces(one_step("-", SplitBehavior::kMergedWithPrevious), text),
            (Strings{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(pieces(one_step("-", SplitBehavior::kMergedWithNext), text),
            (Strings{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(pieces(one_step("-", SplitBehavior::kContiguous), text),
            (Strings{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(pieces(one_step("-", SplitBehavior::kRemoved, SplitMatches::kArePieces), text),
            (Strings{"-", "-", "-"}));
}

TEST(PreTokenizer, empty_matches_do_not_loop) {
  EXPECT_EQ(pieces(one_step("x?", SplitBehavior::kIsolated), "\u00e9xa"),
            (Strings{"\u00e9", "x", "a"}));
}

TEST(PreTokenizer, prefix_space_is_added_once) {
  PreTokenizer made;
  made.add_prefix_space();
  EXPECT_EQ(pieces(made, "ab"), (Strings{" ab"}));
  EXPECT_EQ(pieces(made, " ab"), (Strings{" ab"}));
  EXPECT_EQ(pieces(made, ""), Strings{});
}

TEST(PreTokenizer, a_cut_changes_no_piece) {
  const std::vector<std::string> patterns = {
      std::string(kGpt2Pattern),
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
      R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
      R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  const std::string text = "It's\nso'\nre !!\nab\n\ncd \nef\r\ngh1\nij'\ns.\nAB\n  kl\nz\n";
  for (const std::string& pattern : patterns) {
    const PreTokenizer made = one_step(pattern, SplitBehavior::kIsolated);
    const Strings whole = pieces(made, text);
    int cuts = 0;
    for (std::size_t at = made.split_position(text, 0); at != std::string::npos;
         at = made.split_position(text, at)) {
      ++cuts;
      Strings parts = pieces(made, text.substr(0, at));
      for (const std::string& piece : pieces(made, text.substr(at))) parts.push_back(piece);
      EXPECT_EQ(parts, whole) << at;
    }
    EXPECT_EQ(cuts, 7);
  }
}

TEST(PreTokenizer, unknown_patterns_are_never_cut) {
  EXPECT_EQ(one_step("[^x]+", SplitBehavior::kIsolated).split_position("a\nb\nc", 0),
            std::string::npos);
  EXPECT_EQ(one_step(R"(\p{N})", SplitBehavior::kIsolated).split_position("a\nb\nc", 0),
            std::string::npos);
  EXPECT_EQ(one_step(kGpt2Pattern, SplitBehavior::kContiguous).split_position("a\nb\nc", 0),
            std::string::npos);
}

}  // namespace
}  // namespace trireme
