#pragma once
// Adapters in folders as peft writes and reads them: adapter_config.json (adapter_config.h) and
// adapter_model.safetensors, where a parameter of ours
//   model.layers.0.self_attn.q_proj.lora_A.weight          A [rank, in]
//   model.layers.0.self_attn.q_proj.lora_B.weight          B [out, rank]
//   model.layers.0.self_attn.q_proj.lora_magnitude_vector  m [out], of DoRA
// stands under "base_model.model." + its name. Both are oriented so for GPT-2 too, whose own
// weights are [in, out]. Those of experts stand together (expert_adapters.h).

#include <filesystem>
#include <map>
#include <string>

#include "base/shape.h"
#include "checkpoint/adapter_config.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/safetensors.h"

namespace trireme {

inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

/// adapter_model.safetensors of a folder, its tensors by our names: without the prefix, and without
/// the name of an adapter in it ("lora_A.default.weight"). Beside a head's adapter peft saves the
/// head's own weight too, "lm_head.base_layer.weight": that is kept apart. Throws DataError.
class AdapterFile {
 public:
  explicit AdapterFile(const std::filesystem::path& folder);
  [[nodiscard]] const SafetensorsFile& file() const { return file_; }
  [[nodiscard]] const std::map<std::string, const SafetensorsTensor*>& tensors() const {
    return tensors_;
  }
  [[nodiscard]] const SafetensorsTensor* head() const { return head_; }

 private:
  SafetensorsFile file_;
  std::map<std::string, const SafetensorsTensor*> tensors_;
  const SafetensorsTensor* head_ = nullptr;
};

/// Throws DataError where a folder has a head's weight of its own that is not the base's, but for
/// the rounding of its type: its adapters were trained beside another. `base`: a whole model.
void check_head_of_adapter(const std::filesystem::path& folder, const std::filesystem::path& base);

/// The adapters' parameters of a model that has them (set_adapters): their names and shapes.
/// `weights` has the shapes of the model's own linear products.
std::map<std::string, Shape> adapter_shapes(const ModelConfig& model,
                                            const std::map<std::string, Shape>& weights);

/// Throws DataError where the folder's tensors are not those of the parameters `wanted`, by names
/// and shapes. `model` has the adapters.
void check_adapter(const std::filesystem::path& folder, const ModelConfig& model,
                   const std::map<std::string, Shape>& wanted);

/// Fills every tensor of `state` ("parameters/NAME", fp32) with its box of the folder's. Throws
/// DataError on every rank: tensors missing or left over (all ranks' names together), other shapes.
/// `model` has the adapters; what adapter_config.json says is not looked at. Collective.
void import_adapter(const std::filesystem::path& folder, const ModelConfig& model, State& state,
                    Communicator& world);

/// Writes a checkpoint of adapters as such a folder, by rank 0, on the terms of export_checkpoint.
/// fp32 where options.dtype names no other. Throws ConfigError where it holds a whole model.
ExportResult export_adapter(const std::filesystem::path& checkpoint,
                            const std::filesystem::path& output, const ExportOptions& options,
                            Communicator& world);

}  // namespace trireme
