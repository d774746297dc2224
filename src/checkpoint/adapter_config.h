#pragma once
// What says which adapters a folder or a checkpoint has: peft's adapter_config.json, and the config
// that a run of adapters keeps in its manifest. Keys and meanings are those of peft 0.21's
// LoraConfig (https://github.com/huggingface/peft).

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "checkpoint/manifest.h"
#include "config/run_config.h"

namespace trireme {

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsName = "adapter_model.safetensors";

/// What adapters are, and what they stand beside. Of `lora` rank, alpha, targets, rslora and dora
/// are set, of a checkpoint also dropout and base.
struct AdapterFacts {
  RunConfig::Lora lora;
  std::string base;  ///< a folder, or what else a file of peft's names; "" where it does not
  Json base_hashes = nullptr;  ///< as base_hashes() makes them (base_hashes.h); null: unknown
};

/// A folder of peft's.
bool looks_like_adapter(const std::filesystem::path& folder);

/// FOLDER/adapter_config.json. Throws DataError for any other method than LoRA and DoRA, for what
/// would make some adapters differ from others (rank_pattern, layers_to_transform, ...), for
/// weights beside the adapters (modules_to_save, bias, ...), for a base that was changed with them
/// (init_lora_weights "pissa", ...) and for targets as a regular expression; each by its key.
/// Keys that change nothing of what an adapter adds are ignored, known or not.
AdapterFacts read_adapter_config(const std::filesystem::path& folder);

/// What a checkpoint's manifest says of its adapters; nothing where it holds a whole model. Throws
/// DataError naming `source`.
std::optional<AdapterFacts> adapters_of(const Manifest& manifest, std::string_view source);

/// An adapter_config.json that peft loads beside this model.
Json adapter_config_json(const AdapterFacts& facts, const ModelConfig& model);

/// How two adapters of a model differ: "rank 4 where WHERE has 8"; "" where A and B of one mean the
/// same in the other: rank, scale, magnitudes, the products that they stand beside.
std::string adapter_difference(const RunConfig::Lora& found, const RunConfig::Lora& wanted,
                               const ModelConfig& model, std::string_view where);

/// The model with these adapters (set_adapters). DataError naming `source` where a target is no
/// linear product of the model's layers.
ModelConfig with_adapters(const ModelConfig& model, const RunConfig::Lora& lora,
                          std::string_view source);

}  // namespace trireme
