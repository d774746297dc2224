#include "config/problem.h"

#include <algorithm>

#include "base/readable.h"
#include "config/aliases.h"
#include "config/fields.h"
#include "config/json_numbers.h"

namespace trireme {

namespace {

/// kConfig unless all are of another code.
ExitCode common_code(const std::vector<Problem>& problems) {
  const bool of_config = std::any_of(problems.begin(), problems.end(), [](const Problem& problem) {
    return problem.code == ExitCode::kConfig;
  });
  return of_config || problems.empty() ? ExitCode::kConfig : problems.front().code;
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
  add("nearest: ", problem.value.empty() || problem.nearest.empty()
                       ? problem.nearest
                       : fmt::format("{} = {}", problem.nearest, problem.value));
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
  std::string_view message = names_key ? text.substr(colon + 2) : text;
  if (message.ends_with('.')) message.remove_suffix(1);  // format_problem sets its own
  return {std::string(names_key ? text.substr(0, colon) : otherwise),
          "",
          "",
          "",
          std::string(message),
          "",
          error.code()};
}

bool has_problem_in(const std::vector<Problem>& problems, std::string_view section) {
  return std::any_of(problems.begin(), problems.end(), [&](const Problem& problem) {
    return problem.path == section ||
           (problem.path.starts_with(section) && problem.path[section.size()] == '.');
  });
}

std::string format_problems(const std::vector<Problem>& problems) {
  // A fault of a file is one line.
  const bool of_files = common_code(problems) != ExitCode::kConfig;
  const std::string_view separator = of_files ? " " : "\n  ";
  std::string text = problems.size() == 1
                         ? std::string(of_files ? "nothing was started:"
                                                : "the config has a fault (nothing was started):")
                         : fmt::format("{} {}{} (nothing was started):",
                                       of_files ? "what the config names has" : "the config has",
                                       problems.size(), " faults");
  const std::size_t told = std::min(problems.size(), kProblemsShown);
  std::set<std::string> lists;
  for (std::size_t i = 0; i < told; ++i) {
    Problem problem = problems[i];
    constexpr std::size_t kListBytes = 48;  // beyond the legal values of most keys
    if (problem.message == kUnknownKey && problem.legal.size() > kListBytes) {
      // Who is shown the key that was meant needs no list of all of them.
      if (!problem.nearest.empty() || !lists.insert(problem.legal).second) problem.legal.clear();
    }
    text.append(separator).append(format_problem(problem));
  }
  if (told < problems.size())
    text += fmt::format("{}and {} more", separator, problems.size() - told);
  return text;
}

void throw_problems(const std::vector<Problem>& problems) {
  if (problems.empty()) return;
  const ExitCode code = common_code(problems);
  const std::string text = format_problems(problems);
  if (code == ExitCode::kConfig) throw ConfigError("{}", text);
  if (code == ExitCode::kData) throw DataError("{}", text);
  throw Error(code, text);
}

Json problems_json(const std::vector<Problem>& problems) {
  Json list = Json::array();
  for (const Problem& problem : problems) {
    list.push_back(Json::Object{{"path", problem.path},
                                {"found", problem.found},
                                {"legal", problem.legal},
                                {"nearest", problem.nearest},
                                {"message", problem.message}});
    if (!problem.value.empty()) list.as_array().back()["value"] = problem.value;
  }
  return list;
}

std::set<std::string> keys_meant(const std::vector<Problem>& problems) {
  std::set<std::string> keys;
  for (const Problem& problem : problems) {
    if (problem.message == kUnknownKey && !known_key(problem.path).empty())
      keys.insert(problem.nearest);
  }
  return keys;
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

}  // namespace trireme
