#include "config/shell_expand.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/error.h"
#include "config/shell_commands.h"
#include "config/shell_tokens.h"

namespace trireme {

namespace {

constexpr std::size_t kProducedMax = std::size_t{16} << 20;
constexpr std::size_t kVariablesMax = 10000;
constexpr int kDepthMax = 32;
constexpr char kBlankMark = '\x02';  // a blank of unknown text, which does not end a word

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// + - * / % and brackets over whole numbers, as $((...)) has them.
class Arithmetic {
 public:
  explicit Arithmetic(std::string_view text) : text_(text) {}

  std::optional<std::int64_t> value() {
    const auto result = sum(0);
    return blank_end() ? result : std::nullopt;
  }

 private:
  using Number = std::optional<std::int64_t>;

  bool blank_end() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
    return at_ == text_.size();
  }
  char take(std::string_view operators) {
    if (blank_end() || operators.find(text_[at_]) == std::string_view::npos) return '\0';
    return text_[at_++];
  }
  static Number apply(Number a, char what, Number b) {
    std::int64_t result = 0;
    if (!a || !b) return std::nullopt;
    if (what == '+') return __builtin_add_overflow(*a, *b, &result) ? Number() : result;
    if (what == '-') return __builtin_sub_overflow(*a, *b, &result) ? Number() : result;
    if (what == '*') return __builtin_mul_overflow(*a, *b, &result) ? Number() : result;
    if (*b <= 0) return std::nullopt;
    return what == '/' ? *a / *b : *a % *b;
  }
  Number sum(int depth) {
    Number left = product(depth);
    while (const char what = take("+-")) left = apply(left, what, product(depth));
    return left;
  }
  Number product(int depth) {
    Number left = atom(depth);
    while (const char what = take("*/%")) left = apply(left, what, atom(depth));
    return left;
  }
  Number atom(int depth) {
    if (depth > kDepthMax) return std::nullopt;
    if (take("(") != '\0') {
      const Number inner = sum(depth + 1);
      return take(")") != '\0' ? inner : std::nullopt;
    }
    if (blank_end()) return std::nullopt;
    std::int64_t number = 0;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    if (error != std::errc()) return std::nullopt;
    at_ = static_cast<std::size_t>(end - text_.data());
    return number;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// Names in arithmetic need no $.
std::string with_dollars(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = shell_name_length(text.substr(at));
    if (length > 0 && (at == 0 || (text[at - 1] != '$' && text[at - 1] != '{'))) out += '$';
    out += text.substr(at, std::max<std::size_t>(length, 1));
    at += std::max<std::size_t>(length, 1);
  }
  return out;
}

}  // namespace

std::string without_marks(std::string_view word) {
  std::string out;
  for (const char c : word) {
    if (c != kUnknownMark) out += c == kBlankMark ? ' ' : c;
  }
  return out;
}

/// One word on its way through the shell.
class ShellExpansion {
 public:
  ShellExpansion(ShellVariables& variables, bool split) : variables_(variables), split_(split) {
    if (++variables_.depth_ > kDepthMax)
      throw ConfigError("{}: expansions stand in each other without end", variables_.source_);
  }
  ~ShellExpansion() { --variables_.depth_; }
  ShellExpansion(const ShellExpansion&) = delete;
  ShellExpansion& operator=(const ShellExpansion&) = delete;

  ShellWords run(std::string_view raw) {
    expand(raw, false);
    end_word();
    return std::move(words_);
  }

 private:
  void add(std::string_view text) {
    variables_.produced_ += text.size();
    if (variables_.produced_ > kProducedMax) {
      throw ConfigError("{}: its variables expand to more than {} MiB", variables_.source_,
                        kProducedMax >> 20);
    }
    word_ += text;
    open_ = true;
  }
  void end_word() {
    if (open_) words_.push_back(std::move(word_));
    word_.clear();
    open_ = false;
  }
  void add_split(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = at;
      while (end < text.size() && !is_blank(text[end])) ++end;
      if (end > at) add(text.substr(at, end - at));
      if (end < text.size()) end_word();
      at = end + 1;
    }
  }
  void add_unknown(std::string_view raw) {
    std::string text(1, kUnknownMark);
    for (const char c : raw) text += is_blank(c) ? kBlankMark : c;
    add(text);
  }

