#include "config/shell_tokens.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace trireme {

namespace {

constexpr int kDepthMax = 64;
constexpr std::string_view kOperatorCharacters = ";|&()<>";
constexpr std::string_view kOperators[] = {"<<<", ";;", "&&", "||", "<<", ">>",
                                           ">&",  "<&", "&>", ">|", "|&"};

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

}  // namespace

std::size_t shell_name_length(std::string_view text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) != 0) return 0;
  std::size_t length = 0;
  while (length < text.size() && is_name_character(text[length])) ++length;
  return length;
}

std::size_t assignment_length(std::string_view word) {
  const std::size_t name = shell_name_length(word);
  if (name == 0) return 0;
  const std::string_view rest = word.substr(name);
  return rest.starts_with("=") ? name + 1 : rest.starts_with("+=") ? name + 2 : 0;
}

void ShellLexer::fault(int line, std::string_view what) const {
  throw ConfigError("{}: line {}: {}", source_, line, what);
}

void ShellLexer::step(std::size_t count) {
  for (; count > 0 && !at_end(); --count, ++at_) line_ += text_[at_] == '\n' ? 1 : 0;
}

/// Blanks, continued lines, comments; line ends too where they mean nothing. Whether there was one.
bool ShellLexer::skip_blanks(bool lines) {
  const std::size_t from = at_;
  while (!at_end()) {
    const char c = peek();
    if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
      step();
    } else if (c == '\\' && peek(1) == '\n') {
      step(2);
    } else if (c == '#') {
      while (!at_end() && peek() != '\n') step();
    } else {
      break;
    }
  }
  return at_ > from;
}

ShellToken ShellLexer::next() {
  ShellToken token;
  do {
    const bool glued = !skip_blanks(false) && at_ > 0;
    token = ShellToken{};
    token.line = line_;
    if (at_end()) return token;
    const char c = peek();
    token = c == '\n' || kOperatorCharacters.find(c) != std::string_view::npos ? scan_operator()
                                                                               : scan_word();
    token.glued = glued;
    if (token.kind == ShellToken::Kind::kOperator && token.text == "<<") take_delimiter();
  } while (token.kind == ShellToken::Kind::kOperator && token.text == "<<");
  return token;
}

ShellToken ShellLexer::scan_operator() {
  ShellToken token{ShellToken::Kind::kOperator, std::string(1, peek()), {}, line_};
  for (const std::string_view wide : kOperators) {
    if (text_.substr(at_).starts_with(wide)) {
      token.text = wide;
      break;
    }
  }
  step(token.text.size());
  if (token.text == "\n") skip_documents();
  return token;
}

/// A here-document is nobody's argument: its delimiter is kept, its lines are skipped.
void ShellLexer::take_delimiter() {
  if (peek() == '-') step();
  skip_blanks(false);
  std::string delimiter;
  for (const char c : scan_word().text) {
    if (c != '"' && c != '\'' && c != '\\') delimiter += c;
  }
  documents_.push_back(std::move(delimiter));
}

void ShellLexer::skip_documents() {
  for (const std::string& delimiter : documents_) {
    const int from = line_;
    for (bool found = delimiter.empty(); !found;) {
      if (at_end()) fault(from, "the here-document that ends with " + delimiter + " is not closed");
      const std::size_t end = std::min(text_.find('\n', at_), text_.size());
      std::string_view line = text_.substr(at_, end - at_);
      while (line.starts_with('\t')) line.remove_prefix(1);
      while (line.ends_with('\r')) line.remove_suffix(1);
      found = line == delimiter;
      step(end - at_ + 1);
    }
  }
  documents_.clear();
}

/// Behind the closing quote. Between double quotes `\` protects, and expansions have own quotes.
void ShellLexer::skip_quoted(char quote) {
  const int from = line_;
  if (++depth_ > kDepthMax) fault(from, "quotes and brackets stand in each other too deep");
  step();
  while (!at_end() && peek() != quote) {
    if (quote != '\'' && peek() == '\\') {
      step(2);
    } else if (quote == '"' && (peek() == '$' || peek() == '`')) {
      skip_piece();
    } else {
      step();
    }
  }
  if (at_end()) fault(from, std::string("the quote ") + quote + " is not closed");
  step();
  --depth_;
}

/// From an opening bracket to behind the closing one.
void ShellLexer::skip_bracketed(char open, char close) {
  const int from = line_;
  int depth = 0;
  do {
    if (at_end()) fault(from, std::string("the bracket ") + open + " is not closed");
    const char c = peek();
    if (c == open) ++depth;
    if (c == close) --depth;
    if (depth > kDepthMax) fault(from, "brackets stand in each other too deep");
    if (c == '\'' || c == '"' || c == '`') {
      skip_quoted(c);
    } else {
      step(c == '\\' ? 2 : 1);
    }
  } while (depth > 0);
}

/// One character of a word, or all that belongs to its quote or expansion.
void ShellLexer::skip_piece() {
  const char c = peek();
  if (c == '\'' || c == '"' || c == '`') return skip_quoted(c);
  if (c == '\\') return step(2);
  step();
  if (c != '$') return;
  if (peek() == '(') skip_bracketed('(', ')');
  if (peek() == '{') skip_bracketed('{', '}');
}

ShellToken ShellLexer::scan_word() {
  const std::size_t from = at_;
  const int line = line_;
  while (!at_end()) {
    const char c = peek();
    const std::string_view so_far = text_.substr(from, at_ - from);
    if (c == '(' && !so_far.empty() && assignment_length(so_far) == so_far.size()) {
      return scan_array(std::string(so_far));
    }
    if (std::isspace(static_cast<unsigned char>(c)) != 0 ||
        kOperatorCharacters.find(c) != std::string_view::npos)
      break;
    skip_piece();
  }
  return {ShellToken::Kind::kWord, std::string(text_.substr(from, at_ - from)), {}, line};
}

ShellToken ShellLexer::scan_array(std::string name) {
  ShellToken token{ShellToken::Kind::kArray, std::move(name), {}, line_};
  step();
  for (;;) {
    skip_blanks(true);
    if (at_end()) fault(token.line, "the array " + token.text + "( is not closed");
    if (peek() == ')') break;
    const std::size_t from = at_;
    std::string word = scan_word().text;
    if (at_ == from) {
      fault(line_, std::string("a ") + peek() + " has no meaning in the array " + token.text + "(");
    }
    token.elements.push_back(std::move(word));
  }
  step();
  return token;
}

}  // namespace trireme
