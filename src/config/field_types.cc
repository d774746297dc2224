#include "config/field_types.h"

#include <algorithm>

#include "base/nearest_word.h"
#include "base/units.h"

namespace trireme {

namespace {

/// "3" for 3.0, the shortest digits otherwise.
std::string bound_text(double bound) {
  if (bound == std::floor(bound) && std::abs(bound) < 1e15)
    return fmt::format("{}", static_cast<std::int64_t>(bound));
  return fmt::format("{}", bound);
}

Json bound_json(double bound) {
  if (bound == std::floor(bound) && std::abs(bound) < 1e15) return static_cast<std::int64_t>(bound);
  return bound;
}

}  // namespace

bool in_range(double value, const FieldRow& row) {
  // A comparison with an absent (NaN) bound is false.
  return !(value < row.minimum || value <= row.above || value > row.maximum || value >= row.below);
}

std::string legal_range(std::string_view noun, const FieldRow& row) {
  std::string text(noun);
  // The largest integer of all is no limit that anybody meets.
  const bool from = !std::isnan(row.minimum), to = !std::isnan(row.maximum) && row.maximum < 9e15;
  if (from && to)
    return fmt::format("{} from {} to {}", noun, bound_text(row.minimum), bound_text(row.maximum));
  if (from) text += fmt::format(" of at least {}", bound_text(row.minimum));
  if (!std::isnan(row.above)) text += fmt::format(" above {}", bound_text(row.above));
  if (to) text += fmt::format(" up to {}", bound_text(row.maximum));
  if (!std::isnan(row.below)) text += fmt::format(" and below {}", bound_text(row.below));
  return text;
}

void add_range(Json& schema, const FieldRow& row) {
  if (!std::isnan(row.minimum)) schema["minimum"] = bound_json(row.minimum);
  if (!std::isnan(row.above)) schema["exclusiveMinimum"] = bound_json(row.above);
  if (!std::isnan(row.maximum)) schema["maximum"] = bound_json(row.maximum);
  if (!std::isnan(row.below)) schema["exclusiveMaximum"] = bound_json(row.below);
}

std::string legal_words(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += '"' + words[i] + '"';
  }
  return text;
}

