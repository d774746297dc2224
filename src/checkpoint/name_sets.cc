#include "checkpoint/name_sets.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"

namespace trireme {

std::set<std::string> union_of_names(const std::vector<std::string>& mine, Communicator& world) {
  Json list = Json::array();
  for (const std::string& name : mine) list.push_back(name);
  std::set<std::string> names;
  for (const std::string& theirs : world.all_gather_text(list.dump())) {
    const Json parsed = parse_json(theirs, "names of a rank");
    for (const Json& name : parsed.as_array()) names.insert(name.as_string());
  }
  return names;
}

std::string listed(const std::vector<std::string>& names, std::size_t names_max) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), names_max); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > names_max) text += fmt::format(" and {} more", names.size() - names_max);
  return text;
}

std::string mismatch_text(const std::vector<std::string>& missing,
                          const std::vector<std::string>& surplus) {
  constexpr std::size_t kNamesMax = 20;
  std::string text;
  if (!missing.empty()) text += fmt::format(" Missing: {}.", listed(missing, kNamesMax));
  if (!surplus.empty()) text += fmt::format(" Not in the model: {}.", listed(surplus, kNamesMax));
  return text;
}

}  // namespace trireme
