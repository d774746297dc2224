#include "config/combinations.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/readable.h"

namespace trireme {

namespace {

constexpr std::size_t kRunsMax = 10'000, kNameBytesMax = 255;

std::string shown_text(std::string_view text) { return readable(text, LineFeeds::kEscaped, 80); }

std::vector<std::string> cut(std::string_view text, std::string_view option) {
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ',' && depth == 0 && !quoted) {
      values.emplace_back();
      continue;
    }
    values.back() += c;
    if (quoted && c == '\\' && i + 1 < text.size()) {
      values.back() += text[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      ++depth;
    } else if (!quoted && (c == ']' || c == '}')) {
      --depth;
    }
    if (depth < 0) break;
  }
  if (depth != 0 || quoted) {
    throw ConfigError(
        "--set {}: a {} without its {}. Legal: key=A,B,C; a value with a comma of its own in "
        "quotes or brackets",
        shown_text(option), quoted ? "quote" : "bracket", depth < 0 ? "beginning" : "end");
  }
  return values;
}

Json value_of(const std::string& text) {
  try {
    const Json value = parse_json(text, "--set", {.code = ExitCode::kConfig});
    return value.is_integer() ? Json(value.as_double()) : value;
  } catch (const Error&) {
    return text;
  }
}

std::string folder_name(const std::vector<std::string>& overrides) {
  std::string name;
  for (const std::string& override_text : overrides) {
    if (!name.empty()) name += ',';
    for (const char c : override_text) name += c == '/' ? "%2F" : std::string(1, c);
  }
  return name;
}

}  // namespace

SweptKey parse_swept_key(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0)
    throw ConfigError("--set {}: names no key. Legal: key.path=A,B,C", shown_text(text));
  SweptKey key{std::string(text.substr(0, equals)), cut(text.substr(equals + 1), text)};
  std::vector<Json> seen;
  for (const std::string& value : key.values) {
    if (value.empty()) {
      throw ConfigError(
          "--set {}: an empty value (two commas in a row, or one at an end). An empty text is \"\"",
          shown_text(text));
    }
    Json parsed = value_of(value);
    if (std::find(seen.begin(), seen.end(), parsed) != seen.end())
      throw ConfigError("--set {}: {} stands twice (two runs would be the same)", shown_text(text),
                        shown_text(value));
    seen.push_back(std::move(parsed));
  }
  return key;
}

std::vector<Combination> combinations_of(std::span<const SweptKey> keys) {
  std::set<std::string> known;
  std::vector<Combination> all(1);
  for (const SweptKey& key : keys) {
    if (!known.insert(key.key).second)
      throw ConfigError(
          "--set {}: this key stands in two options. Give all its values in one: {}=A,B,C", key.key,
          key.key);
    std::vector<Combination> longer;
    if (all.size() * key.values.size() > kRunsMax)
      throw ConfigError("train sweep: more than {} runs. Give fewer values", kRunsMax);
    for (const Combination& combination : all) {
      for (const std::string& value : key.values) {
        longer.push_back(combination);
        longer.back().overrides.push_back(key.key + "=" + value);
      }
    }
    all = std::move(longer);
  }
  std::set<std::string> names;
  for (Combination& combination : all) {
    combination.name = folder_name(combination.overrides);
    if (combination.name.size() > kNameBytesMax) {
      throw ConfigError(
          "train sweep: the folder {} would have a name of {} bytes, {} are possible. Put what is "
          "the same for all runs into the config",
          shown_text(combination.name), combination.name.size(), kNameBytesMax);
    }
    if (!names.insert(combination.name).second)
      throw ConfigError("train sweep: two runs would share the folder {}",
                        shown_text(combination.name));
  }
  return all;
}

}  // namespace trireme