  void add_values(const ShellWords& values, bool quoted, bool apart) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0 && split_ && (apart || !quoted)) end_word();
      if (i > 0 && (!split_ || (quoted && !apart))) add(" ");
      if (quoted || !split_) {
        add(values[i]);
      } else {
        add_split(values[i]);
      }
    }
  }

  void expand(std::string_view raw, bool quoted) {
    for (std::size_t at = 0; at < raw.size();) {
      const char c = raw[at];
      if (c == '\\') {
        at = escape(raw, at, quoted);
      } else if (c == '$') {
        at = dollar(raw, at, quoted);
      } else if (c == '`') {
        const std::size_t end = std::min(raw.find('`', at + 1), raw.size() - 1);
        add_unknown(raw.substr(at, end - at + 1));
        at = end + 1;
      } else if (c == '\'' && !quoted) {
        const std::size_t end = std::min(raw.find('\'', at + 1), raw.size());
        add(raw.substr(at + 1, end - at - 1));
        at = end + 1;
      } else if (c == '"') {
        const std::size_t end = quote_end(raw, at);
        open_ = true;  // "" is a word
        expand(raw.substr(at + 1, end - at - 1), true);
        at = end + 1;
      } else {
        add(raw.substr(at++, 1));
      }
    }
  }

  std::size_t escape(std::string_view raw, std::size_t at, bool quoted) {
    if (at + 1 == raw.size()) {
      add("\\");
    } else if (raw[at + 1] != '\n') {
      const bool special =
          !quoted || std::string_view("$`\"\\").find(raw[at + 1]) != std::string_view::npos;
      add(raw.substr(special ? at + 1 : at, special ? 1 : 2));
    }
    return at + 2;
  }

  /// Of the bracket or quote that closes the one at `at`; the lexer has seen that there is one.
  static std::size_t bracket_end(std::string_view raw, std::size_t at, char open, char close) {
    int depth = 0;
    for (; at < raw.size(); ++at) {
      if (raw[at] == '\\') {
        ++at;
      } else if (raw[at] == '\'' || raw[at] == '"') {
        at = raw[at] == '"' ? quote_end(raw, at) : std::min(raw.find('\'', at + 1), raw.size());
      } else if (raw[at] == open) {
        ++depth;
      } else if (raw[at] == close && --depth == 0) {
        return at;
      }
    }
    return raw.size();
  }
  static std::size_t quote_end(std::string_view raw, std::size_t at) {
    for (++at; at < raw.size() && raw[at] != '"'; ++at) {
      if (raw[at] == '\\') {
        ++at;
      } else if (raw[at] == '$' && at + 1 < raw.size() &&
                 (raw[at + 1] == '(' || raw[at + 1] == '{')) {
        at = raw[at + 1] == '(' ? bracket_end(raw, at + 1, '(', ')')
                                : bracket_end(raw, at + 1, '{', '}');
      }
    }
    return std::min(at, raw.size());
  }

  /// What begins with $ at `at`; returns where it ends.
  std::size_t dollar(std::string_view raw, std::size_t at, bool quoted) {
    const std::string_view rest = raw.substr(at + 1);
    if (rest.starts_with('(')) {
      const std::size_t end = bracket_end(raw, at + 1, '(', ')');
      const std::string_view all = raw.substr(at, end + 1 - at);
      substitute(all);
      return at + all.size();
    }
    if (rest.starts_with('{')) {
      const std::size_t end = bracket_end(raw, at + 1, '{', '}');
      const std::string_view all = raw.substr(at, end + 1 - at);
      parameter(all, raw.substr(at + 2, end - at - 2), quoted);
      return at + all.size();
    }
    if (const std::size_t length = shell_name_length(rest); length > 0) {
      const ShellWords* value = variables_.find(rest.substr(0, length));
      if (value == nullptr) {
        add_unknown(raw.substr(at, length + 1));
      } else {
        add_values({value->empty() ? std::string() : value->front()}, quoted, false);
      }
      return at + length + 1;
    }
    if (!rest.empty() && (std::isdigit(static_cast<unsigned char>(rest[0])) != 0 ||
                          std::string_view("@*#?$!-").find(rest[0]) != std::string_view::npos)) {
      add_unknown(raw.substr(at, 2));
      return at + 2;
    }
    if (!rest.starts_with('\'') || quoted) add("$");
    return at + 1;
  }

  /// $((...)) where all of it is known, else what a command prints.
  void substitute(std::string_view all) {
    if (all.starts_with("$((") && all.ends_with("))")) {
      const std::string inner = variables_.expand_text(with_dollars(all.substr(3, all.size() - 5)));
      if (inner.find(kUnknownMark) == std::string::npos) {
        if (const auto value = Arithmetic(inner).value()) return add(std::to_string(*value));
      }
    }
    add_unknown(all);
  }

  /// ${...}
  void parameter(std::string_view all, std::string_view inner, bool quoted) {
    const std::size_t length = shell_name_length(inner);
    if (length == 0) {
      // ${1:-word}: an argument of the script, which nobody gives here.
      const std::size_t digits = std::min(inner.find_first_not_of("0123456789"), inner.size());
      const std::string_view rest = inner.substr(digits);
      if (digits == 0 || !(rest.starts_with(":-") || rest.starts_with("-")))
        return add_unknown(all);
      return expand(rest.substr(rest[0] == ':' ? 2 : 1), quoted);
    }
    const std::string_view name = inner.substr(0, length);
    std::string_view rest = inner.substr(length);
    const ShellWords* value = variables_.find(name);
    ShellWords shown;
    if (value != nullptr && !value->empty()) shown = {value->front()};
    bool apart = false;
    if (rest.starts_with("[@]") || rest.starts_with("[*]")) {
      apart = rest[1] == '@';
      if (value != nullptr) shown = *value;
      rest.remove_prefix(3);
    } else if (rest.starts_with('[')) {
      return add_unknown(all);
    }
    const bool colon = rest.starts_with(':');
    const std::string_view operation = colon ? rest.substr(1) : rest;
    const bool given = value != nullptr &&
                       (!colon || (!shown.empty() && !(shown.size() == 1 && shown[0].empty())));
    const char what = operation.empty() ? '\0' : operation[0];
    if (what == '-' || what == '=') {
      if (given) return add_values(shown, quoted, apart);
      if (what == '=') variables_.set(name, {variables_.expand_text(operation.substr(1))});
      return expand(operation.substr(1), quoted);
    }
    if (what == '+' && given) return expand(operation.substr(1), quoted);
    if (value != nullptr && (rest.empty() || what == '?')) return add_values(shown, quoted, apart);
    add_unknown(all);
  }

  ShellVariables& variables_;
  const bool split_;
  ShellWords words_;
  std::string word_;
  bool open_ = false;
};

