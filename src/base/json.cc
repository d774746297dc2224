#include "base/json.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace trireme {

namespace {

using Parser = nlohmann::json;

/// The last character before `end` that is neither blank nor in a comment; 0 where there is none.
char significant_before(std::string_view text, std::size_t end) {
  char last = 0;
  for (std::size_t at = 0; at < end; ++at) {
    if (text[at] == '"') {
      for (++at; at < end && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
      last = '"';
    } else if (text.substr(at, 2) == "//") {
      at = std::min(text.find('\n', at), end);
    } else if (text.substr(at, 2) == "/*") {
      const auto close = text.find("*/", at + 2);
      at = close == std::string_view::npos ? end : close + 1;
    } else if (std::string_view(" \t\r\n").find(text[at]) == std::string_view::npos) {
      last = text[at];
    }
  }
  return last;
}

/// What people write that JSON does not have, at the character where the parser stopped; "" for
/// anything else, which the parser's own words describe.
std::string reason_of_fault(std::string_view text, std::size_t at, std::string_view what) {
  const auto says = [&](std::string_view part) {
    return what.find(part) != std::string_view::npos;
  };
  if (at >= text.size()) {
    return significant_before(text, text.size()) == 0
               ? "holds nothing"
               : "the text ends too early: a bracket or a quote is not closed";
  }
  const char found = text[at], before = significant_before(text, at);
  if ((found == '}' || found == ']') && before == ',')
    return fmt::format("a comma before {}, which JSON does not allow behind the last element",
                       found);
  if (found == '\'') return "a string in single quotes; JSON has double quotes only";
  if (says("while parsing object - unexpected") || says("while parsing array - unexpected"))
    return "a comma is missing before this";
  if (says("while parsing object separator")) return "a colon is missing before this";
  // The parser stops within a word, at its first wrong letter.
  std::size_t begin = at;
  while (begin > 0 && std::isalpha(static_cast<unsigned char>(text[begin - 1])) != 0) --begin;
  for (const auto& [word, ours] :
       {std::pair("True", "true"), {"False", "false"}, {"None", "null"}}) {
    if (text.substr(begin).starts_with(word)) return fmt::format("{} is {} in JSON", word, ours);
  }
  return "";
}

/// Builds a Json tree from parser events. A frame stands for an open array or object.
class TreeBuilder : public nlohmann::json_sax<Parser> {
 public:
  TreeBuilder(const JsonRules& rules, std::string_view text, std::string_view source)
      : rules_(rules), text_(text), source_(source) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(std::int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(std::uint64_t{value})); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    if (++keys_ > rules_.keys_max) fail(fmt::format("more than {} keys", rules_.keys_max));
    stack_.back().repeated = find_repeated();
    if (stack_.back().repeated != nullptr) {
      if (rules_.duplicates == nullptr)
        fail(fmt::format("the key \"{}\" stands twice in one object", path(key_)));
      rules_.duplicates->push_back(path(key_));
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& fault) override {
    // The parser's own tag, "[json.exception.parse_error.101] parse error at line 1, column 2: ".
    std::string_view what = fault.what();
    if (const auto tag = what.find("] "); tag != std::string_view::npos)
      what.remove_prefix(tag + 2);
    if (what.starts_with("parse error")) {
      if (const auto colon = what.find(": "); colon != std::string_view::npos)
        what.remove_prefix(colon + 2);
    }
    position_ = position;
    fail(what);
  }

 private:
  struct Frame {
    Json value;
    std::string key;  // under which it will be added to its parent
    std::unordered_map<std::string, std::size_t> places;  // of the members of a large object
    Json* repeated = nullptr;  // the value under the last name, where that stood before
  };

  bool add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().value.is_array()) {
      stack_.back().value.push_back(std::move(value));
    } else if (stack_.back().repeated != nullptr) {
      *stack_.back().repeated = std::move(value);
    } else {
      stack_.back().value.as_object().emplace_back(key_, std::move(value));
    }
    return true;
  }
  /// A vocabulary is an object of 100,000 members: beyond a few, names are looked up in a table.
  Json* find_repeated() {
    Frame& frame = stack_.back();
    Json::Object& members = frame.value.as_object();
    constexpr std::size_t kLinearMax = 16;
    if (members.size() < kLinearMax) return frame.value.find(key_);
    if (frame.places.empty()) {
      for (std::size_t i = 0; i < members.size(); ++i) frame.places.emplace(members[i].first, i);
    }
    const auto [found, is_new] = frame.places.emplace(key_, members.size());
    return is_new ? nullptr : &members[found->second].second;
  }
  bool open(Json empty) {
    if (static_cast<int>(stack_.size()) >= rules_.depth_max) {
      fail(fmt::format("nested deeper than {} levels", rules_.depth_max));
    }
    stack_.push_back({std::move(empty), key_, {}, nullptr});
    return true;
  }
  bool close() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    key_ = std::move(frame.key);
    return add(std::move(frame.value));
  }
  [[nodiscard]] std::string path(const std::string& last) const {
    std::string text;
    for (std::size_t i = 1; i < stack_.size(); ++i) text += stack_[i].key + ".";
    return text + last;
  }
  [[noreturn]] void fail(std::string_view what) const {
    std::string place;
    if (position_ > 0) {
      const std::string_view before = text_.substr(0, std::min(position_ - 1, text_.size()));
      const auto line = 1 + std::count(before.begin(), before.end(), '\n');
      const auto line_start = before.rfind('\n') + 1;  // npos + 1 is 0
      place = fmt::format(" line {}, column {}:", line, before.size() - line_start + 1);
      if (const std::string reason = reason_of_fault(text_, position_ - 1, what); !reason.empty())
        throw Error(rules_.code, fmt::format("{}:{} {}", source_, place, reason));
    }
    throw Error(rules_.code, fmt::format("{}:{} {}", source_, place, what));
  }

  const JsonRules& rules_;
  std::string_view text_, source_;
  Json root_;
  std::vector<Frame> stack_;
  std::string key_;
  std::size_t position_ = 0, keys_ = 0;
};

