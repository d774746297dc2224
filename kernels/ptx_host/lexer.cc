#include "kernels/ptx_host/lexer.h"

#include <charconv>

namespace trireme::ptx {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%' || c == '.';
}

}  // namespace

void Lexer::skip_space() {
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (c == '\n') {
      ++line_;
    } else if (c == '/' && text_.substr(at_, 2) == "//") {
      at_ = text_.find('\n', at_);
      if (at_ == std::string_view::npos) at_ = text_.size();
      --at_;
    } else if (c == '/' && text_.substr(at_, 2) == "/*") {
      const std::size_t close = text_.find("*/", at_ + 2);
      if (close == std::string_view::npos) fail("a comment without an end");
      for (; at_ < close; ++at_) line_ += text_[at_] == '\n';
      ++at_;
    } else if (c != ' ' && c != '\t' && c != '\r' && c != '\0') {
      return;
    }
  }
}

void Lexer::next() {
  skip_space();
  start_ = at_;
  token_line_ = line_;
  if (at_ >= text_.size()) {
    token_ = {};
    return;
  }
  if (text_[at_] == '"') {
    const std::size_t close = text_.find('"', at_ + 1);
    at_ = close == std::string_view::npos ? text_.size() : close + 1;
  } else if (text_[at_] == ':' && text_.substr(at_, 2) == "::") {
    at_ += 2;
  } else if (is_word(text_[at_])) {
    // `shared::cta` is part of an opcode; a label ends with one colon.
    while (at_ < text_.size() && (is_word(text_[at_]) || text_.substr(at_, 2) == "::"))
      at_ += text_[at_] == ':' ? 2 : 1;
  } else {
    ++at_;
  }
  token_ = text_.substr(start_, at_ - start_);
}

std::string_view Lexer::take() {
  if (end()) fail("the text ends too early");
  const std::string_view word = token_;
  next();
  return word;
}

bool Lexer::skip(std::string_view word) {
  if (!is(word)) return false;
  next();
  return true;
}

void Lexer::expect(std::string_view word) {
  if (!skip(word))
    fail("expected \"" + std::string(word) + "\", found \"" + std::string(token_) + "\"");
}

std::uint64_t Lexer::take_integer() {
  const bool negative = skip("-");
  const std::uint64_t value = integer_of(take());
  return negative ? 0 - value : value;
}

void Lexer::skip_braces() {
  int depth = 0;
  do {
    if (is("{") || is("(")) ++depth;
    if (is("}") || is(")")) --depth;
    take();
  } while (depth > 0);
}

void Lexer::fail(const std::string& why) const {
  throw PtxError("PTX, line " + std::to_string(token_line_) + ": " + why);
}

std::uint64_t integer_of(std::string_view word) {
  const std::string_view whole = word;
  if (!word.empty() && (word.back() == 'U' || word.back() == 'u')) word.remove_suffix(1);
  int base = 10;
  if (word.starts_with("0x") || word.starts_with("0X")) base = 16;
  if (word.starts_with("0b") || word.starts_with("0B")) base = 2;
  if (base != 10) word.remove_prefix(2);
  if (base == 10 && word.size() > 1 && word[0] == '0') base = 8;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
  if (error != std::errc() || end != word.data() + word.size())
    throw PtxError("\"" + std::string(whole) + "\" is no number");
  return value;
}

}  // namespace trireme::ptx
