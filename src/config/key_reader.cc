#include "config/key_reader.h"

#include <algorithm>

#include "config/json_numbers.h"

namespace trireme {

std::string KeyOrigin::file_of(std::string_view key) const {
  return std::find(typed.begin(), typed.end(), key) == typed.end() ? file : std::string();
}

const Json* KeyReader::find(std::string_view key) const {
  const Json* value = keys_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void KeyReader::report(std::string_view key, std::string legal, std::string nearest,
                       std::string message) {
  const Json* value = keys_.find(key);
  if (const std::string file = origin_.file_of(key); !file.empty())
    message += fmt::format(" (in {})", file);
  origin_.problems.push_back({prefix_ + std::string(key),
                              value == nullptr ? "nothing" : shown(*value), std::move(legal),
                              std::move(nearest), std::move(message)});
}

void KeyReader::unknown(std::string_view key, const std::function<std::string()>& nearest) {
  const std::string file = origin_.file_of(key);
  if (file.empty()) {
    report(key, "a key of transformers for this model_type",
           origin_.problems.size() < kProblemsShown ? nearest() : "", "unknown key");
  } else {
    origin_.notes.push_back(
        fmt::format("{}: the key {}{} is unknown and not applied", file, prefix_, key));
  }
}

std::optional<std::int64_t> KeyReader::integer(std::string_view key, Integers range) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = exact_integer(*value);
  if (number && *number >= range.from && *number <= range.to) return number;
  const std::string nearest =
      number ? std::to_string(std::clamp(*number, range.from, range.to)) : std::string();
  report(key, fmt::format("an integer from {} to {}", range.from, range.to), nearest,
         number ? "is out of range" : "is no whole number");
  return std::nullopt;
}

std::optional<double> KeyReader::real(std::string_view key, Reals range) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = finite_number(*value);
  const bool above = number && (range.from_excluded ? *number > range.from : *number >= range.from);
  if (above && *number <= range.to) return number;
  report(key,
         fmt::format("a number {} {} up to {}", range.from_excluded ? "above" : "from", range.from,
                     range.to),
         "", number ? "is out of range" : "is no number");
  return std::nullopt;
}

std::optional<bool> KeyReader::boolean(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->as_bool();
  report(key, "true or false", "", "is no truth value");
  return std::nullopt;
}

std::optional<std::string> KeyReader::text(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->as_string();
  report(key, "a string", "", "is no text");
  return std::nullopt;
}

}  // namespace trireme
