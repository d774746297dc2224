#include "config/rope_parse.h"

#include <algorithm>
#include <array>

#include "base/nearest_word.h"
#include "config/json_numbers.h"

namespace trireme {

namespace {

constexpr std::string_view kKinds[] = {"default", "linear", "llama3", "yarn"};
constexpr KeyReader::Reals kPositive = {0, 1e12, true};

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
    const auto partial = reader_.real("partial_rotary_factor", kPositive);
    if (partial && *partial != 1)
      reader_.report("partial_rotary_factor", "1", "1", "not in this version");
    if (!read_kind(rope)) return rope;
    switch (rope.kind) {
      case RopeKind::kDefault:
        break;
      case RopeKind::kLinear:
        rope.factor = required("factor");
        break;
      case RopeKind::kLlama3:
        read_llama3(rope);
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

}  // namespace

RopeConfig read_rope(KeyReader& reader, const KeyOrigin& origin, const RopeRules& rules) {
  const auto dictionary = [&](std::string_view name) -> const Json* {
    const Json* value = reader.find(name);
    if (value == nullptr) return nullptr;
    if (!value->is_object()) reader.report(name, "an object or null", "", "is no object");
    return value->is_object() && !value->as_object().empty() ? value : nullptr;
  };
  const Json* parameters = dictionary("rope_parameters");
  const Json* scaling = dictionary("rope_scaling");

  std::optional<double> theta;
  const auto agree = [&](KeyReader from) {
    const auto value = from.real("rope_theta", kPositive);
    if (value && theta && *value != *theta) {
      from.report("rope_theta", fmt::format("{}, as the other spelling says", *theta),
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
  if (parameters != nullptr)
    agree({*parameters, "model.rope_parameters.", origin_in("rope_parameters")});
  agree(reader);
  if (scaling != nullptr) agree({*scaling, "model.rope_scaling.", origin_in("rope_scaling")});

  const double base = theta.value_or(rules.theta);
  RopeConfig rope;
  rope.theta = base;
  if (scaling != nullptr) {
    rope = RopeReader(*scaling, "rope_scaling", origin_in("rope_scaling"), rules).read(base);
  }
  if (parameters == nullptr) return rope;
  const RopeConfig other =
      RopeReader(*parameters, "rope_parameters", origin_in("rope_parameters"), rules).read(base);
  if (scaling != nullptr && !(other == rope)) {
    reader.report("rope_scaling", shown(*parameters), "", "contradicts rope_parameters");
  }
  return other;
}

Json rope_parameters_json(const RopeConfig& rope) {
  Json json = Json::object();
  json["rope_type"] = kKinds[static_cast<std::size_t>(rope.kind)];
  json["rope_theta"] = rope.theta;
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
