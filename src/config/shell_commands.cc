#include "config/shell_commands.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/utf8.h"
#include "config/shell_expand.h"
#include "config/shell_tokens.h"

namespace trireme {

namespace {

constexpr std::size_t kTextMax = std::size_t{4} << 20;
constexpr int kNestingMax = 48;

using Truth = std::optional<bool>;  // nothing: only the machine knows
using Kind = ShellToken::Kind;

bool is_unknown(std::string_view word) { return word.find(kUnknownMark) != std::string_view::npos; }

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Truth compare(std::string_view a, std::string_view how, std::string_view b) {
  if (how == "=" || how == "==") return a == b;
  if (how == "!=") return a != b;
  const auto left = whole_number(a), right = whole_number(b);
  if (!left || !right) return std::nullopt;
  if (how == "-eq") return *left == *right;
  if (how == "-ne") return *left != *right;
  if (how == "-lt") return *left < *right;
  if (how == "-le") return *left <= *right;
  if (how == "-gt") return *left > *right;
  if (how == "-ge") return *left >= *right;
  return std::nullopt;
}

/// What `[ ... ]` says; the words between the brackets.
Truth test(std::span<const std::string> words) {
  if (std::any_of(words.begin(), words.end(), is_unknown)) return std::nullopt;
  if (words.size() > 1 && words[0] == "!") {
    const Truth inner = test(words.subspan(1));
    return inner ? Truth(!*inner) : inner;
  }
  if (words.empty()) return false;
  if (words.size() == 1) return !words[0].empty();
  if (words.size() == 2 && words[0] == "-z") return words[1].empty();
  if (words.size() == 2 && words[0] == "-n") return !words[1].empty();
  return words.size() == 3 ? compare(words[0], words[1], words[2]) : std::nullopt;
}

class Interpreter {
 public:
  Interpreter(std::string_view text, std::string_view source, int line, ShellVariables& variables,
              ShellScript& out, int nesting)
      : lexer_(text, source, line),
        source_(source),
        variables_(variables),
        out_(out),
        nesting_(nesting) {}

  void run() {
    advance();
    while (token_.kind != Kind::kEnd) {
      run_list(true, {});
      if (token_.kind != Kind::kEnd) advance();
    }
  }

 private:
  using Stops = std::initializer_list<std::string_view>;

  /// Depth of lists in each other, and of texts that are evaluated.
  class Nested {
   public:
    explicit Nested(Interpreter& of) : of_(of) {
      if (++of_.nesting_ > kNestingMax)
        throw ConfigError("{}: line {}: commands stand in each other more than {} deep",
                          of_.source_, of_.token_.line, kNestingMax);
    }
    ~Nested() { --of_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Interpreter& of_;
  };

  void advance() { token_ = lexer_.next(); }
  [[nodiscard]] bool at_operator(std::string_view text) const {
    return token_.kind == Kind::kOperator && token_.text == text;
  }
  [[nodiscard]] bool at_word(std::string_view text) const {
    return token_.kind == Kind::kWord && token_.text == text;
  }
  [[nodiscard]] bool at_any(Stops stops) const {
    return std::any_of(stops.begin(), stops.end(),
                       [&](std::string_view stop) { return at_word(stop) || at_operator(stop); });
  }
  void remark(int line, std::string_view what) {
    std::string text = fmt::format("line {}: {}", line, what);
    if (std::find(out_.remarks.begin(), out_.remarks.end(), text) == out_.remarks.end())
      out_.remarks.push_back(std::move(text));
  }

  /// Commands up to one of `stops` where a command may begin, or the end; the last one's truth.
  Truth run_list(bool active, Stops stops) {
    const Nested nested(*this);
    Truth truth = true;
    while (token_.kind != Kind::kEnd && !at_any(stops)) {
      if (at_operator("\n") || at_operator(";") || at_operator("&") || at_operator(";;")) {
        advance();
      } else if (at_operator(")")) {
        if (nesting_ > 1) return truth;
        advance();
      } else {
        truth = run_chain(active);
      }
    }
    return truth;
  }

  void close(int line, std::string_view what, Stops stops) {
    if (!at_any(stops)) throw ConfigError("{}: line {}: {} is not closed", source_, line, what);
    advance();
    skip_redirections();
  }

