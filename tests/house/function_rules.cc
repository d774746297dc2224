#include "house/function_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>

#include "house/cpp_text.h"

namespace trireme::house {

namespace {

constexpr int kLinesMax = 70, kDeviceLinesMax = 120, kTestLinesMax = 120;
constexpr int kParametersMax = 6, kDeviceParametersMax = 8;

/// Long because they are tables, a row after the other.
const std::set<std::string_view> kTables = {"command_table", "add_run", "add_parallel"};
/// Their parameters are the operands of one instruction, or what CUDA has declared.
const std::set<std::string_view> kDeclaredElsewhere = {
    "__cudaRegisterFunction", "__cudaRegisterVar",
    "cublasLtMatmul",         "cublasLtMatmulAlgoGetHeuristic",
    "cuLibraryLoadData",      "cuTensorMapEncodeTiled",
    "cudaMemcpy2DAsync",      "encode_tensor_map",
    "ncclAllReduce",          "ncclReduceScatter",
    "tma_load_3d_multicast",  "tma_load_4d",
    "tma_load_4d_multicast",  "tma_load_multicast"};
bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

using Tokens = std::span<const Token>;

std::string_view text_at(Tokens tokens, std::size_t i) {
  return i < tokens.size() ? tokens[i].text : std::string_view();
}

/// The index behind the bracket that closes the one at `open`; the end where none does.
std::size_t behind_group(Tokens tokens, std::size_t open) {
  const std::string_view opening = tokens[open].text;
  const std::string_view closing = opening == "(" ? ")" : opening == "[" ? "]" : "}";
  int depth = 0;
  for (std::size_t i = open; i < tokens.size(); ++i) {
    if (tokens[i].text == opening) ++depth;
    if (tokens[i].text == closing && --depth == 0) return i + 1;
  }
  return tokens.size();
}

/// The same of template arguments that begin at `open`. What is no such list ends behind its "<".
std::size_t behind_angles(Tokens tokens, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < tokens.size();) {
    const std::string_view text = tokens[i].text;
    if (is_one_of(text, {"(", "[", "{"})) {
      i = behind_group(tokens, i);
      continue;
    }
    if (is_one_of(text, {")", "]", "}", ";"})) break;
    if (text == "<") ++depth;
    if (text == ">" && --depth == 0) return i + 1;
    ++i;
  }
  return open + 1;
}

/// What stands before a body or a semicolon.
struct Head {
  std::string name;
  int line = 0;
  std::optional<Tokens> parameters;
  bool names_type = false, names_enum = false, names_namespace = false;
  bool has_value = false;    // "=" stands in it
  bool has_members = false;  // ":" behind the parameters
  bool is_device = false;
};

class HeadReader {
 public:
  explicit HeadReader(Tokens tokens) : tokens_(tokens) {}

  Head read() {
    while (at_ < tokens_.size() && !head_.has_members) step();
    return head_;
  }

 private:
  void step() {
    const std::string_view text = tokens_[at_].text;
    const bool after_name = at_ > 0 && is_name(tokens_[at_ - 1]);
    if (text == "operator") {
      take_operator();
    } else if (text == "(") {
      take_parameters();
    } else if (text == "[" || text == "{") {
      head_.has_value |= text == "{";
      at_ = behind_group(tokens_, at_);
    } else if (text == "<" && after_name) {
      at_ = behind_angles(tokens_, at_);
    } else if (text == ":" && head_.parameters) {
      head_.has_members = true;
    } else if (text_at(tokens_, at_ + 1) == "(" && is_attribute(text)) {
      at_ = behind_group(tokens_, at_ + 1);
    } else {
      take_word(text);
      ++at_;
    }
  }

  static bool is_attribute(std::string_view word) {
    return is_one_of(word, {"alignas", "__align__", "__attribute__", "__launch_bounds__",
                            "decltype", "explicit", "noexcept", "requires", "throw"});
  }

  void take_word(std::string_view word) {
    if (word == "=") head_.has_value = true;
    if (is_one_of(word, {"__global__", "__device__"})) head_.is_device = true;
    if (word == "namespace" || (word == "extern" && text_at(tokens_, at_ + 1) == "\"")) {
      head_.names_namespace = true;
    }
    if (head_.parameters) return;
    if (is_one_of(word, {"class", "struct", "union"})) head_.names_type = true;
    if (word == "enum") head_.names_enum = true;
  }

  void take_operator() {
    const std::size_t begin = at_++;
    if (text_at(tokens_, at_) == "(" && text_at(tokens_, at_ + 1) == ")") at_ += 2;
    while (at_ < tokens_.size() && tokens_[at_].text != "(") ++at_;
    if (at_ < tokens_.size()) take_parameters();
    head_.line = tokens_[begin].line;
    head_.name = "operator";
  }

  /// Of several groups in parentheses the last is the parameters: macros stand before the name.
  void take_parameters() {
    const std::size_t end = behind_group(tokens_, at_);
    const bool named = at_ > 0 && is_name(tokens_[at_ - 1]);
    const bool closed = end > at_ + 1;
    if (!head_.has_value && closed) {
      head_.parameters = tokens_.subspan(at_ + 1, end - at_ - 2);
      head_.name = named ? name_before(at_) : "";
      head_.line = tokens_[at_ > 0 ? at_ - 1 : at_].line;
    }
    at_ = end;
  }

