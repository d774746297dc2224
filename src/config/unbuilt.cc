#include "config/unbuilt.h"

#include <algorithm>

#include "config/fields.h"

namespace trireme {

const std::vector<Unbuilt>& unbuilt_features() {
  static const std::vector<Unbuilt> list = {
      {"precision.compute", {R"("fp32")", R"("bf16")"}},
      {"precision.wire", {R"("fp32")"}},
      {"parallel.expert", {"1"}},
  };
  return list;
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
                        "not in this version"});
  }
}

}  // namespace trireme