  Truth run_chain(bool active) {
    Truth truth = run_command(active);
    while (at_operator("&&") || at_operator("||") || at_operator("|") || at_operator("|&")) {
      const bool pipe = token_.text[0] == '|' && token_.text != "||", both = token_.text == "&&";
      const int line = token_.line;
      advance();
      while (at_operator("\n")) advance();
      if (pipe) {
        truth = run_command(active);
        continue;
      }
      if (active && !truth) remark(line, kLeftOut);
      const Truth next = run_command(active && truth && *truth == both);
      if (!truth || *truth == both) truth = truth ? next : truth;
    }
    return truth;
  }

  Truth run_command(bool active) {
    const int line = token_.line;
    if (at_word("if")) return run_if(active);
    if (at_word("while") || at_word("until") || at_word("for") || at_word("select")) {
      if (active) remark(line, "a loop is left out");
      advance();
      run_list(false, {"do"});
      if (at_word("do")) advance();
      run_list(false, {"done"});
      close(line, "the loop", {"done"});
      return true;
    }
    if (at_word("case")) return skip_case(active);
    if (at_word("{") || at_operator("(")) {
      const bool brace = token_.kind == Kind::kWord;
      advance();
      const Truth truth = run_list(active, {brace ? "}" : ")"});
      close(line, brace ? "the bracket {" : "the bracket (", {brace ? "}" : ")"});
      return truth;
    }
    if (at_word("!")) {
      const Nested nested(*this);
      advance();
      const Truth truth = run_command(active);
      return truth ? Truth(!*truth) : truth;
    }
    if (at_word("function")) {
      advance();
      if (token_.kind == Kind::kWord) advance();
      return skip_function_brackets(active);
    }
    return run_simple(active);
  }

  Truth skip_function_brackets(bool active) {
    if (at_operator("(")) advance();
    if (at_operator(")")) advance();
    while (at_operator("\n")) advance();
    const Nested nested(*this);
    return token_.kind == Kind::kEnd ? Truth(true) : run_command(active);
  }

  Truth run_if(bool active) {
    const int line = token_.line;
    bool open = active;  // no branch was taken yet, and none is doubtful
    do {
      const int at = token_.line;
      advance();
      const Truth truth = run_list(open, {"then"});
      close(line, "if", {"then"});
      const bool taken = open && truth && *truth;
      if (open && !truth) remark(at, kLeftOut);
      run_list(taken, {"elif", "else", "fi"});
      open = open && truth && !taken;
    } while (at_word("elif"));
    if (at_word("else")) {
      advance();
      run_list(open, {"fi"});
    }
    close(line, "if", {"fi"});
    return true;
  }

  Truth skip_case(bool active) {
    const int line = token_.line;
    if (active) remark(line, "`case` is left out");
    int depth = 0;
    do {
      if (at_word("case")) ++depth;
      if (at_word("esac")) --depth;
      if (token_.kind == Kind::kEnd)
        throw ConfigError("{}: line {}: case is not closed", source_, line);
      if (depth > 0) advance();
    } while (depth > 0);
    close(line, "case", {"esac"});
    return true;
  }

  [[nodiscard]] bool at_redirection() const {
    if (token_.kind != Kind::kOperator) return false;
    return token_.text[0] == '<' || token_.text[0] == '>' || token_.text == "&>";
  }
  void skip_redirections() {
    while (at_redirection()) {
      advance();
      if (token_.kind == Kind::kWord) advance();
    }
  }

  Truth run_simple(bool active) {
    std::vector<ShellToken> tokens;
    const int line = token_.line;
    const bool brackets = at_word("[[");
    while (token_.kind != Kind::kEnd) {
      if (at_redirection() && !brackets) {
        const bool descriptor = token_.glued && !tokens.empty() && whole_number(tokens.back().text);
        if (descriptor) tokens.pop_back();
        skip_redirections();
      } else if (token_.kind == Kind::kOperator) {
        const bool inside = brackets && tokens.back().text != "]]" && token_.text != "\n";
        if (at_operator("(") && tokens.size() == 1) return skip_function_brackets(active);
        if (!inside) break;
        tokens.push_back(token_);
        advance();
      } else {
        tokens.push_back(token_);
        advance();
      }
    }
    if (tokens.empty()) advance();  // an operator where a command belongs
    return active ? execute(tokens, line) : Truth(true);
  }

