#pragma once
// Hugging Face directories in and out. Names, shapes and orientation of "parameters/NAME" are those
// that transformers saves for the family, so nothing is renamed or transposed on the way, but for
// experts that a file has in one tensor (tensor_parts.h); GPT-2 files without the prefix
// "transformer." are read as well.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/dtype.h"
#include "base/shape.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_set.h"
#include "comm/communicator.h"
#include "config/model_config.h"
#include "store/state.h"

namespace trireme {

/// Fills every tensor of `state` ("parameters/NAME", fp32) with its box of the weights in `folder`.
/// Buffers (causal masks, RoPE's frequencies) are ignored, and layers behind the model's that
/// predict further tokens; so is a head equal to the embedding
/// where the state has none. Throws DataError on every rank: tensors missing or left over, other
/// shapes, an untied head for a tied model, whatever SafetensorsFolder refuses. `all`: where the
/// states of all ranks have a part of the model, the names of the whole, without "parameters/".
/// Collective.
void import_weights(const std::filesystem::path& folder, State& state, Communicator& world,
                    const std::set<std::string>& all = {});

/// What import_weights would refuse of the names and shapes in `folder`, by the files' headers
/// alone. `wanted` has every parameter of the model, without "parameters/". Throws DataError.
void check_weights(const std::filesystem::path& folder, const std::map<std::string, Shape>& wanted);

struct ExportOptions {
  std::optional<DType> dtype;  ///< kF32 or kBF16; none: as the model's config names it, else fp32
  std::int64_t file_bytes_max = SafetensorsWriter::kFileBytesMax;
  /// Called after each tensor of this rank; what it throws ends the export. May be empty.
  std::function<void()> after_tensor;
  WeightSet weights = WeightSet::kLast;
};

struct ExportResult {
  std::int64_t tensors = 0, parameters = 0, bytes = 0;
  DType dtype = DType::kF32;
};

/// Writes a checkpoint's parameters as a directory that transformers' from_pretrained loads:
/// config.json, weights, the tokenizer's files and generation_config.json as the checkpoint keeps
/// them (companion_files.h), derived where it does not.
/// The ranks deal the files of weights among them, each reads the tensors of its own and holds one
/// at a time; the bytes are those of one rank. Every shard's hash is verified. `output` comes to be
/// by a rename; one that exists and is neither empty nor an earlier export is refused
/// (ConfigError), an earlier export is replaced. Throws DataError on every rank. Collective.
ExportResult export_checkpoint(const std::filesystem::path& checkpoint,
                               const std::filesystem::path& output, const ExportOptions& options,
                               Communicator& world);

/// Adapters, and the weights that they stand beside, known to fit each other.
struct MergedModel {
  std::filesystem::path adapters;  ///< a step folder or a folder of peft's
  std::filesystem::path base;      ///< a step folder or a Hugging Face directory
  ModelConfig model;               ///< with adapters (set_adapters)
  bool base_in_nf4 = false;        ///< beside them (lora.base)
};

/// export_checkpoint of the whole model with the adapters merged (adapted_weights.h). Files beside
/// the weights are those that the checkpoint of adapters keeps; of a folder of peft's, the base's.
ExportResult export_merged(const MergedModel& merged, const std::filesystem::path& output,
                           const ExportOptions& options, Communicator& world);

}  // namespace trireme
