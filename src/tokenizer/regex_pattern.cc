// Oniguruma's syntax to PCRE2's, by a list of what is allowed: else refused with its position.
#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/regex.h"

namespace trireme {

namespace {

constexpr std::string_view kSpaces =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr std::array<std::string_view, 34> kProperties = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view place) : pattern_(pattern), place_(place) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      switch (pattern_[at_]) {
        case '\\':
          escape(Where::kOutside);
          break;
        case '[':
          character_class();
          break;
        case '(':
          group();
          break;
        case '{':
          counted_repeat();
          break;
        case '^':
        case '$':
          refuse(pattern_.substr(at_, 1));
        default:
          out_ += pattern_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  enum class Where { kOutside, kInClass };

  [[noreturn]] void refuse(std::string_view construct) const {
    throw DataError(
        "{}: the regular expression \"{}\" uses \"{}\" at byte {}, which this program does not "
        "understand (it would split text in other places than Hugging Face tokenizers)",
        place_, pattern_, construct, at_);
  }
  [[nodiscard]] char peek(std::size_t ahead) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void copy(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void escape(Where where) {
    const char kind = peek(1);
    const bool in_class = where == Where::kInClass;
    switch (kind) {
      case 'p':
      case 'P':
        property();
        return;
      case 's':
        add(in_class ? std::string(kSpaces) : fmt::format("[{}]", kSpaces));
        return;
      case 'S':
        if (in_class) refuse(R"(\S in a class)");
        add(fmt::format("[^{}]", kSpaces));
        return;
      case 'd':
        add(R"(\p{Nd})");
        return;
      case 'D':
        add(R"(\P{Nd})");
        return;
      case 'v':
        add(R"(\x{b})");
        return;
      case 'n':
      case 'r':
      case 't':
      case 'f':
        copy(2);
        return;
      case 'x':
      case 'u':
        code_point(kind);
        return;
      default:
        break;
    }
    if (kind == '\0' || is_letter(kind) || is_digit(kind) ||
        static_cast<unsigned char>(kind) >= 0x80) {
      refuse(pattern_.substr(at_, 2));
    }
    copy(2);
  }
  void add(std::string_view translated) {
    out_ += translated;
    at_ += 2;
  }

  void property() {
    const std::size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse(pattern_.substr(at_, 2));
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    if (name.starts_with('^')) name.remove_prefix(1);
    if (std::find(kProperties.begin(), kProperties.end(), name) == kProperties.end()) {
      refuse(pattern_.substr(at_, end + 1 - at_));
    }
    copy(end + 1 - at_);
  }

  /// \x{H...} or \uHHHH; \xHH is one byte to Oniguruma and is taken below 80 only.
  void code_point(char kind) {
    std::size_t begin = at_ + 2, length = 0;
    const bool braced = kind == 'x' && peek(2) == '{';
    if (braced) ++begin;
    while (begin + length < pattern_.size() && length < 8 && is_hex(pattern_[begin + length])) {
      ++length;
      if (!braced && length == (kind == 'u' ? 4U : 2U)) break;
    }
    const std::string_view digits = pattern_.substr(begin, length);
    const bool closed =
        !braced || (begin + length < pattern_.size() && pattern_[begin + length] == '}');
    const bool complete = braced ? length > 0 : length == (kind == 'u' ? 4U : 2U);
    if (!closed || !complete || (kind == 'x' && !braced && digits[0] >= '8'))
      refuse(pattern_.substr(at_, 2));
    out_ += fmt::format(R"(\x{{{}}})", digits);
    at_ = begin + length + (braced ? 1 : 0);
  }

  void group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) == '?') {
      constexpr std::array<std::string_view, 7> kKinds = {
          "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?>"};
      for (const std::string_view kind : kKinds) {
        if (pattern_.substr(at_).starts_with(kind)) return copy(kind.size());
      }
      refuse(pattern_.substr(at_, 4));
    }
    copy(1);
  }

  /// {n}, {n,} or {n,m}, not followed by ? or +, which the two read differently.
  void counted_repeat() {
    std::size_t length = 1;
    while (is_digit(peek(length))) ++length;
    const bool starts_with_digit = length > 1;
    if (peek(length) == ',') ++length;
    while (is_digit(peek(length))) ++length;
    const char after = peek(length + 1);
    if (!starts_with_digit || peek(length) != '}' || after == '?' || after == '+') {
      refuse(pattern_.substr(at_, length + 2));
    }
    copy(length + 1);
  }

  void character_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') refuse("[]");
    while (peek(0) != ']') {
      if (at_ >= pattern_.size()) refuse("[ without ]");
      if (peek(0) == '[') refuse("[ in a class");
      if (peek(0) == '&' && peek(1) == '&') refuse("&&");
      if (peek(0) == '\\') {
        escape(Where::kInClass);
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  std::string_view pattern_, place_;
  std::string out_;
  std::size_t at_ = 0;
};

}  // namespace

std::string translate_pattern(std::string_view pattern, std::string_view place) {
  if (utf8_valid_prefix(pattern) != pattern.size() ||
      pattern.find('\0') != std::string_view::npos) {
    throw DataError("{}: the regular expression is no text", place);
  }
  return Translator(pattern, place).run();
}

}  // namespace trireme
