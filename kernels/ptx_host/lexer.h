#pragma once
#include <string_view>

#include "kernels/ptx_host/text.h"

namespace trireme::ptx {

/// Words, numbers and signs of PTX, one at a time. A word is an identifier, an opcode or directive
/// with its dots, or a number.
class Lexer {
 public:
  Lexer(std::string_view text, std::size_t at, int line) : text_(text), at_(at), line_(line) {
    next();
  }
  std::string_view token() const { return token_; }
  bool is(std::string_view word) const { return token_ == word; }
  bool end() const { return token_.empty(); }
  int line() const { return token_line_; }
  std::size_t position() const { return start_; }
  void next();
  std::string_view take();
  bool skip(std::string_view word);
  void expect(std::string_view word);
  std::uint64_t take_integer();
  /// Goes past the bracket that closes the one under the cursor.
  void skip_braces();
  [[noreturn]] void fail(const std::string& why) const;

 private:
  void skip_space();
  std::string_view text_, token_;
  std::size_t at_, start_ = 0;
  int line_, token_line_ = 0;
};

/// -?(0x..|0b..|decimal)U?
std::uint64_t integer_of(std::string_view word);

}  // namespace trireme::ptx
