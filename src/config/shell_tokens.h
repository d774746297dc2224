#pragma once
// Words and operators of a shell script, quotes and expansions still in them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct ShellToken {
  enum class Kind : std::uint8_t { kEnd, kOperator, kWord, kArray };
  Kind kind = Kind::kEnd;
  std::string text;  ///< raw; of an array `NAME=` or `NAME+=`; a line's end is the operator "\n"
  std::vector<std::string> elements = {};  ///< of an array, raw
  int line = 1;
  bool glued = false;  ///< nothing stands between it and the token before
};

/// Comments, continued lines and here-documents are gone. Throws ConfigError where a quote or a
/// bracket is not closed, or too many stand in each other.
class ShellLexer {
 public:
  /// `text` and `source` must outlive this; `line` is that of the first character.
  ShellLexer(std::string_view text, std::string_view source, int line)
      : text_(text), source_(source), line_(line) {}

  ShellToken next();

 private:
  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  void step(std::size_t count = 1);
  bool skip_blanks(bool lines);
  ShellToken scan_operator();
  ShellToken scan_word();
  ShellToken scan_array(std::string name);
  void skip_quoted(char quote);
  void skip_bracketed(char open, char close);
  void skip_piece();
  void take_delimiter();
  void skip_documents();
  [[noreturn]] void fault(int line, std::string_view what) const;

  std::string_view text_, source_;
  std::size_t at_ = 0;
  int line_;
  int depth_ = 0;                       ///< of quotes and brackets in each other
  std::vector<std::string> documents_;  ///< delimiters of here-documents behind this line
};

/// The length of the `NAME=` or `NAME+=` that a raw word begins with; 0 where it is no assignment.
std::size_t assignment_length(std::string_view word);

/// The length of the name that a text begins with: letters, digits, '_', no digit first.
std::size_t shell_name_length(std::string_view text);

}  // namespace trireme