  [[nodiscard]] static bool is_assignment(const ShellToken& token) {
    return token.kind == Kind::kArray ||
           (token.kind == Kind::kWord && assignment_length(token.text) > 0);
  }

  void assign(const ShellToken& token) {
    const std::size_t length = assignment_length(token.text);
    const bool adds = token.text[length - 2] == '+';
    const std::string name = token.text.substr(0, length - (adds ? 2 : 1));
    ShellWords value;
    if (token.kind == Kind::kArray) {
      for (const std::string& raw : token.elements) {
        for (std::string& word : variables_.expand(raw)) value.push_back(std::move(word));
      }
    } else {
      value.push_back(variables_.expand_text(std::string_view(token.text).substr(length)));
    }
    if (adds) {
      variables_.append(name, std::move(value), token.kind == Kind::kArray);
    } else {
      variables_.set(name, std::move(value));
    }
  }

  Truth execute(const std::vector<ShellToken>& tokens, int line) {
    auto at = std::find_if_not(tokens.begin(), tokens.end(), is_assignment);
    if (at == tokens.end()) {
      for (const ShellToken& token : tokens) assign(token);
      return true;
    }
    constexpr std::string_view kDeclare[] = {"export", "declare", "local", "readonly", "typeset"};
    if (std::find(std::begin(kDeclare), std::end(kDeclare), at->text) != std::end(kDeclare)) {
      for (; at != tokens.end(); ++at) {
        if (is_assignment(*at)) assign(*at);
      }
      return true;
    }
    ShellWords words;
    for (; at != tokens.end(); ++at) {
      if (at->kind == Kind::kArray) continue;
      if (at->kind == Kind::kOperator) {
        words.push_back(at->text);
        continue;
      }
      for (std::string& word : variables_.expand(at->text)) words.push_back(std::move(word));
    }
    return words.empty() ? Truth(true) : start(std::move(words), line);
  }

  Truth start(ShellWords words, int line) {
    const std::string& name = words[0];
    const std::span<const std::string> rest = std::span(words).subspan(1);
    if (name == "[" || name == "[[") return test(rest.first(rest.empty() ? 0 : rest.size() - 1));
    if (name == "test") return test(rest);
    if (name == "false") return false;
    if (name == "unset") {
      for (const std::string& variable : rest) variables_.unset(variable);
    } else if (name == "source" || name == ".") {
      if (!rest.empty())
        remark(line,
               fmt::format("{} is read there and not looked at here", without_marks(rest[0])));
    } else if (name == "eval") {
      std::string text;
      for (const std::string& word : rest) text += (text.empty() ? "" : " ") + without_marks(word);
      evaluate(text, line);
    } else if (name != "echo" && name != "printf") {
      for (std::size_t i = 0; i + 2 < words.size(); ++i) {
        if (words[i + 1] == "-c" && (words[i].ends_with("bash") || words[i].ends_with("sh")))
          evaluate(without_marks(words[i + 2]), line);
      }
      out_.commands.push_back(std::move(words));
    }
    return true;
  }

  void evaluate(const std::string& text, int line) {
    const Nested nested(*this);
    Interpreter(text, source_, line, variables_, out_, nesting_).run();
  }

  static constexpr std::string_view kLeftOut =
      "whether this holds is known on the machine only: what depends on it is left out";

  ShellLexer lexer_;
  std::string_view source_;
  ShellVariables& variables_;
  ShellScript& out_;
  int nesting_;
  ShellToken token_;
};

}  // namespace

ShellScript read_shell(std::string_view text, std::string_view source) {
  if (text.size() > kTextMax) {
    throw ConfigError("{}: is {} bytes long (argument lists and scripts have up to {} MiB)", source,
                      text.size(), kTextMax >> 20);
  }
  const bool binary = std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == 0x7f || (byte < 0x20 && c != '\n' && c != '\t' && c != '\r');
  });
  if (binary || utf8_valid_prefix(text) < text.size())
    throw ConfigError("{}: is no text (it holds control characters, or is not UTF-8)", source);
  std::string lines;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') lines += text[i];
  }
  ShellScript script;
  ShellVariables variables(source);
  Interpreter(lines, source, 1, variables, script, 0).run();
  for (const auto& [name, value] : variables.all()) script.variables.push_back(value);
  return script;
}

}  // namespace trireme
