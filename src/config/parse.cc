#include "config/parse.h"

#include <cmath>
#include <cstdlib>

#include "base/log.h"
#include "config/aliases.h"
#include "config/contradictions.h"
#include "config/fields.h"
#include "config/json_numbers.h"
#include "config/merge.h"
#include "config/model_parse.h"
#include "config/unbuilt.h"

namespace trireme {

namespace {

std::string quoted(const std::string& word) { return Json(word).dump(); }

/// The legal value nearest to a wrong one, where that can be told; as JSON text.
std::string nearest_value(const Field& field, const Json& value) {
  if (value.is_string() && !field.values.empty()) {
    if (const auto word = nearest_word(value.as_string(), field.values)) return quoted(*word);
    return "";
  }
  double number = 0;
  if (const auto real = finite_number(value)) {
    number = *real;
  } else if (value.is_string() && !value.as_string().empty()) {
    char* end = nullptr;
    number = std::strtod(value.as_string().c_str(), &end);
    if (*end != '\0' || !std::isfinite(number)) return "";
  } else {
    return "";
  }
  const Json* type = field.schema.find("type");
  if (type == nullptr || !type->is_string()) return "";
  const bool integer = type->as_string() == "integer";
  if (!integer && type->as_string() != "number") return "";
  if (number < field.row.minimum) number = field.row.minimum;
  if (number > field.row.maximum) number = field.row.maximum;
  if (integer) number = std::round(number);
  const Json nearest = integer ? Json(static_cast<std::int64_t>(number)) : Json(number);
  RunConfig scratch;
  return field.assign(nearest, scratch) ? nearest.dump() : "";
}

std::string fault_of(const Field& field, const Json& value) {
  const Json* type = field.schema.find("type");
  const std::string wanted = type != nullptr && type->is_string() ? type->as_string() : "";
  const bool number = wanted == "integer" || wanted == "number";
  if (overflowed_number(value)) return "is more than a number can hold";
  if (number && value.is_number()) {
    return wanted == "integer" && !exact_integer(value) ? "must be a whole number"
                                                        : "is out of range";
  }
  if (wanted == "string" && value.is_string())
    return field.values.empty() ? "is no text" : "is no known choice";
  if (wanted == "array" && value.is_array()) return "has elements that are not legal";
  if (wanted.empty()) return "has no legal form";
  return fmt::format("is {} where {} {} belongs", value.kind_name(),
                     wanted == "integer" || wanted == "array" ? "an" : "a", wanted);
}

void check_unknown_keys(const Json& given, std::vector<Problem>& problems) {
  const auto unknown = [&](const std::string& path, const Json& value, const std::string& legal) {
    problems.push_back({path, shown(value), legal,
                        problems.size() < kProblemsTold ? nearest_key(path) : "", "unknown key"});
  };
  const auto list_of = [](std::string_view section) {
    std::string keys;
    for (const Field& field : fields()) {
      if (field.section() == section) keys.append(keys.empty() ? "" : ", ").append(field.key());
    }
    return keys;
  };
  std::string top = "model, tokenizer";
  for (const std::string& section : sections()) top += ", " + section;
  for (const auto& [key, value] : given.as_object()) {
    if (key == "model" || find_field(key) != nullptr) continue;
    if (key == "$schema") {
      if (!value.is_string()) {
        problems.push_back({key, shown(value), "a string", "", "names no schema"});
      }
      continue;
    }
    const std::string keys = list_of(key);
    if (keys.empty() || key.empty()) {
      unknown(key, value, top);
    } else if (!value.is_object()) {
      problems.push_back({key, shown(value), "an object with " + keys, "", "is no section"});
    } else {
      for (const auto& [name, inner] : value.as_object()) {
        const std::string path = fmt::format("{}.{}", key, name);
        if (find_field(path) == nullptr) unknown(path, inner, keys);
      }
    }
  }
}

const Json* given_value(const Json& given, const Field& field) {
  if (field.section().empty()) return given.find(field.key());
  const Json* section = given.find(field.section());
  return section == nullptr ? nullptr : section->find(field.key());
}

void read_fields(const Json& given, LoadedConfig& loaded) {
  for (const Field& field : fields()) {
    const Json* value = given_value(given, field);
    if (value == nullptr || value->is_null()) {
      if (field.row.presence == Presence::kRequired) {
        loaded.problems.push_back({field.path, "nothing", field.legal, "", "is required"});
      }
    } else if (!field.assign(*value, loaded.config)) {
      loaded.problems.push_back({field.path, shown(*value), field.legal,
                                 nearest_value(field, *value), fault_of(field, *value)});
    }
  }
}

/// One file: an object, its duplicate keys noted.
Json read_one(const std::filesystem::path& file, std::vector<Problem>& problems) {
  std::vector<std::string> duplicates;
  Json json = read_config_file(file, duplicates);
  for (const std::string& key : duplicates) {
    problems.push_back({key, "twice", "once", "", "the key stands twice in " + file.string()});
  }
  if (!json.is_object()) {
    problems.push_back({"", shown(json), "an object", "", file.string() + " holds no object"});
    return Json::object();
  }
  return json;
}

void parse_into(const Json& given, LoadedConfig& loaded) {
  check_unknown_keys(given, loaded.problems);
  read_fields(given, loaded);
  const Json* model = given.find("model");
  if (model != nullptr && !model->is_null()) {
    loaded.config.model = read_model(*model, loaded.problems, loaded.notes);
  } else {
    loaded.config.model =
        model_of_weights(loaded.config.init.weights, loaded.problems, loaded.notes);
  }
  if (loaded.config.has_model()) loaded.config.model_json = loaded.config.model.source;
  check_contradictions(given, loaded);
  check_unbuilt(given, loaded.problems);
}

}  // namespace

LoadedConfig parse_run_config(const Json& merged) {
  expect(merged.is_object(), "a merged config that is {}", merged.kind_name());
  LoadedConfig loaded;
  parse_into(merged, loaded);
  return loaded;
}

LoadedConfig read_run_config(const ConfigInput& input) {
  LoadedConfig loaded;
  Json merged = Json::object();
  for (const auto& file : input.files) merge_config(merged, read_one(file, loaded.problems));
  for (const std::string& text : input.overrides) apply_override(merged, text, loaded.problems);
  parse_into(merged, loaded);
  return loaded;
}

RunConfig load_run_config(const ConfigInput& input) {
  LoadedConfig loaded = read_run_config(input);
  throw_problems(loaded.problems);
  for (const std::string& note : loaded.notes) log_info_text(note);
  return std::move(loaded.config);
}

Json resolved_json(const RunConfig& config) {
  Json out = Json::object();
  for (const Field& field : fields()) {
    const Json value = field.read(config);
    if (field.path == "init.weights" && config.has_model()) out["model"] = config.model.source;
    if (value.is_null()) continue;
    if (field.section().empty()) {
      out[field.key()] = value;
    } else {
      out[field.section()][field.key()] = value;
    }
  }
  return out;
}

}  // namespace trireme
