#pragma once
// optimizer.groups: what a run says of some of its parameters.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Of the parameters whose names hold `match` somewhere; in it * stands for any letters, ? for one.
struct ParamGroup {
  std::string match;
  double lr_scale = 1;                 ///< times the learning rate
  std::optional<double> weight_decay;  ///< in place of the optimizer's; of vectors too
  bool trainable = true;
  friend bool operator==(const ParamGroup&, const ParamGroup&) = default;
};
using ParamGroups = std::vector<ParamGroup>;

/// Whether `name` holds `match`.
bool is_matched(std::string_view name, std::string_view match);

/// The first group that a name is of; null: none.
const ParamGroup* group_of(const ParamGroups& groups, std::string_view name);

/// "optimizer.groups[2]".
std::string group_path(std::size_t index);

}  // namespace trireme
