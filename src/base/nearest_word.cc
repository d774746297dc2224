#include "base/nearest_word.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace trireme {

namespace {

std::string plain(std::string_view word) {
  std::string out;
  for (const char c : word) {
    if (c != '-' && c != '_') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

/// Optimal string alignment distance: insertion, deletion, substitution, swap of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        next[j] = std::min(next[j], before[j - 2] + 1);
      }
    }
    before.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> nearest_word(std::string_view word,
                                        const std::vector<std::string>& candidates) {
  const std::string wanted = plain(word);
  const std::string* best = nullptr;
  std::size_t best_distance = wanted.size() / 2 + 1;
  for (const std::string& candidate : candidates) {
    // The distance is at least the difference in length: a word of a megabyte is near nothing.
    if (wanted.size() > candidate.size() + best_distance) continue;
    const std::size_t distance = edit_distance(wanted, plain(candidate));
    if (distance < best_distance && distance < std::max<std::size_t>(candidate.size(), 1)) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

}  // namespace trireme
