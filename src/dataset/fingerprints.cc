#include <fmt/core.h>

#include "dataset/indexed_file.h"
#include "dataset/sources.h"

namespace trireme {

namespace {

void add(const DataSource& data, Json& all) {
  for (const auto& [weight, prefix] : data.blend) {
    if (all.find(prefix) != nullptr) continue;
    const IndexedFile file(prefix);
    Json& one = all[prefix];
    one["documents"] = file.documents();
    one["tokens"] = file.tokens();
    one["hash"] = file.sampled_hash();
    if (file.has_mask()) one["mask"] = file.mask_hash();
  }
}

}  // namespace

Json data_fingerprints(const RunConfig& config) {
  Json all = Json::object();
  add(config.data.train, all);
  if (config.data.validation) {
    for (const auto& [name, data] : config.data.validation->sets) add(data, all);
  }
  return all;
}

std::vector<std::string> replaced_data(const Json& saved, const Json& now) {
  std::vector<std::string> lines;
  if (!saved.is_object()) return lines;
  for (const auto& [prefix, data] : now.as_object()) {
    const Json* before = saved.find(prefix);
    if (before == nullptr || *before == data) continue;
    std::string changes;
    for (const char* key : {"documents", "tokens"}) {
      const Json* old = before->find(key);
      const Json* current = data.find(key);
      if (old == nullptr || *old == *current) continue;
      changes += fmt::format("{}{} {} -> {}", changes.empty() ? "" : ", ", key, old->dump(),
                             current->dump());
    }
    lines.push_back(fmt::format(
        "{}.bin: other data than the checkpoint was trained on ({}): the samples from here on are "
        "those of the new files",
        prefix, changes.empty() ? "as many documents and tokens, and other ones" : changes));
  }
  return lines;
}

}  // namespace trireme
