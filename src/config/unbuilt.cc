#include "config/unbuilt.h"

#include <algorithm>
#include <utility>

#include "config/fields.h"

namespace trireme {

bool is_future_key(std::string_view path) {
  static constexpr std::string_view kKeys[] = {"parallel.offload"};
  return find_field(path) == nullptr &&
         std::find(std::begin(kKeys), std::end(kKeys), path) != std::end(kKeys);
}

bool is_future_value(std::string_view path, const Json& value) {
  static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"optimizer.kind", "adafactor"}};
  RunConfig scratch;
  const Field* field = find_field(path);
  if (field == nullptr || field->assign(value, scratch)) return false;
  return value.is_string() &&
         std::any_of(std::begin(kWords), std::end(kWords), [&](const auto& word) {
           return word.first == path && word.second == value.as_string();
         });
}

}  // namespace trireme
