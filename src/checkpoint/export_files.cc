#include "checkpoint/export_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/adapter_config.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/retention.h"
#include "config/model_parse.h"

namespace trireme {

namespace {

constexpr std::string_view kMarkName =
    "trireme_export.json";  // says that a folder is ours to replace

/// The text of a token in tokenizer.json's list of added tokens; "" where it is not there.
std::string added_token(const Json& tokenizer, const Json* id) {
  const Json* added = tokenizer.find("added_tokens");
  if (id == nullptr || !id->is_integer() || added == nullptr || !added->is_array()) return "";
  for (const Json& token : added->as_array()) {
    const Json* number = token.find("id");
    const Json* content = token.find("content");
    if (number != nullptr && *number == *id && content != nullptr && content->is_string())
      return content->as_string();
  }
  return "";
}

/// What transformers needs beside a tokenizer.json that came alone. The class named takes that file
/// as it is; one chosen by the model's type would replace parts of it by its own.
void write_tokenizer_settings(const std::filesystem::path& checkpoint,
                              const std::filesystem::path& folder, const Json& config) {
  const std::filesystem::path source = checkpoint / kTokenizerName;
  const Json tokenizer = parse_json(read_file(source), source.string());
  Json settings = Json::object();
  Json special = Json::object();
  settings["tokenizer_class"] = "PreTrainedTokenizerFast";
  settings["clean_up_tokenization_spaces"] = false;
  if (const Json* positions = config.find("max_position_embeddings"))
    settings["model_max_length"] = *positions;
  if (const Json* positions = config.find("n_positions")) settings["model_max_length"] = *positions;
  for (const char* name : {"bos_token", "eos_token", "pad_token"}) {
    const std::string token = added_token(tokenizer, config.find(std::string(name) + "_id"));
    if (!token.empty()) settings[name] = special[name] = token;
  }
  write_json(folder / kTokenizerConfigName, settings);
  const std::filesystem::path map = folder / "special_tokens_map.json";
  if (!is_there(map)) write_json(map, special);
}

void write_generation_config(const std::filesystem::path& folder, const Json& config) {
  Json generation = Json::object();
  generation["_from_model_config"] = true;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const Json* id = config.find(key);
    if (id != nullptr && !id->is_null()) generation[key] = *id;
  }
  write_json(folder / kGenerationConfigName, generation);
}

/// What the checkpoint keeps as it is; the rest is derived.
void write_companions(const std::filesystem::path& checkpoint, const Manifest& manifest,
                      const std::filesystem::path& folder, const Json& config) {
  for (const ManifestFile& file : manifest.files) {
    if (is_companion(file.file))
      write_file_atomically(folder / file.file, read_file(checkpoint / file.file));
  }
  const auto kept = [&](std::string_view name) { return manifest.find_file(name) != nullptr; };
  if (kept(kTokenizerName) && !kept(kTokenizerConfigName))
    write_tokenizer_settings(checkpoint, folder, config);
  if (!kept(kGenerationConfigName)) write_generation_config(folder, config);
}

}  // namespace

void write_json(const std::filesystem::path& path, const Json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

void write_model_files(const std::filesystem::path& checkpoint, const Manifest& manifest,
                       DType dtype, const std::filesystem::path& folder) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const ModelConfig model = read_model(manifest.model, problems, notes);
  if (!problems.empty()) {
    throw DataError("{}: {}", (checkpoint / kManifestName).string(),
                    format_problem(problems.front()));
  }
  const Json config = hf_config_json(model, dtype);
  write_companions(checkpoint, manifest, folder, config);
  write_json(folder / "config.json", config);
}

std::filesystem::path output_target(const std::filesystem::path& output) {
  return std::filesystem::absolute(output / "").lexically_normal().parent_path();
}

std::filesystem::path make_temporary_folder(const std::filesystem::path& target) {
  std::error_code code;
  std::filesystem::create_directories(target.parent_path(), code);
  std::filesystem::path folder =
      target.parent_path() / fmt::format(".{}.tmp-{}", target.filename().string(), unique_suffix());
  std::filesystem::create_directory(folder, code);
  if (code) throw DataError("{}: cannot make this folder: {}", folder.string(), code.message());
  return folder;
}

void check_export_output(const std::filesystem::path& output) {
  std::error_code code;
  if (!is_there(output)) return;
  if (!is_folder(output)) {
    throw ConfigError("--output: {} is not a folder. Give a new one", output.string());
  }
  if (!std::filesystem::is_empty(output, code) && !is_there(output / kMarkName)) {
    throw ConfigError(
        "--output: {} is not empty and not an earlier export (its files could be lost). Give a new "
        "folder",
        output.string());
  }
}

void write_in_temporary_folder(const std::filesystem::path& target,
                               const std::function<void(const std::filesystem::path&)>& write) {
  const std::filesystem::path folder = make_temporary_folder(target);
  try {
    write(folder);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    throw;
  }
}

void write_export_mark(const std::filesystem::path& source, const std::filesystem::path& folder) {
  Json mark = Json::object();
  if (!is_there(source / kManifestName)) return write_json(folder / kMarkName, mark);
  const Manifest manifest = read_manifest(source);
  mark["step"] = manifest.step;
  mark["consumed_samples"] = manifest.consumed_samples;
  mark["versions"] = manifest.versions;
  write_json(folder / kMarkName, mark);
}

void commit_export(const std::filesystem::path& folder, const std::filesystem::path& output) {
  std::error_code code;
  sync_path(folder);
  if (is_there(output)) {
    if (::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, output.c_str(), RENAME_EXCHANGE) == 0) {
      std::filesystem::remove_all(folder, code);
      return;
    }
    remove_folder(output);
  }
  if (::rename(folder.c_str(), output.c_str()) != 0) {
    throw DataError("{}: cannot rename to {}: {}", folder.string(), output.string(),
                    errno_text(errno));
  }
}

void name_adapter_weights(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::rename(folder / "model.safetensors", folder / kAdapterWeightsName, code);
  if (code) throw DataError("{}: cannot rename its weights: {}", folder.string(), code.message());
}

}  // namespace trireme
