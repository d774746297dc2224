#include "config/parse.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/file.h"
#include "base/log.h"
#include "base/missing_path.h"
#include "base/program_files.h"
#include "base/units.h"
#include "config/aliases.h"
#include "config/contradictions.h"
#include "config/dropout.h"
#include "config/fields.h"
#include "config/json_numbers.h"
#include "config/merge.h"
#include "config/model_parse.h"
#include "config/unbuilt.h"
#include "config/value_names.h"

namespace trireme {

namespace {

/// "4k" of a length, which is as often a power of two: the numbers that it may be; "" for no count.
std::string ambiguity_of(const Json& value) {
  const auto decimal = value.is_string() ? parse_count(value.as_string()) : std::nullopt;
  if (!decimal) return "";
  double binary = static_cast<double>(*decimal);
  const auto thousands = std::string_view("kMBT").find(value.as_string().back());
  for (std::size_t i = 0; i <= (thousands == std::string_view::npos ? 0 : thousands); ++i)
    binary *= 1.024;
  return fmt::format("may be {} or {:.0f}: write the number", *decimal, binary);
}

std::string fault_of(const Field& field, const Json& value) {
  const std::string wanted = field.json_type();
  const bool number = wanted == "integer" || wanted == "number";
  if (overflowed_number(value)) return "is more than a number can hold";
  if (wanted == "integer" && value.is_string()) {
    if (const std::string text = ambiguity_of(value); field.row.plain && !text.empty()) return text;
    if (!field.row.plain && integer_with_unit(value, field.row)) return "is out of range";
  }
  if (number && value.is_number()) {
    return wanted == "integer" && !exact_integer(value) ? "must be a whole number"
                                                        : "is out of range";
  }
  if (wanted == "string" && value.is_string())
    return field.values.empty() ? "is no text" : "is no known choice";
  if (wanted == "array" && value.is_array()) {
    return value.as_array().empty() ? "is empty" : "has elements that are not legal";
  }
  if (wanted.empty()) return "has no legal form";
  return fmt::format(
      "is {} where {} {} belongs", value.kind_name(),
      std::string_view("aio").find(wanted.front()) == std::string_view::npos ? "a" : "an", wanted);
}

/// Of an integer for which a text stands: units, too.
std::string legal_of(const Field& field, const Json& value) {
  if (field.json_type() != "integer" || field.row.plain || !value.is_string()) return field.legal;
  return field.legal + (field.row.unit == "bytes"
                            ? R"(, or a text with KB ... TB, KiB ... TiB: "2GiB")"
                            : R"(, or a text with k, M, B or T: "10k")");
}

void report_unknown(const std::string& path, const Json& value, const std::string& legal,
                    std::vector<Problem>& problems) {
  if (is_future_key(path)) {
    problems.push_back({path, shown(value), "leave it out", "", kNotInThisVersion});
    return;
  }
  Problem problem{path, shown(value), legal, "", kUnknownKey};
  if (problems.size() < kProblemsShown) problem.nearest = nearest_key(path);
  if (const Field* field = find_field(problem.nearest)) {
    constexpr std::size_t kValueBytesMax = 200;
    problem.value = translated_value(*field, path, value);
    if (problem.value.size() > kValueBytesMax) problem.value.clear();
  }
  if (problem.nearest.starts_with("model.") && !value.is_object()) problem.value = shown(value);
  problems.push_back(std::move(problem));
}

void check_unknown_keys(const Json& given, std::vector<Problem>& problems) {
  const auto unknown = [&](const std::string& path, const Json& value, const std::string& legal) {
    report_unknown(path, value, legal, problems);
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

std::vector<Problem> faults_within(const Field& field, const Json& value) {
  return field.faults_within ? field.faults_within(value) : std::vector<Problem>();
}

void read_fields(const Json& given, LoadedConfig& loaded) {
  const std::set<std::string> meant = keys_meant(loaded.problems);
  for (const Field& field : fields()) {
    const Json* value = given_value(given, field);
    if (value == nullptr || value->is_null()) {
      if (field.row.presence == Presence::kRequired && !meant.contains(field.path)) {
        loaded.problems.push_back({field.path, "nothing", field.legal, "", "is required"});
      }
    } else if (field.assign(*value, loaded.config)) {
      continue;
    } else if (auto within = faults_within(field, *value); !within.empty()) {
      std::ranges::move(within, std::back_inserter(loaded.problems));
    } else {
      loaded.problems.push_back({field.path, shown(*value), legal_of(field, *value),
                                 nearest_value(field, *value), fault_of(field, *value)});
    }
  }
}

/// The file that a CONFIG means: itself, or the config.json of a run's folder.
std::filesystem::path file_of(const std::filesystem::path& config) {
  if (!is_there(config)) {
    const std::string first = program_file_to_type("configs/tiny_llama.json");
    throw DataError("{}. A first config to copy and change: {} (`train {}` takes seconds)",
                    missing_path_text(config), first, first);
  }
  if (!is_folder(config)) return config;
  const std::filesystem::path file = config / "config.json";
  if (is_there(file)) return file;
  throw DataError(
      "{}: is a folder without a config.json. Give a config file, or the folder of a run, whose "
      "config.json is then taken",
      config.string());
}

/// One file: an object, its duplicate keys noted.
Json read_one(const std::filesystem::path& config, std::vector<Problem>& problems) {
  const std::filesystem::path file = file_of(config);
  std::vector<std::string> duplicates;
  Json json = read_config_file(file, duplicates);
  for (const std::string& key : duplicates) {
    problems.push_back({key, "twice", "once", "", "the key stands twice in " + file.string()});
  }
  if (!json.is_object()) {
    problems.push_back({"", shown(json), "an object", "", file.string() + " holds no object"});
    return Json::object();
  }
  if (json.find("model_type") != nullptr && json.find("run") == nullptr) {
    throw ConfigError(
        "{}: holds a model's config, not a run's. Give it to a config as its model: --set model={}",
        file.string(), file.string());
  }
  return json;
}

void take_model(const Json& given, const ModelFinder& find, LoadedConfig& loaded) {
  const std::string& weights = loaded.config.init.weights;
  const Json* model = given.find("model");
  const bool named = model != nullptr && !model->is_null();
  // That neither is given, check_contradictions reports.
  if (!named && (weights == "random" || has_problem_in(loaded.problems, "init"))) return;
  try {
    const Json found = named  ? *model
                       : find ? find(loaded.config, loaded.notes)
                              : model_of_weights(weights);
    loaded.config.model = read_model(found, loaded.problems, loaded.notes);
  } catch (const Error& error) {
    loaded.problems.push_back(problem_of(error, named ? "model" : "init.weights"));
  }
  if (!loaded.config.has_model()) return;
  loaded.config.model_json = loaded.config.model.source;
  take_dropout(loaded.config, loaded.notes);
}

void parse_into(const Json& given, LoadedConfig& loaded, const ModelFinder& find = {}) {
  check_unknown_keys(given, loaded.problems);
  read_fields(given, loaded);
  take_model(given, find, loaded);
  check_contradictions(given, loaded);
  loaded.given = given;
  expect(loaded.config.has_model() || !loaded.problems.empty(), "a config without a model");
}

}  // namespace

LoadedConfig parse_run_config(const Json& merged) {
  expect(merged.is_object(), "a merged config that is {}", merged.kind_name());
  LoadedConfig loaded;
  parse_into(merged, loaded);
  return loaded;
}

LoadedConfig read_run_config(const ConfigInput& input, const ModelFinder& find) {
  LoadedConfig loaded;
  Json merged = Json::object();
  for (const auto& file : input.files) merge_config(merged, read_one(file, loaded.problems));
  for (const std::string& text : input.overrides) apply_override(merged, text, loaded.problems);
  parse_into(merged, loaded, find);
  return loaded;
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
