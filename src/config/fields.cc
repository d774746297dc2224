#include "config/fields.h"

namespace trireme {

const Field* find_field(std::string_view path) {
  for (const Field& field : fields()) {
    if (field.path == path) return &field;
  }
  return nullptr;
}

const std::vector<std::string>& sections() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Field& field : fields()) {
      const std::string name(field.section());
      if (!name.empty() && (list.empty() || list.back() != name)) list.push_back(name);
    }
    return list;
  }();
  return names;
}

std::string_view Field::section() const {
  const auto dot = path.find('.');
  return dot == std::string::npos ? std::string_view() : std::string_view(path).substr(0, dot);
}

std::string Field::json_type() const {
  const Json* type = schema.find("type");
  if (type == nullptr && schema.find("anyOf") != nullptr && !row.plain) {
    const Json& first = schema.find("anyOf")->as_array().front();
    type = first.find("type");  // an integer, or a text with a unit
    if (type == nullptr || *type != Json("integer")) return "";
  }
  return type != nullptr && type->is_string() ? type->as_string() : "";
}

std::string_view Field::key() const {
  const auto dot = path.find('.');
  return dot == std::string::npos ? std::string_view(path) : std::string_view(path).substr(dot + 1);
}

}  // namespace trireme
