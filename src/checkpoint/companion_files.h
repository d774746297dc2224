#pragma once
// The small files that stand in a Hugging Face folder beside the weights and belong to its
// tokenizer or say how to generate. A checkpoint keeps them beside its shards, byte for byte, and
// an export hands them on: nothing of theirs can be derived from the weights.

#include <filesystem>
#include <string_view>
#include <vector>

#include "checkpoint/writer.h"

namespace trireme {

inline constexpr std::string_view kTokenizerName = "tokenizer.json";
inline constexpr std::string_view kTokenizerConfigName = "tokenizer_config.json";
inline constexpr std::string_view kGenerationConfigName = "generation_config.json";

/// True for a tokenizer's files: its vocabulary in any form, its settings, its chat template.
bool belongs_to_tokenizer(std::string_view name);
/// That, or kGenerationConfigName.
bool is_companion(std::string_view name);

/// The companions in `folder`, in a fixed order; none without the folder. Throws DataError.
std::vector<ExtraFile> read_companions(const std::filesystem::path& folder);

}  // namespace trireme
