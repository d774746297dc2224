#include "house/cpp_text.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace trireme::house {

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  CppText run() {
    while (at_ < text_.size()) step();
    return std::move(found_);
  }

 private:
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void step() {
    const char c = peek();
    if (c == '\n') {
      ++line_, ++at_;
      line_begins_ = true;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++at_;
    } else if (c == '/' && (peek(1) == '/' || peek(1) == '*')) {
      take_comment();
    } else if (c == '#' && line_begins_) {
      take_directive();
    } else {
      line_begins_ = false;
      take_token(c);
    }
  }

  /// Everything up to `end`, lines counted.
  std::string_view take(std::size_t end) {
    end = std::min(end, text_.size());
    const std::string_view taken = text_.substr(at_, end - at_);
    line_ += static_cast<int>(std::count(taken.begin(), taken.end(), '\n'));
    at_ = end;
    return taken;
  }

  std::size_t behind(std::string_view mark, std::size_t from) const {
    const std::size_t found = text_.find(mark, from);
    return found == std::string_view::npos ? text_.size() : found + mark.size();
  }

  void take_comment() {
    const int line = line_;
    const std::size_t end = peek(1) == '/' ? text_.find('\n', at_) : behind("*/", at_ + 2);
    found_.comments.push_back({take(end), line});
  }

  void take_directive() {
    std::size_t end = at_;
    do {
      end = std::min(text_.find('\n', end + 1), text_.size());
    } while (end < text_.size() && text_[end - 1] == '\\');
    const std::string_view all = text_.substr(at_, end - at_);
    const std::size_t comment = all.find("//");
    std::string_view directive = take(at_ + std::min(comment, all.size()));
    directive.remove_prefix(std::min(directive.find_first_not_of("# \t"), directive.size()));
    if (directive.starts_with("if")) {
      branches_.push_back(directive.starts_with("if 0") ? Branch::kLater : Branch::kTaken);
    } else if (directive.starts_with("el") && !branches_.empty()) {
      Branch& branch = branches_.back();
      branch = branch == Branch::kLater ? Branch::kTaken : Branch::kOver;
    } else if (directive.starts_with("endif") && !branches_.empty()) {
      branches_.pop_back();
    }
  }

  void take_token(char c) {
    const int line = line_;
    std::string_view token;
    if (is_word(c)) {
      token = take_word();
      const bool raw = peek() == '"' && token.ends_with('R');
      if (raw) {
        take_raw_string();
        token = "\"";
      } else if (peek() == '"') {
        return;  // u8"...": the literal follows
      }
    } else if (c == '"' || c == '\'') {
      token = text_.substr(at_, 1);
      take_literal(c);
    } else {
      const bool pair = (c == ':' && peek(1) == ':') || (c == '-' && peek(1) == '>');
      token = take(at_ + (pair ? 2 : 1));
    }
    const bool hidden = std::any_of(branches_.begin(), branches_.end(),
                                    [](Branch branch) { return branch != Branch::kTaken; });
    if (!hidden) found_.tokens.push_back({token, line});
  }

  std::string_view take_word() {
    const bool number = std::isdigit(static_cast<unsigned char>(peek())) != 0;
    std::size_t end = at_;
    while (end < text_.size() &&
           (is_word(text_[end]) || (number && (text_[end] == '.' || text_[end] == '\'')))) {
      ++end;
    }
    return take(end);
  }

  void take_raw_string() {
    const std::size_t open = std::min(text_.find('(', at_), text_.size() - 1);
    std::string close = ")";
    close += text_.substr(at_ + 1, open - at_ - 1);
    close += '"';
    const int first = line_;
    take(behind(close, open));
    found_.raw_strings.push_back({first, line_});
  }

  void take_literal(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote && text_[end] != '\n') {
      end += text_[end] == '\\' ? 2 : 1;
    }
    take(end + 1);
  }

  enum class Branch { kTaken, kLater, kOver };

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;
  std::vector<Branch> branches_;  // of the #if around, the innermost last
  CppText found_;
};

}  // namespace

CppText scan_cpp(std::string_view text) { return Scanner(text).run(); }

bool is_name(const Token& token) {
  const char c = token.text.front();
  return is_word(c) && std::isdigit(static_cast<unsigned char>(c)) == 0;
}

}  // namespace trireme::house
