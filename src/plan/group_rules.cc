#include "plan/group_rules.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/nearest_word.h"
#include "model/param_table.h"

namespace trireme {

namespace {

/// Whole names, and what stands between their dots.
std::vector<std::string> words_of(const std::vector<std::string>& names) {
  std::set<std::string> words(names.begin(), names.end());
  for (const std::string& name : names) {
    for (std::size_t begin = 0; begin < name.size();) {
      const std::size_t end = std::min(name.find('.', begin), name.size());
      words.insert(name.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return {words.begin(), words.end()};
}

/// Why no parameter's first group is this one.
Problem without_parameters(const RunConfig& config, std::size_t index,
                           const std::vector<std::string>& names) {
  const std::string& match = config.optimizer.groups[index].match;
  const std::string path = group_path(index) + ".match", found = shown(Json(match));
  const auto matched = [&](const std::string& name) { return is_matched(name, match); };
  if (std::any_of(names.begin(), names.end(), matched)) {
    return {path, found, "a group before those that name as much", "",
            "names only parameters of groups before it: the first that a name is of counts"};
  }
  const std::string nearest = nearest_word(match, words_of(names)).value_or("");
  return {path, found, "a part of a trained parameter's name, * for any letters, ? for one",
          nearest.empty() ? "" : shown(Json(nearest)),
          config.lora.given() ? "is in the name of no adapter, and nothing else is trained (lora)"
                              : "is in no name of this model's parameters"};
}

/// What is one product with a parameter that is trained, and is not trained itself.
void check_fused(const RunConfig& config, const std::vector<ParamMeta>& metas,
                 std::vector<Problem>& problems) {
  std::set<std::string> reported;
  for (std::size_t i = 1; i < metas.size(); ++i) {
    const ParamMeta &before = metas[i - 1], &after = metas[i];
    if (after.fuse != Fuse::kWithPrevious || before.trainable == after.trainable) continue;
    const ParamMeta &frozen = before.trainable ? after : before,
                    &other = before.trainable ? before : after;
    const ParamGroups& groups = config.optimizer.groups;
    const auto index = static_cast<std::size_t>(group_of(groups, frozen.name) - groups.data());
    if (!reported.insert(groups[index].match).second) continue;
    problems.push_back({group_path(index) + ".match", shown(Json(groups[index].match)),
                        "all projections of one input together, as q_proj, k_proj and v_proj", "",
                        fmt::format("freezes {} and not {}, whose gradients are one product",
                                    frozen.name, other.name)});
  }
}

}  // namespace

void check_groups(const RunConfig& config, std::vector<Problem>& problems) {
  const ParamGroups& groups = config.optimizer.groups;
  if (groups.empty()) return;
  ModelConfig plain = config.model;
  plain.groups.clear();
  std::vector<std::string> names;
  for (const ParamMeta& meta : declare_params(plain).metas) {
    if (meta.trainable && meta.shares == kNoParam) names.push_back(meta.name);
  }
  std::set<std::size_t> used;
  bool trains = false;
  for (const std::string& name : names) {
    const ParamGroup* group = group_of(groups, name);
    trains = trains || group == nullptr || group->trainable;
    if (group != nullptr) used.insert(static_cast<std::size_t>(group - groups.data()));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!used.contains(i)) problems.push_back(without_parameters(config, i, names));
  }
  if (!trains) {
    problems.push_back({"optimizer.groups", "trainable false of all parameters",
                        "groups that leave something to train", "", "leaves nothing to train"});
    return;
  }
  check_fused(config, declare_params(config.model).metas, problems);
}

}  // namespace trireme
