#pragma once
// A source of C++ or CUDA as tokens and comments, for rules that must not mistake one for the
// other.

#include <string_view>
#include <vector>

namespace trireme::house {

struct Token {
  /// A name, a number, "::", "->", or one character; of a literal only its first quotation mark.
  std::string_view text;
  int line;  ///< from 1
};

struct Comment {
  std::string_view text;  ///< with its // or /* */
  int line;
};

struct LineRange {
  int first, last;
};

struct CppText {
  std::vector<Token> tokens;
  std::vector<Comment> comments;
  std::vector<LineRange> raw_strings;
};

/// Directives give no tokens, so macros are not seen from inside; of #if, #elif, #else only the
/// first branch gives any (of `#if 0` the second), so that braces balance. All views are of `text`.
CppText scan_cpp(std::string_view text);

bool is_name(const Token& token);  ///< an identifier or a keyword

}  // namespace trireme::house