bool is_text(const Json& value) {
  if (!value.is_string() || value.as_string().empty()) return false;
  return std::none_of(value.as_string().begin(), value.as_string().end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

Json typed_schema(const char* type) { return Json::Object{{"type", type}}; }

Json text_schema() {
  return Json::Object{{"type", "string"}, {"pattern", "^[^\\u0000-\\u001f]+$"}};
}

std::optional<std::int64_t> integer_with_unit(const Json& value, const FieldRow& row) {
  if (!value.is_string()) return exact_integer(value);
  return row.unit == "bytes" ? parse_size(value.as_string()) : parse_count(value.as_string());
}

Json integer_schema(const FieldRow& row) {
  Json number = typed_schema("integer");
  add_range(number, row);
  if (row.plain) return number;
  Json text = typed_schema("string");
  text["pattern"] = row.unit == "bytes" ? kSizePattern : kCountPattern;
  return Json::Object{{"anyOf", Json::Array{std::move(number), std::move(text)}}};
}

Json list_schema(Json items, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  return Json::Object{
      {"type", "array"}, {"items", std::move(items)}, {"minItems", size}, {"maxItems", size}};
}

// ---- precision.fp8, log.prometheus, stability.skip_spikes, optimizer.groups: objects

namespace {

constexpr std::string_view path_of(const Fp8Precision&) { return "precision.fp8"; }
constexpr std::string_view path_of(const SpikeRule&) { return "stability.skip_spikes"; }
constexpr std::string_view path_of(const Prometheus&) { return "log.prometheus"; }

template <class F>
void for_each_key(Fp8Precision& fp8, const F& visit) {
  FieldRow gradients;
  gradients.values = {"e5m2", "e4m3"};
  FieldRow layers;
  layers.minimum = 0;
  layers.plain = true;
  visit("recipe", FieldRow(), fp8.recipe);
  visit("gradients", gradients, fp8.gradients);
  visit("bf16_layers", layers, fp8.bf16_layers);
}
template <class F>
void for_each_key(SpikeRule& rule, const F& visit) {
  FieldRow sigma;
  sigma.above = 0;
  sigma.maximum = 1e9;
  FieldRow window;
  window.minimum = 2;
  window.maximum = 10000;
  window.plain = true;
  visit("sigma", sigma, rule.sigma);
  visit("window", window, rule.window);
}

template <class F>
void for_each_key(Prometheus& prometheus, const F& visit) {
  FieldRow port;
  port.minimum = 0;
  port.maximum = 65535;
  port.plain = true;
  visit("port", port, prometheus.port);
  visit("file", FieldRow(), prometheus.file);
}

template <class F>
void for_each_key(ParamGroup& group, const F& visit) {
  FieldRow from_zero;
  from_zero.minimum = 0;
  visit("match", FieldRow(), group.match);
  visit("lr_scale", from_zero, group.lr_scale);
  visit("weight_decay", from_zero, group.weight_decay);
  visit("trainable", FieldRow(), group.trainable);
}

template <class T>
using CodecOf = Codec<std::remove_cvref_t<T>>;

}  // namespace

template <class T>
Json ObjectCodec<T>::schema(const FieldRow&) {
  Json json = typed_schema("object"), keys = Json::object();
  T defaults;
  for_each_key(defaults, [&](const char* key, const FieldRow& row, auto& member) {
    keys[key] = CodecOf<decltype(member)>::schema(row);
    const Json value = CodecOf<decltype(member)>::read(member);
    if (!value.is_null() && value != Json("")) keys[key]["default"] = value;
  });
  json["properties"] = std::move(keys);
  json["additionalProperties"] = false;
  return json;
}

template <class T>
std::string ObjectCodec<T>::legal(const FieldRow&) {
  std::string text;
  T scratch;
  for_each_key(scratch, [&](const char* key, const FieldRow& row, auto& member) {
    text += fmt::format("{}{}: {}", text.empty() ? "an object of " : "; ", key,
                        CodecOf<decltype(member)>::legal(row));
  });
  return text;
}

template <class T>
bool ObjectCodec<T>::assign(const Json& json, const FieldRow&, T& out) {
  if (!json.is_object()) return false;
  T object;
  std::size_t read = 0;
  bool legal = true;
  for_each_key(object, [&](const char* key, const FieldRow& row, auto& member) {
    const Json* value = json.find(key);
    if (value == nullptr) return;
    ++read;
    legal = legal && CodecOf<decltype(member)>::assign(*value, row, member);
  });
  if (!legal || read != json.as_object().size()) return false;
  out = std::move(object);
  return true;
}

/// Of an object at `path`.
template <class T>
std::vector<Problem> object_faults(const Json& json, const std::string& path) {
  std::vector<Problem> problems;
  if (!json.is_object()) return problems;
  std::vector<std::string> keys;
  std::string list;
  T scratch;
  for_each_key(scratch, [&](const char* key, const FieldRow& row, auto& member) {
    using C = CodecOf<decltype(member)>;
    keys.emplace_back(key);
    list += (list.empty() ? "" : ", ") + keys.back();
    const Json* value = json.find(key);
    if (value == nullptr || C::assign(*value, row, member)) return;
    const std::string word = value->is_string() ? value->as_string() : "";
    const std::string nearest = nearest_word(word, C::words(row)).value_or("");
    problems.push_back({fmt::format("{}.{}", path, key), shown(*value), C::legal(row),
                        nearest.empty() ? "" : '"' + nearest + '"', "has no legal form"});
  });
  for (const auto& [key, value] : json.as_object()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    const std::string nearest = nearest_word(key, keys).value_or("");
    problems.push_back({fmt::format("{}.{}", path, key), shown(value), list,
                        nearest.empty() ? "" : path + "." + nearest, kUnknownKey});
  }
  return problems;
}

template <class T>
Json ObjectCodec<T>::read(const T& value) {
  Json json = Json::object();
  T object = value;
  for_each_key(object, [&](const char* key, const FieldRow&, auto& member) {
    const Json own = CodecOf<decltype(member)>::read(member);
    if (!own.is_null()) json[key] = own;
  });
  return json;
}

template <class T>
std::vector<Problem> ObjectCodec<T>::faults_within(const Json& json, const FieldRow&) {
  return object_faults<T>(json, std::string(path_of(T())));
}

template struct ObjectCodec<Fp8Precision>;
template struct ObjectCodec<Prometheus>;
template struct ObjectCodec<SpikeRule>;

std::vector<std::string> Codec<std::optional<SpikeRule>>::words(const FieldRow&) { return {}; }

Json Codec<std::optional<SpikeRule>>::schema(const FieldRow& row) {
  return Json::Object{
      {"anyOf", Json::Array{Json::Object{{"const", false}}, Codec<SpikeRule>::schema(row)}}};
}

std::string Codec<std::optional<SpikeRule>>::legal(const FieldRow& row) {
  return "false or " + Codec<SpikeRule>::legal(row);
}

bool Codec<std::optional<SpikeRule>>::assign(const Json& json, const FieldRow& row,
                                             std::optional<SpikeRule>& out) {
  if (json.is_bool() && !json.as_bool()) {
    out.reset();
    return true;
  }
  SpikeRule rule;
  if (!Codec<SpikeRule>::assign(json, row, rule)) return false;
  out = rule;
  return true;
}

Json Codec<std::optional<SpikeRule>>::read(const std::optional<SpikeRule>& value) {
  return value ? Codec<SpikeRule>::read(*value) : Json(false);
}

// ---- stability.skip_steps

std::vector<std::string> Codec<StepRanges>::words(const FieldRow&) { return {}; }

Json Codec<StepRanges>::schema(const FieldRow& row) {
  return Json::Object{
      {"type", "array"}, {"items", list_schema(integer_schema(row), 2)}, {"minItems", 0}};
}

std::string Codec<StepRanges>::legal(const FieldRow& row) {
  return "a list of [first, last], first <= last, each " + Codec<std::int64_t>::legal(row);
}

bool Codec<StepRanges>::assign(const Json& json, const FieldRow& row, StepRanges& out) {
  if (!json.is_array()) return false;
  StepRanges ranges;
  for (const Json& item : json.as_array()) {
    auto& range = ranges.emplace_back();
    if (!Codec<std::array<std::int64_t, 2>>::assign(item, row, range) || range[0] > range[1])
      return false;
  }
  out = std::move(ranges);
  return true;
}

Json Codec<StepRanges>::read(const StepRanges& value) {
  Json list = Json::array();
  for (const auto& range : value) list.push_back(Json::Array{range[0], range[1]});
  return list;
}

// ---- optimizer.groups

constexpr std::size_t kMatchMax = 256;
using OneGroup = ObjectCodec<ParamGroup>;

std::vector<std::string> Codec<ParamGroups>::words(const FieldRow&) { return {}; }

Json Codec<ParamGroups>::schema(const FieldRow& row) {
  Json group = OneGroup::schema(row);
  group["required"] = Json::Array{"match"};
  (*group.find("properties"))["match"]["maxLength"] = static_cast<std::int64_t>(kMatchMax);
  return Json::Object{{"type", "array"}, {"items", std::move(group)}, {"minItems", 0}};
}

std::string Codec<ParamGroups>::legal(const FieldRow& row) {
  return "a list, of each group " + OneGroup::legal(row);
}

bool Codec<ParamGroups>::assign(const Json& json, const FieldRow& row, ParamGroups& out) {
  if (!json.is_array()) return false;
  ParamGroups groups;
  for (const Json& item : json.as_array()) {
    if (!OneGroup::assign(item, row, groups.emplace_back())) return false;
    const std::string& match = groups.back().match;
    if (match.empty() || match.size() > kMatchMax) return false;
  }
  out = std::move(groups);
  return true;
}

std::vector<Problem> Codec<ParamGroups>::faults_within(const Json& json, const FieldRow& row) {
  std::vector<Problem> problems;
  if (!json.is_array()) return problems;
  for (std::size_t i = 0; i < json.as_array().size(); ++i) {
    const Json& item = json.as_array()[i];
    const std::string path = group_path(i);
    if (!item.is_object()) {
      problems.push_back({path, shown(item), OneGroup::legal(row), "", "has no legal form"});
      continue;
    }
    std::vector<Problem> of_one = object_faults<ParamGroup>(item, path);
    std::move(of_one.begin(), of_one.end(), std::back_inserter(problems));
    const Json* match = item.find("match");
    const std::string legal = fmt::format("a part of a name, up to {} letters", kMatchMax);
    if (match == nullptr) {
      problems.push_back({path + ".match", "nothing", legal, "", "is required"});
    } else if (match->is_string() && match->as_string().size() > kMatchMax) {
      problems.push_back({path + ".match", shown(*match), legal, "", "is too long"});
    }
  }
  return problems;
}

Json Codec<ParamGroups>::read(const ParamGroups& value) {
  Json list = Json::array();
  for (const ParamGroup& group : value) list.push_back(OneGroup::read(group));
  return list;
}

// ---- run.resume

namespace {
constexpr std::string_view kResumeWords[] = {"auto", "never", "must"};
}

std::vector<std::string> Codec<ResumeChoice>::words(const FieldRow&) {
  return {std::begin(kResumeWords), std::end(kResumeWords)};
}

Json Codec<ResumeChoice>::schema(const FieldRow& row) {
  return Json::Object{{"anyOf", Json::Array{text_schema(), Codec<std::int64_t>::schema(row)}}};
}

std::string Codec<ResumeChoice>::legal(const FieldRow& row) {
  return R"("auto", "never", "must", a directory, or a step: )" + Codec<std::int64_t>::legal(row);
}

bool Codec<ResumeChoice>::assign(const Json& json, const FieldRow& row, ResumeChoice& out) {
  std::int64_t step = 0;
  if (Codec<std::int64_t>::assign(json, row, step)) {
    out = {ResumeKind::kStep, step, ""};
    return true;
  }
  if (!is_text(json)) return false;
  for (std::size_t i = 0; i < std::size(kResumeWords); ++i) {
    if (json.as_string() == kResumeWords[i]) {
      out = {static_cast<ResumeKind>(i), 0, ""};
      return true;
    }
  }
  out = {ResumeKind::kDirectory, 0, json.as_string()};
  return true;
}

Json Codec<ResumeChoice>::read(const ResumeChoice& value) {
  if (value.kind == ResumeKind::kStep) return value.step;
  if (value.kind == ResumeKind::kDirectory) return value.directory;
  return kResumeWords[static_cast<std::size_t>(value.kind)];
}

// ---- data.train, data.validation

std::vector<std::string> Codec<DataSource>::words(const FieldRow&) { return {"synthetic"}; }

Json Codec<DataSource>::schema(const FieldRow&) {
  const Json weight = Json::Object{{"type", "number"}, {"exclusiveMinimum", 0}};
  Json prefix = text_schema();
  prefix["not"] = Json::Object{{"const", "synthetic"}};
  Json pair = Json::Object{{"type", "array"},
                           {"items", Json::Array{weight, prefix}},
                           {"additionalItems", false},
                           {"minItems", 2}};
  Json blend = Json::Object{{"type", "array"}, {"items", std::move(pair)}, {"minItems", 1}};
  return Json::Object{{"anyOf", Json::Array{text_schema(), std::move(blend)}}};
}

std::string Codec<DataSource>::legal(const FieldRow&) {
  return R"("synthetic", a PREFIX of PREFIX.bin and PREFIX.idx, or [[weight above 0, PREFIX], ...])";
}

bool Codec<DataSource>::assign(const Json& json, const FieldRow&, DataSource& out) {
  DataSource source;
  if (is_text(json)) {
    source.synthetic = json.as_string() == "synthetic";
    if (!source.synthetic) source.blend.emplace_back(1.0, json.as_string());
    out = std::move(source);
    return true;
  }
  if (!json.is_array() || json.as_array().empty()) return false;
  for (const Json& item : json.as_array()) {
    if (!item.is_array() || item.as_array().size() != 2) return false;
    const auto weight = finite_number(item.as_array()[0]);
    const Json& prefix = item.as_array()[1];
    if (!weight || *weight <= 0 || !is_text(prefix) || prefix.as_string() == "synthetic")
      return false;
    source.blend.emplace_back(*weight, prefix.as_string());
  }
  source.weighted = true;
  out = std::move(source);
  return true;
}

Json Codec<DataSource>::read(const DataSource& value) {
  if (value.synthetic) return "synthetic";
  if (value.blend.empty()) return {};
  if (!value.weighted) return value.blend.front().second;
  Json list = Json::array();
  for (const auto& [weight, prefix] : value.blend) list.push_back(Json::Array{weight, prefix});
  return list;
}

// ---- data.validation

std::vector<std::string> Codec<ValidationSets>::words(const FieldRow& row) {
  return Codec<DataSource>::words(row);
}

Json Codec<ValidationSets>::schema(const FieldRow& row) {
  const Json source = Codec<DataSource>::schema(row);
  const Json name = Json::Object{{"pattern", text_schema().find("pattern")->as_string()}};
  Json forms = *source.find("anyOf");
  forms.push_back(Json::Object{{"type", "object"},
                               {"minProperties", 1},
                               {"propertyNames", name},
                               {"additionalProperties", source}});
  return Json::Object{{"anyOf", std::move(forms)}};
}

std::string Codec<ValidationSets>::legal(const FieldRow& row) {
  return Codec<DataSource>::legal(row) + R"(, or {"name": one of these, ...})";
}

bool Codec<ValidationSets>::assign(const Json& json, const FieldRow& row, ValidationSets& out) {
  ValidationSets value;
  if (!json.is_object()) {
    if (!Codec<DataSource>::assign(json, row, value.sets.emplace_back().second)) return false;
  } else {
    for (const auto& [name, source] : json.as_object()) {
      auto& [set_name, set] = value.sets.emplace_back(name, DataSource());
      if (!is_text(set_name) || !Codec<DataSource>::assign(source, row, set)) return false;
    }
    if (value.sets.empty()) return false;
  }
  out = std::move(value);
  return true;
}

Json Codec<ValidationSets>::read(const ValidationSets& value) {
  if (value.sets.size() == 1 && value.sets.front().first.empty())
    return Codec<DataSource>::read(value.sets.front().second);
  Json object = Json::object();
  for (const auto& [name, source] : value.sets) object[name] = Codec<DataSource>::read(source);
  return object;
}

// ---- evaluation.samples, log.command

std::vector<std::string> Codec<std::vector<std::string>>::words(const FieldRow&) { return {}; }

Json Codec<std::vector<std::string>>::schema(const FieldRow& row) {
  Json json = Json::Object{{"type", "array"}, {"items", Json::Object{{"type", "string"}}}};
  json["minItems"] = row.minimum > 0 ? bound_json(row.minimum) : Json(0);
  return json;
}

std::string Codec<std::vector<std::string>>::legal(const FieldRow& row) {
  return row.minimum > 0 ? "a list of strings, not empty" : "a list of strings";
}

bool Codec<std::vector<std::string>>::assign(const Json& json, const FieldRow& row,
                                             std::vector<std::string>& out) {
  if (!json.is_array() || static_cast<double>(json.as_array().size()) < row.minimum) return false;
  std::vector<std::string> values;
  for (const Json& item : json.as_array()) {
    if (!item.is_string()) return false;
    values.push_back(item.as_string());
  }
  out = std::move(values);
  return true;
}

Json Codec<std::vector<std::string>>::read(const std::vector<std::string>& values) {
  Json list = Json::array();
  for (const std::string& value : values) list.push_back(value);
  return list;
}

// ---- parallel.pipeline_layers

std::vector<std::string> Codec<std::vector<std::int64_t>>::words(const FieldRow&) {
  return {"balanced"};
}

Json Codec<std::vector<std::int64_t>>::schema(const FieldRow& row) {
  Json list =
      Json::Object{{"type", "array"}, {"items", Codec<std::int64_t>::schema(row)}, {"minItems", 1}};
  return Json::Object{{"anyOf", Json::Array{Json::Object{{"const", "balanced"}}, std::move(list)}}};
}

std::string Codec<std::vector<std::int64_t>>::legal(const FieldRow& row) {
  return R"("balanced" or a list, each )" + Codec<std::int64_t>::legal(row);
}

bool Codec<std::vector<std::int64_t>>::assign(const Json& json, const FieldRow& row,
                                              std::vector<std::int64_t>& out) {
  std::vector<std::int64_t> values;
  if (json.is_array()) {
    if (json.as_array().empty()) return false;
    for (const Json& item : json.as_array()) {
      if (!Codec<std::int64_t>::assign(item, row, values.emplace_back())) return false;
    }
  } else if (!json.is_string() || json.as_string() != "balanced") {
    return false;
  }
  out = std::move(values);
  return true;
}

Json Codec<std::vector<std::int64_t>>::read(const std::vector<std::int64_t>& values) {
  if (values.empty()) return "balanced";
  Json list = Json::array();
  for (const std::int64_t value : values) list.push_back(value);
  return list;
}

}  // namespace trireme
