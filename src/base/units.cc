#include "base/units.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>

#include "base/error.h"

namespace trireme {

namespace {

using Unit = std::pair<std::string_view, double>;

/// The number times its unit, where that is one of these.
std::optional<double> scaled(std::string_view text, std::span<const Unit> units) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view digits = text.substr(0, end);
  if (digits.empty() || digits.front() == '.' || digits.back() == '.') return std::nullopt;
  double number = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || stop != digits.data() + digits.size()) return std::nullopt;
  std::string_view unit = text.substr(end);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : units) {
    if (unit == name && number * factor < 0x1p62) return number * factor;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> parse_count(std::string_view text) {
  static constexpr Unit kUnits[] = {{"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
  const auto count = scaled(text, kUnits);
  constexpr double kRounding = 1e-6;  // of decimal fractions in double
  if (!count || std::abs(*count - std::round(*count)) > kRounding) return std::nullopt;
  return static_cast<std::int64_t>(std::round(*count));
}

std::optional<std::int64_t> parse_size(std::string_view text) {
  static constexpr Unit kUnits[] = {{"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},
                                    {"GB", 1e9},     {"TB", 1e12},    {"KiB", 0x1p10},
                                    {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  const auto bytes = scaled(text, kUnits);
  return bytes ? std::optional(static_cast<std::int64_t>(std::floor(*bytes))) : std::nullopt;
}

std::int64_t parse_bytes(std::string_view text, std::string_view what) {
  static constexpr Unit kPlain[] = {{"", 1}, {"B", 1}};
  auto bytes = parse_size(text);
  if (!bytes) {
    if (const auto plain = scaled(text, kPlain))
      bytes = static_cast<std::int64_t>(std::floor(*plain));
  }
  if (bytes && *bytes > 0) return *bytes;
  throw ConfigError("{}: \"{}\" is not a size such as 80GiB, 1.5GB or 4096", what, text);
}

}  // namespace trireme
