#include "tokenizer/json_lines.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"

namespace trireme {

namespace {

Json parse_line(std::string_view line, const std::string& place) {
  try {
    return parse_json(line, "");
  } catch (const Error& fault) {
    // The parser counts lines of what it is given, which is one.
    std::string_view what = fault.what();
    constexpr std::string_view kPlace = ": line 1, ";
    if (what.starts_with(kPlace)) what.remove_prefix(kPlace.size());
    throw DataError("{}: {}", place, what);
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

void for_each_object(
    const CorpusBlock& block,
    const std::function<void(const Json& object, const std::string& place)>& visit) {
  std::string_view rest = block.text;
  for (std::int64_t line = block.first_line; !rest.empty(); ++line) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view content = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (is_blank(content)) continue;
    const std::string place = fmt::format("{}: line {}", block.source, line);
    const Json object = parse_line(content, place);
    if (!object.is_object())
      throw DataError("{}: {} stands where an object is needed", place, object.kind_name());
    visit(object, place);
  }
}

const Json& member_of_line(const Json& object, const std::string& key, std::string_view option,
                           const std::string& place) {
  if (const Json* member = object.find(key)) return *member;
  std::string others;
  for (const auto& [name, value] : object.as_object()) {
    others += fmt::format("{}\"{}\"", others.empty() ? "" : ", ", name);
    if (others.size() > 200) break;
  }
  throw DataError("{}: has no member \"{}\" (it has {}). {} names the one with the text", place,
                  key, others.empty() ? "none" : others, option);
}

void for_each_text(const CorpusBlock& block, const std::string& key,
                   const std::function<void(std::string_view text)>& visit) {
  for_each_object(block, [&](const Json& object, const std::string& place) {
    const Json& text = member_of_line(object, key, "--jsonl", place);
    if (!text.is_string())
      throw DataError("{}: \"{}\" is {}, not a string", place, key, text.kind_name());
    visit(text.as_string());
  });
}

std::optional<std::string> likely_text_key(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || text[begin] != '{') return std::nullopt;
  text.remove_prefix(begin);
  Json object;
  try {
    object = parse_json(text.substr(0, text.find('\n')), "");
  } catch (const Error&) {
    return std::nullopt;
  }
  std::string key;
  std::size_t longest = 0;
  for (const auto& [name, value] : object.as_object()) {
    if (!value.is_string()) continue;
    constexpr std::array<std::string_view, 3> kUsual = {"text", "content", "document"};
    if (std::find(kUsual.begin(), kUsual.end(), name) != kUsual.end()) return name;
    if (!key.empty() && value.as_string().size() <= longest) continue;
    key = name;
    longest = value.as_string().size();
  }
  return key;
}

void PlainTextCheck::look_at(const CorpusBlock& block) {
  const bool begins = std::exchange(source_, block.source) != block.source;
  if (begins && !told_json_) {
    if (const std::optional<std::string> key = likely_text_key(block.text)) {
      told_json_ = true;
      log_warning(
          "{}: looks like JSON lines and is read as text, braces and keys with it. Give --jsonl "
          "KEY for the text of each line{}",
          block.source, key->empty() ? "" : fmt::format(": most likely --jsonl {}", *key));
    }
  }
  if (told_bytes_) return;
  const std::size_t zero = block.text.find('\0'), valid = utf8_valid_prefix(block.text);
  const bool is_utf16 =
      begins && (block.text.starts_with("\xff\xfe") || block.text.starts_with("\xfe\xff"));
  if (zero == std::string::npos && valid == block.text.size()) return;
  told_bytes_ = true;
  log_warning("{}: {}; its bytes are taken as they are. {}", block.source,
              is_utf16       ? "is UTF-16"
              : zero < valid ? "holds zero bytes"
                             : "is not all UTF-8",
              is_utf16 ? "Make it UTF-8: iconv -f UTF-16 -t UTF-8"
                       : "If it is text of another encoding, iconv makes it UTF-8");
}

}  // namespace trireme