  std::string name_before(std::size_t end) const {
    std::size_t begin = end - 1;
    if (text_at(tokens_, begin - 1) == "~") --begin;
    while (begin >= 2 && tokens_[begin - 1].text == "::" && is_name(tokens_[begin - 2])) begin -= 2;
    std::string name;
    for (std::size_t i = begin; i < end; ++i) name += tokens_[i].text;
    return name;
  }

  Tokens tokens_;
  std::size_t at_ = 0;
  Head head_;
};

int count_parameters(Tokens tokens) {
  if (tokens.empty() || (tokens.size() == 1 && tokens[0].text == "void")) return 0;
  int count = 1;
  for (std::size_t i = 0; i < tokens.size();) {
    const std::string_view text = tokens[i].text;
    if (is_one_of(text, {"(", "[", "{"})) {
      i = behind_group(tokens, i);
    } else if (text == "<" && i > 0 && is_name(tokens[i - 1])) {
      i = behind_angles(tokens, i);
    } else {
      count += text == ",";
      ++i;
    }
  }
  return count;
}

class FunctionFinder {
 public:
  explicit FunctionFinder(Tokens tokens) : tokens_(tokens) {}

  std::vector<Function> run() {
    while (at_ < tokens_.size()) take_scope();
    return std::move(found_);
  }

 private:
  /// Up to behind the brace that closes a namespace or a class, or the end of the file.
  void take_scope() {
    std::size_t begin = at_;
    while (at_ < tokens_.size()) {
      const std::string_view text = tokens_[at_].text;
      const Tokens head = tokens_.subspan(begin, at_ - begin);
      if (text == "(" || text == "[") {
        at_ = behind_group(tokens_, at_);
      } else if (text == "{") {
        if (take_braces(HeadReader(head).read())) begin = at_;
      } else {
        ++at_;
        if (text == "}") return;
        const bool is_label = text == ":" && head.size() == 1 &&
                              is_one_of(head[0].text, {"public", "protected", "private"});
        if (text == ";") note(HeadReader(head).read(), 0);
        if (text == ";" || is_label) begin = at_;
      }
    }
  }

  /// Whether what follows is a new declaration: not where the braces hold a value.
  bool take_braces(const Head& head) {
    const std::string_view before = at_ > 0 ? tokens_[at_ - 1].text : std::string_view();
    const bool holds_member = head.has_members && (is_name(tokens_[at_ - 1]) || before == ">");
    if (head.names_namespace || (head.names_type && !head.parameters && !head.names_enum)) {
      ++at_;
      take_scope();
      return true;
    }
    const std::size_t end = behind_group(tokens_, at_);
    const bool is_body = head.parameters && !head.has_value && !holds_member;
    if (is_body) note(head, tokens_[end - 1].line - head.line + 1);
    at_ = end;
    return is_body;
  }

  void note(const Head& head, int lines) {
    if (!head.parameters || head.name.empty()) return;
    Function function{head.name, head.line, lines, count_parameters(*head.parameters),
                      head.is_device ? Function::Kind::kDevice : Function::Kind::kHost};
    if (is_one_of(head.name, {"TEST", "TEST_F", "TEST_P", "TYPED_TEST", "TYPED_TEST_P"})) {
      function.kind = Function::Kind::kTest;
      function.name += '(';
      for (const Token& token : *head.parameters) {
        function.name += token.text == "," ? ", " : token.text;
      }
      function.name += ')';
    }
    found_.push_back(std::move(function));
  }

  Tokens tokens_;
  std::size_t at_ = 0;
  std::vector<Function> found_;
};

struct Limits {
  int lines, parameters;
};

Limits limits_of(Function::Kind kind) {
  switch (kind) {
    case Function::Kind::kDevice:
      return {kDeviceLinesMax, kDeviceParametersMax};
    case Function::Kind::kTest:
      return {kTestLinesMax, kParametersMax};
    case Function::Kind::kHost:
      break;
  }
  return {kLinesMax, kParametersMax};
}

}  // namespace

std::vector<Function> functions_of(std::string_view source) {
  const CppText text = scan_cpp(source);
  return FunctionFinder(text.tokens).run();
}

Faults function_faults(const SourceFile& file) {
  Faults faults;
  for (const Function& function : functions_of(file.text)) {
    const Limits max = limits_of(function.kind);
    if (function.lines > max.lines && kTables.count(function.name) == 0) {
      faults.push_back(
          {file.path, function.line,
           fmt::format("{} has {} lines, more than {}", function.name, function.lines, max.lines)});
    }
    if (function.parameters > max.parameters && kDeclaredElsewhere.count(function.name) == 0) {
      faults.push_back({file.path, function.line,
                        fmt::format("{} has {} parameters, more than {} (a struct, perhaps)",
                                    function.name, function.parameters, max.parameters)});
    }
  }
  return faults;
}

}  // namespace trireme::house
