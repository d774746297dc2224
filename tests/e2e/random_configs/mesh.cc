// Meshes of all extents that a world has, and the rules that a plan has for them, said once more.

#include <algorithm>

#include "e2e/random_configs/random_config.h"

namespace trireme {

namespace {

std::int64_t ceil_to(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::vector<std::int64_t> divisors_of(std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t i = 1; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors;
}

/// What the tensor axis and ulysses cut.
struct Cuttable {
  std::int64_t heads, kv, ffn, vocabulary;

  Cuttable(const Json& model, std::int64_t vocabulary_) : vocabulary(vocabulary_) {
    // 0 where it is left to its default.
    const auto number = [&](const char* name, const char* other) {
      for (const char* key : {name, other}) {
        const Json* value = model.find(key);
        if (value != nullptr && value->is_integer()) return value->as_integer();
      }
      return std::int64_t{0};
    };
    heads = number("n_head", "num_attention_heads");
    kv = number("num_key_value_heads", "");
    if (kv == 0) kv = heads;
    ffn = number("n_inner", "intermediate_size");
    if (ffn == 0) ffn = 4 * number("n_embd", "hidden_size");
    // Of experts alone the tensor axis cuts no columns.
    const std::string& family = model.find("model_type")->as_string();
    if (family == "mixtral" || family == "qwen3_moe" || family == "olmoe" || family == "gpt_oss")
      ffn = 0;
  }
  static bool shares(std::int64_t heads, std::int64_t kv, std::int64_t places) {
    return heads % places == 0 && (kv % places == 0 || places % kv == 0);
  }
  [[nodiscard]] bool tensor_fits(std::int64_t t) const {
    return shares(heads, kv, t) && ffn % t == 0 && vocabulary >= t;
  }
  [[nodiscard]] bool ulysses_fits(std::int64_t t, std::int64_t c) const {
    return shares(heads / t, std::max<std::int64_t>(1, kv / t), c);
  }
};

void draw_zero(Dice& dice, std::int64_t peers, DrawnMesh& mesh) {
  const std::int64_t stage = dice.between(0, 3);
  if (stage > 0 || dice.percent(20)) mesh.values.emplace_back("parallel.zero_stage", stage);
  if (!dice.percent(stage > 0 ? 30 : 4)) return;
  const std::int64_t group = dice.between(1, peers);
  mesh.values.emplace_back("parallel.zero_group", group);
  if (stage == 0 || peers % group != 0)
    mesh.refused.emplace_back("the group of ZeRO", "parallel.zero_group");
}

void draw_experts(Dice& dice, const DrawnExperts& experts, std::int64_t world, DrawnMesh& mesh) {
  const std::int64_t ranks = dice.pick(divisors_of(world));
  const std::int64_t columns = dice.percent(30) ? dice.pick(divisors_of(world / ranks)) : 1;
  if (ranks > 1 || dice.percent(20)) mesh.values.emplace_back("parallel.expert", ranks);
  if (columns > 1 || dice.percent(20)) mesh.values.emplace_back("parallel.expert_tensor", columns);
  if (experts.columns % columns != 0) {
    mesh.refused.emplace_back("columns of an expert", "parallel.expert_tensor");
  } else if (experts.count % ranks != 0) {
    mesh.refused.emplace_back("experts that are not shared out", "parallel.expert");
  }
}

}  // namespace

DrawnExperts::DrawnExperts(const Json& model) {
  for (const auto& [name, value] : model.as_object()) {
    if (name == "num_experts" || name == "num_local_experts" || name == "n_routed_experts")
      count = value.as_integer();
    if (name == "intermediate_size" && columns == 0) columns = value.as_integer();
    if (name == "moe_intermediate_size") columns = value.as_integer();
  }
}

DrawnMesh draw_mesh(Dice& dice, const Json* model, Situation& situation) {
  DrawnMesh mesh;
  const std::int64_t t = model == nullptr ? 1 : dice.pick(divisors_of(situation.world));
  const std::int64_t c = dice.pick(divisors_of(situation.world / t));
  situation.data_ranks = situation.world / (t * c);
  if (t > 1 || dice.percent(20)) mesh.values.emplace_back("parallel.tensor", t);
  if (c > 1 || dice.percent(20)) mesh.values.emplace_back("parallel.context", c);
  const bool cut = t > 1 && !dice.percent(30);
  if (t > 1 ? !cut || dice.percent(50) : dice.percent(10))
    mesh.values.emplace_back("parallel.sequence_parallel", cut);
  const std::string method = dice.word({"ring", "allgather", "ulysses"});
  if (method != "ulysses" || model != nullptr)
    mesh.values.emplace_back("parallel.context_method", method);
  draw_zero(dice, situation.data_ranks * c, mesh);

  std::int64_t& length = situation.sequence_length;
  const std::int64_t pieces = c > 1 ? 2 * c : 1, unit = pieces * (cut ? t : 1);
  const std::int64_t longest =
      situation.family == "gpt2" ? std::min<std::int64_t>(32, situation.positions) : 32;
  if (dice.percent(80) && ceil_to(length, unit) <= longest) {
    length = ceil_to(length, unit);
    mesh.values.emplace_back("data.sequence_length", length);
  }
  if (length % pieces != 0 || (cut && length / c % t != 0))
    mesh.refused.emplace_back("a length that is not cut evenly", "data.sequence_length");
  if (model == nullptr) return mesh;
  if (situation.experts) draw_experts(dice, DrawnExperts(*model), situation.world, mesh);
  const Cuttable sizes(*model, situation.vocabulary);
  if (!sizes.tensor_fits(t)) {
    mesh.refused.emplace_back("the tensor extent", "parallel.tensor");
  } else if (method == "ulysses" && !sizes.ulysses_fits(t, c)) {
    mesh.refused.emplace_back("heads for ulysses", "parallel.context");
  }
  return mesh;
}

}  // namespace trireme
