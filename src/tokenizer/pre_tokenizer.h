#pragma once
// Cuts text into the pieces that merges never cross, as a `tokenizer.json`'s `pre_tokenizer` says.

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/regex.h"

namespace trireme {

/// Splits at each letter run, digit run, contraction and so on: the expression of GPT-2.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// A numeric character as Hugging Face's Digits: of its regular expressions, and Unicode 17's.
inline constexpr std::string_view kDigitPattern =
    R"([\p{N}\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6}])";

/// What becomes of the matches (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class SplitMatches { kAreDelimiters, kArePieces };  ///< "invert": false, true

/// SentencePiece's blanks: each and a piece's start becomes `mark`; pieces begin there if `splits`.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string mark;
  Prepend prepend = Prepend::kAlways;  ///< kFirst: only where the piece begins the text
  bool splits = true;
};

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
  void add_metaspace(Metaspace metaspace);
  /// True where a step writes text: what a later step takes for the begin is then not the text's.
  [[nodiscard]] bool rewrites() const;
  /// True where a text that does not hold `without` is one piece.
  [[nodiscard]] bool never_divides(std::string_view without) const;

  /// The pieces of `text` (UTF-8) as ranges of the result, which is `text` or lives in `scratch`.
  std::string_view split(std::string_view text, Before before, Scratch& scratch) const;

  /// The steps in order: equal where the effects are.
  [[nodiscard]] Json describe() const;

  /// See Tokenizer::split_position.
  [[nodiscard]] std::size_t split_position(std::string_view text, std::size_t from) const;

 private:
  struct PrefixSpace {};
  struct Split {
    Regex regex;
    SplitBehavior behavior;
    SplitMatches matches;
  };
  static void split_range(const Split& step, std::string_view classed, Range range,
                          Scratch& scratch);
  static void prefix_spaces(std::string_view text, std::string_view classed, Scratch& scratch);

  static void write_marks(const Metaspace& step, std::string_view text, std::string_view classed,
                          Before before, Scratch& scratch);

  std::vector<std::variant<Split, PrefixSpace, Metaspace>> steps_;
  // Of "x\na": a step divides it before the a, and in no step do pieces depend on the other side.
  bool divides_lines_ = false, keeps_lines_apart_ = true;
};

}  // namespace trireme
