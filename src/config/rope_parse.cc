#include "config/rope_parse.h"

#include <algorithm>
#include <array>

#include "base/nearest_word.h"
#include "config/json_numbers.h"

namespace trireme {

namespace {

constexpr std::string_view kKinds[] = {"default", "linear", "llama3", "yarn"};
constexpr KeyReader::Reals kPositive = {0, 1e12, true};
constexpr KeyReader::Reals kPart = {0, 1, true};

constexpr std::array<std::string_view, 14> kKeys = {
    "rope_type",        "type",
    "rope_theta",       "partial_rotary_factor",
    "factor",           "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings",
    "beta_fast",        "beta_slow",
    "attention_factor", "mscale",
    "mscale_all_dim",   "truncate"};

// Of a family that scales queries; the second says what the model's own key says.
constexpr std::string_view kQueryKeys[] = {"llama_4_scaling_beta", "max_position_embeddings"};

/// partial_rotary_factor of the model or of a dictionary.
double read_part(KeyReader& reader, const RopeRules& rules) {
  constexpr std::string_view kKey = "partial_rotary_factor";
  const double part = reader.real(kKey, rules.partial ? kPart : kPositive).value_or(rules.part);
  if (!rules.partial && part != 1) reader.report(kKey, "1", "1", "not in this version");
  return part;
}

/// One dictionary, rope_parameters or rope_scaling.
class RopeReader {
 public:
  RopeReader(const Json& dictionary, const std::string& name, const KeyOrigin& origin,
             const RopeRules& rules)
      : dictionary_(dictionary),
        reader_(dictionary, "model." + name + ".", origin),
        rules_(rules) {}

  RopeConfig read(double theta) {
    RopeConfig rope;
    rope.theta = theta;
    for (const auto& [key, value] : dictionary_.as_object()) {
      if (value.is_object()) {
        reader_.report(key, "one rotary embedding for all layers", "", "not in this version");
        return rope;
      }
      const bool of_queries =
          std::find(std::begin(kQueryKeys), std::end(kQueryKeys), key) != std::end(kQueryKeys);
      if (rules_.query_scaling && of_queries) continue;
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
        reader_.unknown(key, [&key = key] {
          return nearest_word(key, {kKeys.begin(), kKeys.end()}).value_or("");
        });
      }
    }
    rope.part = read_part(reader_, rules_);
    if (!read_kind(rope)) return rope;
    switch (rope.kind) {
      case RopeKind::kDefault:
        break;
      case RopeKind::kLinear:
        rope.factor = required("factor");
        check_mscale();
        break;
      case RopeKind::kLlama3:
        read_llama3(rope);
        check_mscale();
        break;
      case RopeKind::kYarn:
        read_yarn(rope);
        break;
    }
    return rope;
  }

 private:
  bool read_kind(RopeConfig& rope) {
    const auto new_name = reader_.text("rope_type"), old_name = reader_.text("type");
    if (new_name && old_name && *new_name != *old_name) {
      reader_.report("type", "the same as rope_type", *new_name, "contradicts rope_type");
      return false;
    }
    const std::string kind = new_name.value_or(old_name.value_or("default"));
    for (std::size_t i = 0; i < std::size(kKinds); ++i) {
      if (kKinds[i] != kind) continue;
      rope.kind = static_cast<RopeKind>(i);
      return true;
    }
    reader_.report(new_name ? "rope_type" : "type", R"("default", "linear", "llama3" or "yarn")",
                   "", "not in this version");
    return false;
  }

  double required(std::string_view key) {
    if (const auto value = reader_.real(key, kPositive)) return *value;
    if (reader_.find(key) == nullptr)
      reader_.report(key, "a number above 0", "", "is required for this rope_type");
    return 1;
  }

  /// transformers applies it to the scores with any scaling, to cos and sin with yarn alone.
  void check_mscale() {
    constexpr std::string_view kKey = "mscale_all_dim";
    if (rules_.of_scores && reader_.real(kKey, {0, 1e12}).value_or(0) != 0)
      reader_.report(kKey, R"(0, or rope_type "yarn")", "0", "not in this version");
  }

  std::int64_t original_positions() {
    return reader_.integer("original_max_position_embeddings", {1, std::int64_t{1} << 40})
        .value_or(rules_.max_positions);
  }

  void read_llama3(RopeConfig& rope) {
    rope.factor = required("factor");
    rope.low_freq_factor = required("low_freq_factor");
    rope.high_freq_factor = required("high_freq_factor");
    rope.original_max_positions = original_positions();
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      reader_.report("high_freq_factor",
                     fmt::format("a number above low_freq_factor = {}", rope.low_freq_factor), "",
                     "must be above low_freq_factor");
    }
  }

  void read_yarn(RopeConfig& rope) {
    rope.original_max_positions = original_positions();
    rope.factor =
        reader_.real("factor", kPositive)
            .value_or(static_cast<double>(rules_.max_positions) /
                      static_cast<double>(std::max<std::int64_t>(rope.original_max_positions, 1)));
    // transformers takes 0 for absent in these four.
    const auto non_zero = [&](std::string_view key, double otherwise) {
      const double value = reader_.real(key, {0, 1e12}).value_or(0);
      return value == 0 ? otherwise : value;
    };
    rope.beta_fast = non_zero("beta_fast", rope.beta_fast);
    rope.beta_slow = non_zero("beta_slow", rope.beta_slow);
    rope.attention_factor = reader_.real("attention_factor", kPositive).value_or(0);
    rope.mscale = non_zero("mscale", 0);
    rope.mscale_all_dim = non_zero("mscale_all_dim", 0);
    rope.truncate = reader_.boolean("truncate").value_or(true);
    if (rules_.query_scaling)
      rope.query_beta = reader_.real("llama_4_scaling_beta", {0, 1e12}).value_or(0);
    if (rope.theta == 1)
      reader_.report("rope_theta", "a number other than 1", "10000", "makes yarn divide by zero");
  }