void write_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void write_real(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void write(std::string& out, const Json& value, int indent, int depth) {
  const auto new_line = [&](int at) {
    if (indent >= 0) out.append("\n").append(static_cast<std::size_t>(indent * at), ' ');
  };
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_integer()) {
    out += std::to_string(value.as_integer());
  } else if (value.is_number()) {
    write_real(out, value.as_double());
  } else if (value.is_string()) {
    write_string(out, value.as_string());
  } else if (value.is_array()) {
    // Arrays of plain numbers stay on one line: a shape is read as a whole.
    const auto& items = value.as_array();
    const bool flat = std::none_of(items.begin(), items.end(), [](const Json& item) {
      return item.is_array() || item.is_object();
    });
    out += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += flat && indent >= 0 ? ", " : ",";
      if (!flat) new_line(depth + 1);
      write(out, items[i], indent, depth + 1);
    }
    if (!flat) new_line(depth);
    out += ']';
  } else {
    const auto& members = value.as_object();
    out += '{';
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out += ',';
      new_line(depth + 1);
      write_string(out, members[i].first);
      out += indent >= 0 ? ": " : ":";
      write(out, members[i].second, indent, depth + 1);
    }
    if (!members.empty()) new_line(depth);
    out += '}';
  }
}

}  // namespace

Json::Json(std::uint64_t value) {
  if (std::in_range<std::int64_t>(value)) {
    value_ = static_cast<std::int64_t>(value);
  } else {
    value_ = static_cast<double>(value);
  }
}

std::string_view Json::kind_name() const {
  static constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                                "a string", "an array",  "an object"};
  return kNames[value_.index()];
}

double Json::as_double() const {
  return is_integer() ? static_cast<double>(as_integer()) : get<double>();
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : as_object()) {
    if (name == key) return &value;
  }
  return nullptr;
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object{};
  if (Json* member = find(key)) return *member;
  return as_object().emplace_back(std::string(key), Json()).second;
}

bool Json::erase(std::string_view key) {
  return is_object() &&
         std::erase_if(as_object(), [&](const Member& m) { return m.first == key; }) > 0;
}

void Json::push_back(Json element) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(element));
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, *this, indent, 0);
  return out;
}

Json parse_json(std::string_view text, std::string_view source, const JsonRules& rules) {
  TreeBuilder builder(rules, text, source);
  Parser::sax_parse(text.begin(), text.end(), &builder, Parser::input_format_t::json, true,
                    rules.comments);
  return builder.take();
}

}  // namespace trireme
