#pragma once
// Adapters of experts in files of peft's (0.21's ParamWrapper beside transformers 5's parameters),
// which hold those of a layer's E experts together:
//   lora_A [E rank, in]    row e rank + i is row i of A_e
//   lora_B [out, rank E]   column j E + e is column j of B_e
// Names are those of the module of experts, which peft wraps once for each parameter that has
// adapters, in transformers' order:
//   model.layers.0.mlp.experts.lora_A.weight             of down_proj, or of the only one
//   model.layers.0.mlp.experts.base_layer.lora_A.weight  of gate_up_proj beside down_proj
// Rows of gate_up_proj's B are those of gate, then those of up; GPT-OSS has them in turns.

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/shape.h"
#include "config/model_config.h"

namespace trireme {

/// What a parameter of an expert's adapter (expert_adapter_name) is of a file's tensor.
struct ExpertAdapterPart {
  std::string stored;  ///< the tensor's name, without what peft has in front of ours
  std::int64_t expert = 0, experts = 1;
  bool of_b = false;
  bool turns = false;  ///< rows of gate and up in turns

  /// Of a tensor whose parts have this shape.
  [[nodiscard]] Shape stored_shape(const Shape& part) const;
  /// Copies a box of the part from all values of the tensor.
  void take(const Shape& part, const float* stored_values, const Box& box, float* out) const;
  /// Copies all of the part to its places among them.
  void put(const Shape& part, const float* values, float* stored_values) const;

 private:
  [[nodiscard]] std::int64_t place(const Shape& part, std::int64_t row, std::int64_t column) const;
};
/// Of each such parameter of a model, by its name; empty where no adapters stand beside experts.
std::map<std::string, ExpertAdapterPart> expert_adapter_parts(const ModelConfig& model);
/// The names and shapes of a file's tensors, from those of parameters.
std::map<std::string, Shape> shapes_in_file(const ModelConfig& model,
                                            const std::map<std::string, Shape>& parameters);

/// What a weight of experts is, by its name in any family's files: of one expert gate, up or down.
struct ExpertWeight {
  std::string module;  ///< linear_modules: "model.layers.0.mlp.experts.gate_up_proj"
  std::int64_t expert = 0;
  bool up = false;  ///< the second half of the rows of B
};
std::optional<ExpertWeight> expert_weight_of(std::string_view name);

}  // namespace trireme
