#include "config/schema.h"

#include <algorithm>

namespace trireme {

namespace {

Json required(std::initializer_list<const char*> keys) {
  Json list = Json::array();
  for (const char* key : keys) list.push_back(key);
  return Json::Object{{"required", std::move(list)}};
}

Json default_of(const Field& field) {
  static const RunConfig defaults;
  return field.row.presence == Presence::kRequired ? Json() : field.read(defaults);
}

Json property(const Field& field) {
  Json json = Json::Object{{"description", describe(field)}};
  for (const auto& [key, value] : field.schema.as_object()) json[key] = value;
  if (const Json value = default_of(field); !value.is_null()) json["default"] = value;
  Json examples = Json::array();
  if (!field.row.example.empty()) examples.push_back(parse_json(field.row.example, field.path));
  if (field.schema.find("enum") == nullptr) {
    for (const std::string& word : field.values) examples.push_back(word);
  }
  if (!examples.as_array().empty()) json["examples"] = examples;
  return json;
}

Json model_property() {
  return Json::Object{
      {"description",
       "Keys of a Hugging Face config (model_type llama, mistral, ministral, ministral3, qwen2, "
       "qwen3, smollm3, olmo2, olmo3, gemma3_text, qwen2_moe, qwen3_moe, mixtral, olmoe, "
       "glm4_moe, deepseek_v3, gpt_oss or gpt2; a "
       "missing key takes transformers' default), or the path of a config.json or of its "
       "directory, or {\"path\": P, key: "
       "override}. "
       "Taken from init.weights where it is left out. Megatron: --num-layers --hidden-size ...; "
       "transformers: config_name; torchtitan: model.flavor"},
      {"type", Json::Array{"object", "string"}},
      {"minLength", 1},
      {"anyOf",
       Json::Array{Json::Object{{"type", "string"}}, required({"model_type"}), required({"path"})}},
      {"examples", Json::Array{"configs/models/llama.json", Json::Object{{"model_type", "llama"},
                                                                         {"hidden_size", 256},
                                                                         {"num_hidden_layers", 4},
                                                                         {"num_attention_heads", 4},
                                                                         {"intermediate_size", 688},
                                                                         {"vocab_size", 257}}}}};
}

/// Rules between keys of one section that need neither mesh nor model.
void add_rules(std::string_view section, Json& json) {
  if (section == "run") {
    json["oneOf"] = Json::Array{required({"steps"}), required({"tokens"}), required({"epochs"})};
  } else if (section == "data") {
    json["not"] = required({"split", "validation"});
    json["properties"]["split"]["pattern"] =
        R"(^(?=[0-9.]*[1-9])[0-9]+(\.[0-9]+)?(,[0-9]+(\.[0-9]+)?){0,2}$)";
  } else if (section == "batch") {
    json["anyOf"] = Json::Array{required({"micro"}), required({"global"})};
  }
}

Json section_schema(const std::string& section) {
  Json properties = Json::object(), needed = Json::array();
  for (const Field& field : fields()) {
    if (field.section() != section) continue;
    properties[field.key()] = property(field);
    if (field.row.presence == Presence::kRequired) needed.push_back(field.key());
  }
  Json json =
      Json::Object{{"type", "object"}, {"additionalProperties", false}, {"properties", properties}};
  if (!needed.as_array().empty()) json["required"] = needed;
  add_rules(section, json);
  return json;
}

/// "model", or an init.weights that brings one.
Json model_rule() {
  const Json weights = Json::Object{{"not", Json::Object{{"const", "random"}}}};
  Json init = required({"weights"});
  init["properties"] = Json::Object{{"weights", weights}};
  Json from_weights = required({"init"});
  from_weights["properties"] = Json::Object{{"init", init}};
  return Json::Array{required({"model"}), from_weights};
}

}  // namespace

std::string describe(const Field& field) {
  std::string text = fmt::format("{}.", field.row.text);
  if (!field.row.unit.empty()) text += fmt::format(" Unit: {}.", field.row.unit);
  if (!field.row.default_text.empty()) text += fmt::format(" Default: {}.", field.row.default_text);
  const OtherNames& peers = field.row.peers;
  const std::pair<std::string_view, std::string_view> names[] = {
      {"Megatron", peers.megatron},
      {"DeepSpeed", peers.deepspeed},
      {"transformers", peers.transformers},
      {"torchtitan", peers.torchtitan}};
  std::string elsewhere;
  for (const auto& [system, name] : names) {
    if (!name.empty())
      elsewhere += fmt::format("{}{}: {}", elsewhere.empty() ? " " : "; ", system, name);
  }
  return text + elsewhere;
}

Json config_schema() {
  Json properties = Json::object();
  properties["$schema"] =
      Json::Object{{"description", "Of this file, for editors"}, {"type", "string"}};
  for (const Field& field : fields()) {
    const std::string section(field.section());
    if (field.path == "init.weights") properties["model"] = model_property();
    if (section.empty()) {
      properties[field.key()] = property(field);
    } else if (properties.find(section) == nullptr) {
      properties[section] = section_schema(section);
    }
  }
  Json schema = Json::object();
  schema["$schema"] = "http://json-schema.org/draft-07/schema#";
  schema["title"] = "Config of a training run";
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["properties"] = properties;
  schema["required"] = Json::Array{"run", "data", "batch", "optimizer"};
  schema["anyOf"] = model_rule();
  return schema;
}

}  // namespace trireme
