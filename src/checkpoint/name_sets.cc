#include "checkpoint/name_sets.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"

namespace trireme {

std::set<std::string> union_of_names(const std::vector<std::string>& mine, Communicator& world) {
  const auto names_of = [](const std::string& text) {
    std::set<std::string> names;
    const Json parsed = parse_json(text, "names of a rank");
    for (const Json& name : parsed.as_array()) names.insert(name.as_string());
    return names;
  };
  const auto text_of = [](const auto& names) {
    Json list = Json::array();
    for (const std::string& name : names) list.push_back(name);
    return list.dump();
  };
  const std::string all =
      world.reduce_text(text_of(mine), [&](const std::string& lower, const std::string& higher) {
        std::set<std::string> names = names_of(lower);
        names.merge(names_of(higher));
        return text_of(names);
      });
  return names_of(world.broadcast_text(all, 0));
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
