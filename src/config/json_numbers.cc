#include "config/json_numbers.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/file.h"

namespace trireme {

namespace {

// A control character cannot stand in a JSON string as typed, and no text field takes one.
constexpr std::string_view kMark = "\x01number ";
constexpr std::string_view kMarkEscaped = "\\u0001number ";

bool overflows(const std::string& digits) {
  return std::isinf(std::strtod(digits.c_str(), nullptr));
}

/// Length of the string literal or comment that begins at `at`, 0 where none does.
std::size_t opaque_length(std::string_view text, std::size_t at) {
  if (text[at] == '"') {
    std::size_t end = at + 1;
    while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
    return std::min(end + 1, text.size()) - at;
  }
  if (text.substr(at, 2) == "//") return std::min(text.find('\n', at), text.size()) - at;
  if (text.substr(at, 2) == "/*") {
    const std::size_t end = text.find("*/", at + 2);
    return (end == std::string_view::npos ? text.size() : end + 2) - at;
  }
  return 0;
}

/// What a text that is not JSON is, by first bytes, name or lines; "" if unknown or JSON.
std::string_view other_format(const std::filesystem::path& file, std::string_view text) {
  if (text.starts_with("\x1f\x8b") || text.starts_with("\x28\xb5\x2f\xfd"))
    return "compressed (gzip or zstd)";
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  const std::string name = file.extension().string();
  if (text[first] == '{' || text.substr(first, 2) == "//") return "";
  if (name == ".yaml" || name == ".yml" || text.starts_with("---")) return "YAML";
  if (name == ".toml") return "TOML";
  if (name == ".py") return "Python";
  if (name == ".sh") return "a shell script";
  // "key: value" or "key = value" as the first line that is no comment, "[section]" in TOML.
  std::size_t at = first;
  while (at < text.size() && text[at] == '#') {
    at = text.find_first_not_of(" \t\r\n", std::min(text.find('\n', at), text.size()));
  }
  if (at >= text.size()) return "";
  const std::string_view line = text.substr(at, text.find('\n', at) - at);
  const auto word =
      line.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. ");
  if (word == 0 && line.front() == '[' && line.size() > 2 &&
      std::isalpha(static_cast<unsigned char>(line[1])) != 0)
    return "TOML";
  if (word == std::string_view::npos || word == 0) return "";
  return line[word] == ':' ? "YAML" : line[word] == '=' ? "TOML or Python" : "";
}

std::string mark_overflows(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = opaque_length(text, at);
    if (length == 0) {
      const std::size_t end = text.find_first_not_of("0123456789+-.eE", at);
      length = (end == std::string_view::npos ? text.size() : end) - at;
      const std::string digits(text.substr(at, length));
      if (length > 2 && digits.find_first_of("0123456789") != std::string::npos &&
          overflows(digits)) {
        out.append("\"").append(kMarkEscaped).append(digits).append("\"");
        at += length;
        continue;
      }
    }
    length = std::max<std::size_t>(length, 1);
    out += text.substr(at, length);
    at += length;
  }
  return out;
}

}  // namespace

std::optional<std::int64_t> exact_integer(const Json& value) {
  if (value.is_integer()) return value.as_integer();
  if (!value.is_number()) return std::nullopt;
  constexpr double kLargest = 9007199254740992.0;  // 2^53
  const double real = value.as_double();
  if (!(std::abs(real) <= kLargest) || real != std::floor(real)) return std::nullopt;
  return static_cast<std::int64_t>(real);
}

std::optional<double> finite_number(const Json& value) {
  if (!value.is_number() || !std::isfinite(value.as_double())) return std::nullopt;
  return value.as_double();
}

Json read_config_file(const std::filesystem::path& file, std::vector<std::string>& duplicates) {
  constexpr std::size_t kBytesMax = std::size_t{1} << 20, kKeysMax = 10'000;
  const std::string text = read_file(file, kBytesMax);
  JsonRules rules{.code = ExitCode::kConfig, .comments = true};
  rules.keys_max = kKeysMax;
  rules.duplicates = &duplicates;
  try {
    return parse_json(text, file.string(), rules);
  } catch (const Error& error) {
    if (std::string_view(error.what()).find("overflow") == std::string_view::npos) {
      if (const std::string_view other = other_format(file, text); !other.empty()) {
        throw ConfigError(
            "{}: is {}, and a config is JSON ({{\"run\": {{...}}, ...}}; // comments are allowed). "
            "{}",
            file.string(), other,
            other.starts_with("compressed") ? "Unpack it"
                                            : "Write it as JSON; `train schema` has all keys");
      }
      throw;
    }
  }
  duplicates.clear();
  return parse_json(mark_overflows(text), file.string(), rules);
}

std::optional<std::string> overflowed_number(const Json& value) {
  if (!value.is_string() || !value.as_string().starts_with(kMark)) return std::nullopt;
  return value.as_string().substr(kMark.size());
}

}  // namespace trireme
