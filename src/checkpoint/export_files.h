#pragma once
// What a Hugging Face directory has beside its weights, and how such a folder comes to be whole.

#include <filesystem>
#include <functional>

#include "base/dtype.h"
#include "checkpoint/manifest.h"

namespace trireme {

/// config.json, generation_config.json and the tokenizer's files, from what a checkpoint keeps.
void write_model_files(const std::filesystem::path& checkpoint, const Manifest& manifest,
                       DType dtype, const std::filesystem::path& folder);

/// The path of a directory to write, without a slash at its end.
std::filesystem::path output_target(const std::filesystem::path& output);

/// ConfigError where `output` is there and neither empty nor an earlier export.
void check_export_output(const std::filesystem::path& output);

/// A new folder beside `target`, of a name that nobody reads.
std::filesystem::path make_temporary_folder(const std::filesystem::path& target);

/// `write(folder)` into such a folder, which is gone where that throws.
void write_in_temporary_folder(const std::filesystem::path& target,
                               const std::function<void(const std::filesystem::path&)>& write);

/// Says in `folder` that it is an export, and of which step where `source` is a checkpoint.
void write_export_mark(const std::filesystem::path& source, const std::filesystem::path& folder);

/// Gives the finished folder its name; an earlier export under it goes in one exchange.
void commit_export(const std::filesystem::path& folder, const std::filesystem::path& output);

void write_json(const std::filesystem::path& path, const Json& json);

/// The one file of weights gets the name that peft gives it.
void name_adapter_weights(const std::filesystem::path& folder);

}  // namespace trireme
