// Values at dotted paths, and texts that no Json holds.

#include <algorithm>

#include "e2e/random_configs/random_config.h"

namespace trireme {

namespace {
constexpr std::string_view kRawMark = "@raw:";
}  // namespace

Json raw(std::string text) { return std::string(kRawMark) + std::move(text); }

std::string text_of(const Json& value, int indent) {
  std::string text = value.dump(indent);
  // "@raw:..." with its quotes becomes what stands in it.
  const std::string mark = '"' + std::string(kRawMark);
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos;) {
    std::size_t end = at + mark.size();
    while (text[end] != '"') end += text[end] == '\\' ? 2 : 1;
    const Json inner = parse_json(text.substr(at, end + 1 - at), "a raw part");
    const std::string plain = inner.as_string().substr(kRawMark.size());
    text.replace(at, end + 1 - at, plain);
    at += plain.size();
  }
  return text;
}

const Json* value_at(const Json& config, std::string_view path) {
  const Json* value = &config;
  while (value != nullptr && !path.empty()) {
    if (const Json* whole = value->find(path); whole != nullptr) return whole;
    const auto dot = std::min(path.find('.'), path.size());
    value = value->find(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return value;
}

void set_at(Json& config, std::string_view path, Json value) {
  const auto dot = path.find('.');
  if (dot == std::string_view::npos) {
    config[path] = std::move(value);
    return;
  }
  Json& section = config[path.substr(0, dot)];
  if (!section.is_object()) section = Json::object();
  section[path.substr(dot + 1)] = std::move(value);
}

}  // namespace trireme
