#include "config/problem.h"

#include <algorithm>
#include <cctype>
#include <numeric>

#include "base/readable.h"
#include "config/fields.h"
#include "config/json_numbers.h"

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

std::string format_problem(const Problem& problem) {
  std::string line = problem.path.empty() ? "config" : problem.path;
  line += ": " + problem.message + ".";
  std::string facts;
  const auto add = [&](std::string_view label, const std::string& text) {
    if (text.empty()) return;
    facts += facts.empty() ? " " : "; ";
    facts.append(label).append(text);
  };
  add("Found ", problem.found);
  add("legal: ", problem.legal);
  add("nearest: ", problem.nearest);
  if (!facts.empty()) line += facts + ".";
  // One problem is one line, whatever a hostile key holds.
  constexpr std::size_t kBytesMax = 1000;
  return readable(line, LineFeeds::kEscaped, kBytesMax);
}

Problem problem_of(const Error& error, std::string_view otherwise) {
  const std::string_view text = error.what();
  const std::size_t colon = text.find(": ");
  const bool names_key =
      colon != std::string_view::npos && find_field(text.substr(0, colon)) != nullptr;
  return {std::string(names_key ? text.substr(0, colon) : otherwise), "", "", "",
          std::string(names_key ? text.substr(colon + 2) : text)};
}

std::string format_problems(const std::vector<Problem>& problems) {
  std::string text =
      problems.size() == 1
          ? std::string("the config has a fault (nothing was started):")
          : fmt::format("the config has {} faults (nothing was started):", problems.size());
  const std::size_t told = std::min(problems.size(), kProblemsTold);
  for (std::size_t i = 0; i < told; ++i) text += "\n  " + format_problem(problems[i]);
  if (told < problems.size()) text += fmt::format("\n  and {} more", problems.size() - told);
  return text;
}

void throw_problems(const std::vector<Problem>& problems) {
  if (!problems.empty()) throw ConfigError("{}", format_problems(problems));
}

Json problems_json(const std::vector<Problem>& problems) {
  Json list = Json::array();
  for (const Problem& problem : problems) {
    list.push_back(Json::Object{{"path", problem.path},
                                {"found", problem.found},
                                {"legal", problem.legal},
                                {"nearest", problem.nearest},
                                {"message", problem.message}});
  }
  return list;
}

std::string shown(const Json& value) {
  if (const auto number = overflowed_number(value)) return *number;
  constexpr std::size_t kLengthMax = 60;
  std::string text = value.dump();
  if (text.size() <= kLengthMax) return text;
  std::size_t end = kLengthMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U)
    --end;  // whole UTF-8 characters
  return text.substr(0, end) + "...";
}

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
