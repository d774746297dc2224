#include "house/type_rules.h"

#include <fmt/core.h>

#include <map>

#include "house/cpp_text.h"

namespace trireme::house {

namespace {

class TypeReader {
 public:
  explicit TypeReader(std::span<const Token> tokens) : tokens_(tokens) {}

  std::vector<TypeName> read() {
    while (at_ < tokens_.size()) step();
    return std::move(types_);
  }

 private:
  [[nodiscard]] std::string_view text(std::size_t i) const {
    return i < tokens_.size() ? tokens_[i].text : std::string_view();
  }

  void step() {
    const std::string_view word = text(at_);
    if (word == "namespace") return enter_namespace();
    if (word == "template") return skip_group(at_ + 1, "<", ">");
    if (word == "class" || word == "struct" || word == "union" || word == "enum")
      return take_type();
    if (word == "(") return skip_group(at_, "(", ")");
    if (word == "{") return skip_group(at_, "{", "}");
    if (word == "}" && !spaces_.empty()) spaces_.pop_back();
    ++at_;
  }

  /// Behind the bracket that closes the one at `open`.
  void skip_group(std::size_t open, std::string_view opening, std::string_view closing) {
    int depth = 0;
    for (at_ = open; at_ < tokens_.size(); ++at_) {
      if (text(at_) == opening) ++depth;
      if (text(at_) == closing && --depth == 0) break;
    }
    ++at_;
  }

  void enter_namespace() {
    std::string name;
    while (++at_ < tokens_.size() && text(at_) != "{" && text(at_) != ";" && text(at_) != "=")
      name += text(at_);
    if (text(at_) == "{") {
      spaces_.push_back(std::move(name));
      ++at_;
    }
  }

  void take_type() {
    while (text(at_ + 1) == "class" || text(at_ + 1) == "struct") ++at_;
    ++at_;
    while (text(at_) == "alignas" || text(at_) == "[") {
      const bool attribute = text(at_) == "[";
      skip_group(attribute ? at_ : at_ + 1, attribute ? "[" : "(", attribute ? "]" : ")");
    }
    if (at_ >= tokens_.size() || !is_name(tokens_[at_])) return;
    const Token name = tokens_[at_++];
    const bool is_final = text(at_) == "final";
    const std::string_view next = text(is_final ? at_ + 1 : at_);
    if (next != "{" && next != ":") return;  // declared, a specialisation, a member, a variable
    while (at_ < tokens_.size() && text(at_) != "{" && text(at_) != ";") ++at_;
    if (text(at_) != "{") return;
    std::string whole;
    for (const std::string& space : spaces_) {
      if (space.empty()) return skip_group(at_, "{", "}");  // of this file alone
      whole += space + "::";
    }
    types_.push_back({whole + std::string(name.text), name.line});
    skip_group(at_, "{", "}");
  }

  std::span<const Token> tokens_;
  std::size_t at_ = 0;
  std::vector<std::string> spaces_;
  std::vector<TypeName> types_;
};

}  // namespace

std::vector<TypeName> types_of(std::string_view source) {
  return TypeReader(scan_cpp(source).tokens).read();
}

Faults type_faults(std::span<const SourceFile> program) {
  std::map<std::string, const SourceFile*> first;
  Faults faults;
  for (const SourceFile& file : program) {
    for (const TypeName& type : types_of(file.text)) {
      if (type.name.find("::") == std::string::npos) continue;
      const auto [known, is_new] = first.emplace(type.name, &file);
      if (is_new) continue;
      faults.push_back({file.path, type.line,
                        fmt::format("{} is defined in {} too", type.name, known->second->path)});
    }
  }
  return faults;
}

}  // namespace trireme::house