  const Json& dictionary_;
  KeyReader reader_;
  const RopeRules& rules_;
};

/// An object with keys; nullptr where it is missing, null or empty.
const Json* dictionary(KeyReader& reader, std::string_view name) {
  const Json* value = reader.find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) reader.report(name, "an object or null", "", "is no object");
  return value->is_object() && !value->as_object().empty() ? value : nullptr;
}

/// Where a rotary embedding is described: up to two dictionaries and a key of the model for the
/// base, all of which agree.
struct RopePlaces {
  const Json *parameters, *scaling;
  std::string parameters_name = "rope_parameters";
};

RopeConfig read_from(KeyReader& reader, const KeyOrigin& origin, const RopeRules& rules,
                     const RopePlaces& places) {
  std::optional<double> theta;
  const auto agree = [&](KeyReader from, std::string_view key) {
    const auto value = from.real(key, kPositive);
    if (value && theta && *value != *theta) {
      from.report(key, fmt::format("{}, as the other spelling says", *theta),
                  fmt::format("{}", *theta), "contradicts the other spelling");
    }
    if (!theta) theta = value;
  };
  KeyOrigin inside = origin;
  const auto origin_in = [&](std::string_view name) -> const KeyOrigin& {
    inside.file = origin.file_of(name);
    inside.typed.clear();
    return inside;
  };
  const std::string prefix = fmt::format("model.{}.", places.parameters_name);
  if (places.parameters != nullptr)
    agree({*places.parameters, prefix, origin_in("rope_parameters")}, "rope_theta");
  if (!rules.theta_key.empty()) agree(reader, rules.theta_key);
  if (places.scaling != nullptr)
    agree({*places.scaling, "model.rope_scaling.", origin_in("rope_scaling")}, "rope_theta");

  const double base = theta.value_or(rules.theta);
  RopeConfig rope;
  rope.theta = base;
  rope.part = rules.part;
  if (places.scaling != nullptr) {
    rope = RopeReader(*places.scaling, "rope_scaling", origin_in("rope_scaling"), rules).read(base);
  }
  if (places.parameters == nullptr) return rope;
  const RopeConfig other =
      RopeReader(*places.parameters, places.parameters_name, origin_in("rope_parameters"), rules)
          .read(base);
  if (places.scaling != nullptr && !(other == rope)) {
    reader.report("rope_scaling", shown(*places.parameters), "",
                  fmt::format("contradicts {}", places.parameters_name));
  }
  return other;
}

}  // namespace

RopeConfig read_rope(KeyReader& reader, const KeyOrigin& origin, const RopeRules& given) {
  RopeRules rules = given;
  if (rules.partial) rules.part = read_part(reader, rules);
  return read_from(reader, origin, rules,
                   {dictionary(reader, "rope_parameters"), dictionary(reader, "rope_scaling")});
}

RopesByType read_ropes_by_type(KeyReader& reader, const KeyOrigin& origin, const RopeRules& full,
                               const RopeRules& sliding) {
  constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";
  const Json* all = dictionary(reader, "rope_parameters");
  bool legal = all != nullptr;
  for (const auto& [key, value] : all != nullptr ? all->as_object() : Json::Object()) {
    if ((key == kFull || key == kSliding) && (value.is_object() || value.is_null())) continue;
    reader.report("rope_parameters",
                  R"(an object with "full_attention" and "sliding_attention", each an object)", "",
                  fmt::format("has {}, and layers of this family have two rotary embeddings", key));
    legal = false;
    break;
  }
  const auto places = [&](std::string_view type, const Json* scaling) -> RopePlaces {
    const Json* of_type = legal ? all->find(type) : nullptr;
    const bool given = of_type != nullptr && of_type->is_object() && !of_type->as_object().empty();
    return {given ? of_type : nullptr, scaling, fmt::format("rope_parameters.{}", type)};
  };
  return {read_from(reader, origin, full, places(kFull, dictionary(reader, "rope_scaling"))),
          read_from(reader, origin, sliding, places(kSliding, nullptr))};
}

Json rope_parameters_json(const RopeConfig& rope) {
  Json json = Json::object();
  json["rope_type"] = kKinds[static_cast<std::size_t>(rope.kind)];
  json["rope_theta"] = rope.theta;
  if (rope.part != 1) json["partial_rotary_factor"] = rope.part;
  if (rope.kind == RopeKind::kDefault) return json;
  json["factor"] = rope.factor;
  if (rope.kind == RopeKind::kLinear) return json;
  json["original_max_position_embeddings"] = rope.original_max_positions;
  if (rope.kind == RopeKind::kLlama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    return json;
  }
  json["beta_fast"] = rope.beta_fast;
  json["beta_slow"] = rope.beta_slow;
  json["truncate"] = rope.truncate;
  if (rope.attention_factor != 0) json["attention_factor"] = rope.attention_factor;
  if (rope.mscale != 0) json["mscale"] = rope.mscale;
  if (rope.mscale_all_dim != 0) json["mscale_all_dim"] = rope.mscale_all_dim;
  if (rope.query_beta != 0) json["llama_4_scaling_beta"] = rope.query_beta;
  return json;
}

}  // namespace trireme
