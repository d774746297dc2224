#pragma once
// Cuts text into the pieces that byte-pair merges never cross, as the `pre_tokenizer` of a
// `tokenizer.json` says.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.h"

namespace trireme {

/// Splits at each letter run, digit run, contraction and so on: the expression of GPT-2.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// What becomes of the matches (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class SplitMatches { kAreDelimiters, kArePieces };  ///< "invert": false, true

class PreTokenizer {
 public:
  struct Range {
    std::size_t begin, end;
  };
  /// One thread's working space.
  struct Scratch {
    RegexScratch regex;
    std::string classed;  // the text as the expressions see it: young characters replaced
    std::string spaced, spaced_classed;
    std::vector<Range> ranges, next;
    struct Part {
      Range range;
      bool is_match;
    };
    std::vector<Part> parts;
  };

  void add_split(Regex regex, SplitBehavior behavior, SplitMatches matches);
  /// Every piece that does not begin with a space gets one.
  void add_prefix_space();

  /// The pieces of `text` (UTF-8), in order; ranges of the string that it returns, which is `text`
  /// or lives in `scratch`, as the ranges do.
  std::string_view split(std::string_view text, Scratch& scratch) const;

  /// See Tokenizer::split_position.
  [[nodiscard]] std::size_t split_position(std::string_view text, std::size_t from) const;

 private:
  struct Step {
    bool is_prefix_space;
    std::vector<Regex> regex;  // one for a split
    SplitBehavior behavior;
    SplitMatches matches;
  };
  static void split_range(const Step& step, std::string_view classed, Range range,
                          Scratch& scratch);
  static void prefix_spaces(std::string_view text, std::string_view classed, Scratch& scratch);

  std::vector<Step> steps_;
  // Of "x\na": some step divides it before the a, and no step makes the pieces depend on the other
  // side.
  bool divides_lines_ = false, keeps_lines_apart_ = true;
};

}  // namespace trireme
