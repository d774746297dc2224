#include "plan/size_text.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace trireme {

std::int64_t parse_bytes(std::string_view text, std::string_view what) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},        {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},    {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : kUnits) {
    const double bytes = number * factor;
    if (unit == name && error == std::errc() && bytes > 0 && bytes < 0x1p62) {
      return static_cast<std::int64_t>(std::floor(bytes));
    }
  }
  throw ConfigError("{}: \"{}\" is not a size such as 80GiB, 1.5GB or 4096", what, text);
}

}  // namespace trireme
