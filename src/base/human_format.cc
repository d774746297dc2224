#include "base/human_format.h"

#include <fmt/core.h>

#include <cmath>
#include <span>
#include <string_view>

namespace trireme {

namespace {

/// `value` with three significant digits, in the largest unit that leaves at least 1. A value that
/// rounds up to `base`
/// ("1000k") goes on to the next unit.
std::string scaled(double value, double base, std::span<const std::string_view> units) {
  std::size_t unit = 0;
  while (std::abs(value) >= base && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  if (unit > 0 && unit + 1 < units.size() && std::abs(value) >= base - 0.5) {
    value /= base;
    ++unit;
  }
  const double size = std::abs(value);
  const int decimals = unit == 0 && value == std::floor(value) ? 0
                       : size < 9.995                          ? 2
                       : size < 99.95                          ? 1
                                                               : 0;
  return fmt::format("{:.{}f}{}", value, decimals, units[unit]);
}

}  // namespace

std::string format_count(double value) {
  static constexpr std::string_view kUnits[] = {"", "k", "M", "B", "T"};
  if (!std::isfinite(value)) return "?";
  return scaled(value, 1000, kUnits);
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::string_view kUnits[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(static_cast<double>(bytes), 1024, kUnits);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) return "?";
  if (seconds == 0) return "0s";
  if (seconds < 9.995) return fmt::format("{:.2f}s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

std::string counted(std::int64_t count, std::string_view noun) {
  const std::string number = format_integer(count);
  if (count == 1) return fmt::format("{} {}", number, noun);
  for (const std::string_view end : {"ch", "sh", "x", "s"}) {
    if (noun.ends_with(end)) return fmt::format("{} {}es", number, noun);
  }
  if (noun.ends_with('y')) return fmt::format("{} {}ies", number, noun.substr(0, noun.size() - 1));
  return fmt::format("{} {}s", number, noun);
}

std::string format_integer(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

}  // namespace trireme
