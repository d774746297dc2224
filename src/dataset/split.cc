#include "dataset/split.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace trireme {
namespace {
std::array<double, 3> parse_shares(std::string_view split) {
  const auto fault = [&] {
    return ConfigError(
        "data.split: \"{}\" is not up to three numbers with commas, such as \"969,30,1\"", split);
  };
  std::array<double, 3> shares{};
  std::size_t count = 0, at = 0;
  constexpr std::string_view kDigits = ".0123456789";
  while ((at = split.find_first_of(kDigits, at)) != std::string_view::npos) {
    const std::size_t end = std::min(split.find_first_not_of(kDigits, at), split.size());
    if (count == shares.size()) throw fault();
    const auto [stop, error] =
        std::from_chars(split.data() + at, split.data() + end, shares[count++]);
    if (error != std::errc() || stop != split.data() + end) throw fault();
    at = end;
  }
  const double sum = shares[0] + shares[1] + shares[2];
  if (!(sum > 0) || !std::isfinite(sum)) throw fault();
  for (double& share : shares) share /= sum;
  return shares;
}
}  // namespace

bool split_gives(std::string_view split, DataPart part) {
  return parse_shares(split)[static_cast<std::size_t>(part)] > 0;
}

std::array<SequenceRange, 3> split_sequences(std::string_view split, std::int64_t sequences) {
  const std::array<double, 3> shares = parse_shares(split);
  const auto count = static_cast<double>(sequences);
  std::array<SequenceRange, 3> parts;
  double low = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double high = low + shares[i];
    if (high > low) {
      // nearbyint rounds halves to even, as Python's round.
      parts[i].begin = static_cast<std::int64_t>(std::nearbyint(low * count));
      parts[i].end = static_cast<std::int64_t>(std::nearbyint(high * count));
    }
    low = high;
  }
  return parts;
}

}  // namespace trireme
