#include "config/merge.h"

#include <algorithm>

#include "base/readable.h"
#include "base/utf8.h"

namespace trireme {

namespace {

enum class Nulls : std::uint8_t { kRemove, kKeep };

void merge(Json& base, const Json& over, Nulls nulls) {
  if (!over.is_object()) {
    base = over;
    return;
  }
  if (!base.is_object()) base = Json::object();
  for (const auto& [key, value] : over.as_object()) {
    if (value.is_null() && nulls == Nulls::kRemove) {
      base.erase(key);
    } else {
      merge(base[key], value, nulls);
    }
  }
}

/// A "model" that is a path and then gets keys is that file with the keys overridden.
void merge_model(Json& base, const Json& over) {
  if (base.is_string() && over.is_object() && over.find("path") == nullptr &&
      over.find("model_type") == nullptr) {
    base = Json::Object{{"path", base.as_string()}};
  }
  merge(base, over, Nulls::kKeep);
}

}  // namespace

void merge_config(Json& base, const Json& over) {
  if (!base.is_object()) base = Json::object();
  for (const auto& [key, value] : over.as_object()) {
    if (value.is_null()) {
      base.erase(key);
    } else if (key == "model") {
      merge_model(base[key], value);
    } else {
      merge(base[key], value, Nulls::kRemove);
    }
  }
}

void apply_override(Json& config, std::string_view text, std::vector<Problem>& problems) {
  if (utf8_valid_prefix(text) != text.size()) {  // could not be written to config.json
    const std::string found = readable(text, LineFeeds::kEscaped, 60);
    problems.push_back({"--set", found, "UTF-8", "", "is no text"});
    return;
  }
  const auto equals = text.find('=');
  const std::string_view path = text.substr(0, equals);
  constexpr auto kDotsMax = 16;  // each becomes a level of objects
  if (equals == std::string_view::npos || path.empty() ||
      std::count(path.begin(), path.end(), '.') > kDotsMax || path.front() == '.' ||
      path.back() == '.' || path.find("..") != std::string_view::npos) {
    problems.push_back({"--set", shown(Json(text)), "key.path=value", "", "names no key"});
    return;
  }
  const std::string_view value_text = text.substr(equals + 1);
  Json value;
  std::vector<std::string> duplicates;
  try {
    value = parse_json(value_text, "--set", {.code = ExitCode::kConfig, .duplicates = &duplicates});
  } catch (const Error&) {
    value = Json(value_text);
  }
  for (const std::string& key : duplicates) {
    problems.push_back(
        {fmt::format("{}.{}", path, key), "twice", "once", "", "the key stands twice in --set"});
  }
  std::string_view rest = path;
  while (true) {  // wrap from the innermost key outwards
    const auto dot = rest.rfind('.');
    value = Json::Object{
        {std::string(dot == std::string_view::npos ? rest : rest.substr(dot + 1)), value}};
    if (dot == std::string_view::npos) break;
    rest = rest.substr(0, dot);
  }
  merge_config(config, value);
}

}  // namespace trireme
