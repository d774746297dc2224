#include "config/unbuilt.h"

#include <algorithm>
#include <utility>

#include "config/fields.h"

namespace trireme {

const std::vector<Unbuilt>& unbuilt_features() {
  static const std::vector<Unbuilt> list = {{"lora.dropout", {"0"}}};
  return list;
}

bool is_future_key(std::string_view path) {
  static constexpr std::string_view kKeys[] = {
      "log.blocks",    "log.prometheus",   "log.report",          "model_backend.dropout",
      "optimizer.ema", "optimizer.groups", "optimizer.matrix_lr", "parallel.offload"};
  static constexpr std::string_view kSections[] = {"stability"};
  const std::string_view section = path.substr(0, path.find('.'));
  return find_field(path) == nullptr &&
         (std::find(std::begin(kKeys), std::end(kKeys), path) != std::end(kKeys) ||
          std::find(std::begin(kSections), std::end(kSections), section) != std::end(kSections));
}

bool is_future_value(std::string_view path, const Json& value) {
  static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"model_backend.attention", "auto"}, {"optimizer.kind", "adafactor"},
      {"optimizer.kind", "lion"},          {"optimizer.kind", "muon"},
      {"optimizer.kind", "schedule-free"}, {"optimizer.state", "8bit"}};
  RunConfig scratch;
  const Field* field = find_field(path);
  if (field == nullptr || field->assign(value, scratch)) return false;
  if (path == "batch.global" && value.is_array()) return true;  // a ramp
  return value.is_string() &&
         std::any_of(std::begin(kWords), std::end(kWords), [&](const auto& word) {
           return word.first == path && word.second == value.as_string();
         });
}

void check_unbuilt(const Json& given, std::vector<Problem>& problems) {
  for (const Unbuilt& feature : unbuilt_features()) {
    const Field* field = find_field(feature.path);
    expect(field != nullptr, "{} is no field", feature.path);
    const Json* section = given.find(field->section());
    const Json* value = section == nullptr ? nullptr : section->find(field->key());
    RunConfig wanted;
    if (value == nullptr || !field->assign(*value, wanted))
      continue;  // not given, or a fault already
    std::string legal;
    const bool built =
        std::any_of(feature.built.begin(), feature.built.end(), [&](std::string_view text) {
          RunConfig works;
          field->assign(parse_json(text, feature.path), works);
          legal.append(legal.empty() ? "" : ", ").append(text);
          return field->read(works) == field->read(wanted);
        });
    if (built) continue;
    if (feature.built.empty()) legal = "leave it out";
    problems.push_back({field->path, shown(*value), legal,
                        feature.built.empty() ? "" : std::string(feature.built.back()),
                        kNotInThisVersion});
  }
}

}  // namespace trireme