const ShellWords* ShellVariables::find(std::string_view name) const {
  const auto found =
      std::find_if(all_.begin(), all_.end(), [&](const auto& one) { return one.first == name; });
  return found == all_.end() ? nullptr : &found->second;
}

void ShellVariables::set(std::string_view name, ShellWords value) {
  if (const ShellWords* old = find(name)) {
    const_cast<ShellWords&>(*old) = std::move(value);
  } else {
    if (all_.size() == kVariablesMax)
      throw ConfigError("{}: sets more than {} variables", source_, kVariablesMax);
    all_.emplace_back(name, std::move(value));
  }
}

void ShellVariables::append(std::string_view name, ShellWords value, bool array) {
  const ShellWords* old = find(name);
  if (old != nullptr) produced_ += 32 * old->size();  // both are copied
  ShellWords joined = old == nullptr ? ShellWords() : *old;
  if (array) {
    joined.insert(joined.end(), value.begin(), value.end());
  } else if (joined.empty()) {
    joined = std::move(value);
  } else {
    joined.front() += value.front();
    produced_ += joined.front().size();
  }
  if (produced_ > kProducedMax) {
    throw ConfigError("{}: its variables expand to more than {} MiB", source_, kProducedMax >> 20);
  }
  set(name, std::move(joined));
}

void ShellVariables::unset(std::string_view name) {
  std::erase_if(all_, [&](const auto& one) { return one.first == name; });
}

ShellWords ShellVariables::expand(std::string_view raw) {
  return ShellExpansion(*this, true).run(raw);
}

std::string ShellVariables::expand_text(std::string_view raw) {
  const ShellWords words = ShellExpansion(*this, false).run(raw);
  return words.empty() ? std::string() : words.front();
}

}  // namespace trireme
