#include "checkpoint/expert_adapters.h"

#include <array>
#include <charconv>

#include "checkpoint/tensor_parts.h"
#include "config/adapters.h"

namespace trireme {

Shape ExpertAdapterPart::stored_shape(const Shape& part) const {
  return of_b ? Shape{part[0], part[1] * experts} : Shape{part[0] * experts, part[1]};
}

std::int64_t ExpertAdapterPart::place(const Shape& part, std::int64_t row,
                                      std::int64_t column) const {
  if (!of_b) return (expert * part[0] + row) * part[1] + column;
  const std::int64_t half = part[0] / 2;
  if (turns) row = row < half ? 2 * row : 2 * (row - half) + 1;
  return (row * part[1] + column) * experts + expert;
}

void ExpertAdapterPart::take(const Shape& part, const float* stored_values, const Box& box,
                             float* out) const {
  for (std::int64_t r = 0; r < box.shape[0]; ++r) {
    for (std::int64_t c = 0; c < box.shape[1]; ++c)
      *out++ = stored_values[place(part, box.offset[0] + r, box.offset[1] + c)];
  }
}

void ExpertAdapterPart::put(const Shape& part, const float* values, float* stored_values) const {
  for (std::int64_t r = 0; r < part[0]; ++r) {
    for (std::int64_t c = 0; c < part[1]; ++c) stored_values[place(part, r, c)] = *values++;
  }
}

std::map<std::string, ExpertAdapterPart> expert_adapter_parts(const ModelConfig& model) {
  std::map<std::string, ExpertAdapterPart> parts;
  if (!model.adapters) return parts;
  for (const LinearModule& module : linear_modules(model)) {
    if (!module.of_experts || !model.adapters->adapts(module.name)) continue;
    const LayerConfig& layer = model.layer(module.layer);
    const bool both = layer.adapters.experts_in > 0 && layer.adapters.experts_out > 0;
    const bool in = module.place == &AdapterRanks::experts_in;
    std::string wrapped = module.name.substr(0, module.name.rfind('.'));
    if (in && both) wrapped += ".base_layer";
    const std::int64_t experts = layer.experts->count;
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      for (const char factor : {'A', 'B'}) {
        parts[expert_adapter_name(module.name, expert, factor)] = {
            fmt::format("{}.lora_{}.weight", wrapped, factor), expert, experts, factor == 'B',
            in && model.family == Family::kGptOss};
      }
    }
  }
  return parts;
}

std::map<std::string, Shape> shapes_in_file(const ModelConfig& model,
                                            const std::map<std::string, Shape>& parameters) {
  const auto parts = expert_adapter_parts(model);
  std::map<std::string, Shape> shapes;
  for (const auto& [name, shape] : parameters) {
    const auto part = parts.find(name);
    if (part == parts.end()) {
      shapes.emplace(name, shape);
    } else {
      shapes.emplace(part->second.stored, part->second.stored_shape(shape));
    }
  }
  return shapes;
}

std::optional<ExpertWeight> expert_weight_of(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = name.substr(at + kExperts.size());
  std::string_view projection;
  ExpertWeight weight;
  if (const auto part = part_of(name)) {  // "gate_up_proj[3].up"
    weight.expert = part->index;
    weight.up = part->first == 1;
    projection = rest.substr(0, rest.find('['));
  } else {  // "3.up_proj.weight"
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), weight.expert);
    if (error != std::errc() || !rest.ends_with(".weight")) return std::nullopt;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
    projection = rest.substr(0, rest.rfind('.'));
    weight.up = projection == "up_proj" || projection == "w3";
  }
  static constexpr std::array kIn = {"gate_proj", "up_proj", "w1", "w3", "gate_up_proj"};
  const bool in = std::find(kIn.begin(), kIn.end(), projection) != kIn.end();
  if (!in && projection != "down_proj" && projection != "w2") return std::nullopt;
  const std::string_view layer = name.substr(0, name.rfind('.', at - 1));
  weight.module = fmt::format("{}.mlp.experts.{}", layer, in ? "gate_up_proj" : "down_proj");
  return weight;
}

}  // namespace trireme
