#pragma once
// What a Hugging Face directory has beside its weights, and how such a folder comes to be whole.

#include <filesystem>

#include "base/dtype.h"
#include "checkpoint/manifest.h"

namespace trireme {

/// config.json, generation_config.json and the tokenizer's files, from what a checkpoint keeps.
void write_model_files(const std::filesystem::path& checkpoint, const Manifest& manifest,
                       DType dtype, const std::filesystem::path& folder);

/// The path of a directory to write, without a slash at its end.
std::filesystem::path output_target(const std::filesystem::path& output);

/// A new folder beside `target`, of a name that nobody reads.
std::filesystem::path make_temporary_folder(const std::filesystem::path& target);

}  // namespace trireme
