#include "config/param_group.h"

#include <fmt/core.h>

namespace trireme {

bool is_matched(std::string_view name, std::string_view match) {
  // Behind the last *, which one before the match is too; and the first letter that it leaves.
  std::size_t star = 0, left = 0, at = 0;
  for (std::size_t of_match = 0; of_match < match.size();) {
    if (match[of_match] == '*') {
      star = ++of_match;
      left = at;
    } else if (at < name.size() && (match[of_match] == '?' || match[of_match] == name[at])) {
      ++at;
      ++of_match;
    } else if (left < name.size()) {
      at = ++left;
      of_match = star;
    } else {
      return false;
    }
  }
  return true;
}

const ParamGroup* group_of(const ParamGroups& groups, std::string_view name) {
  for (const ParamGroup& group : groups) {
    if (is_matched(name, group.match)) return &group;
  }
  return nullptr;
}

std::string group_path(std::size_t index) { return fmt::format("optimizer.groups[{}]", index); }

}  // namespace trireme
