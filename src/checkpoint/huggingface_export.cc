#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/export_files.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/tensor_parts.h"
#include "config/model_parse.h"

namespace trireme {

namespace {

constexpr std::string_view kStatePrefix = "parameters/";
constexpr std::string_view kF32Suffix = ".e_score_correction_bias";  ///< in fp32 beside any weights
constexpr std::string_view kMarkName =
    "trireme_export.json";  // says that a folder is ours to replace

std::string name_of_parameter(const ManifestTensor& tensor) {
  return tensor.name.substr(kStatePrefix.size());
}

ModelConfig model_of(const Manifest& manifest, const std::string& source) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ModelConfig model = read_model(manifest.model, problems, notes);
  if (!problems.empty()) {
    throw DataError("{}: {}", source, format_problem(problems.front()));
  }
  return model;
}

/// Lossless where it can be: what the weights were imported from, else the checkpoint's fp32.
DType dtype_of(const Manifest& manifest) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const Json* named = manifest.model.find(key);
    if (named != nullptr && named->is_string() && named->as_string() == "bfloat16")
      return DType::kBF16;
  }
  return DType::kF32;
}

void check_output(const std::filesystem::path& output) {
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

void write_json(const std::filesystem::path& path, const Json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

/// A tensor of an export: one of the checkpoint's, or all that are parts of it, by their index.
struct ExportedTensor {
  Shape shape;
  std::string dtype;  ///< as the writer takes it
  std::vector<std::vector<const ManifestTensor*>> slices;
};
/// By the names in files.
using ExportedTensors = std::map<std::string, ExportedTensor>;

/// Reads the tensors of one file from the checkpoint and writes them.
class PartExport {
 public:
  PartExport(const std::filesystem::path& checkpoint, const Manifest& manifest,
             const ExportedTensors& tensors, SafetensorsWriter& writer)
      : checkpoint_(checkpoint),
        tensors_(tensors),
        writer_(writer),
        reader_(checkpoint, manifest) {}

  void write(std::size_t part, const std::function<void()>& after_tensor) {
    writer_.go_to(part);
    const auto [name, begin, end] = writer_.parts()[part];
    for (std::size_t i = begin; i < end; ++i) {
      for (const auto& parts : tensors_.at(writer_.tensors()[i].name).slices) write_slice(parts);
      if (after_tensor) after_tensor();
    }
  }
  void give_up() { writer_.give_up(); }

 private:
  void write_slice(const std::vector<const ManifestTensor*>& parts) {
    const auto first = part_of(name_of_parameter(*parts[0]));
    if (!first) return writer_.write(values_of(*parts[0]));
    slice_.resize(static_cast<std::size_t>(parts[0]->shape.count()) * parts.size());
    for (const ManifestTensor* tensor : parts)
      part_of(name_of_parameter(*tensor))
          ->put(tensor->shape, values_of(*tensor).data(), slice_.data());
    writer_.write_slice(slice_);
  }

  /// Until the next is read.
  std::span<const float> values_of(const ManifestTensor& tensor) {
    const auto count = static_cast<std::size_t>(tensor.shape.count());
    bytes_.resize(count * size_of(tensor.dtype));
    reader_.read(tensor, bytes_.data());
    if (tensor.dtype == DType::kF32) return {reinterpret_cast<const float*>(bytes_.data()), count};
    if (tensor.dtype != DType::kBF16) {
      throw DataError("{}: {} is {} (parameters are fp32 or bf16)", checkpoint_.string(),
                      tensor.name, name_of(tensor.dtype));
    }
    const auto* halves = reinterpret_cast<const BFloat16*>(bytes_.data());
    widened_.resize(count);
    for (std::size_t i = 0; i < count; ++i) widened_[i] = to_float(halves[i]);
    return widened_;
  }

  const std::filesystem::path& checkpoint_;
  const ExportedTensors& tensors_;
  SafetensorsWriter& writer_;
  TensorReader reader_;
  std::vector<std::byte> bytes_;
  std::vector<float> widened_, slice_;
};

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

void write_mark(const Manifest& manifest, const std::filesystem::path& folder) {
  Json mark = Json::object();
  mark["step"] = manifest.step;
  mark["consumed_samples"] = manifest.consumed_samples;
  mark["versions"] = manifest.versions;
  write_json(folder / kMarkName, mark);
}

/// Gives the finished folder its name; an earlier export under it goes in one exchange.
void commit(const std::filesystem::path& folder, const std::filesystem::path& output) {
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

/// Throws DataError where parts are missing, or differ in shape.
ExportedTensors parameters_of(const Manifest& manifest, const std::filesystem::path& checkpoint) {
  std::map<std::string, const ManifestTensor*> tensors;
  std::set<std::string> names;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (!tensor.name.starts_with(kStatePrefix)) continue;
    tensors.emplace(name_of_parameter(tensor), &tensor);
    names.insert(name_of_parameter(tensor));
  }
  if (tensors.empty()) throw DataError("{}: holds no parameters", checkpoint.string());
  const auto counts = count_parts(names);
  ExportedTensors exported;
  for (const auto& [name, tensor] : tensors) {
    const auto part = part_of(name);
    if (!part) {
      exported[name] = {tensor->shape, name.ends_with(kF32Suffix) ? "F32" : "", {{tensor}}};
      continue;
    }
    const std::int64_t count = counts.at(part->stored);
    if (tensor->shape.rank() < 1 || tensor->shape.rank() > 2)
      throw DataError("{}: {} has {} dims", checkpoint.string(), name, tensor->shape.rank());
    ExportedTensor& to = exported[part->stored];
    const Shape shape = part->stored_shape(tensor->shape, count);
    if (to.slices.empty()) {
      to.shape = shape;
      to.slices.resize(static_cast<std::size_t>(count));
    }
    to.slices[static_cast<std::size_t>(part->index)].push_back(tensor);
    if (shape != to.shape)
      throw DataError("{}: parts of {} differ in shape", checkpoint.string(), part->stored);
  }
  return exported;
}

/// File i falls to rank i modulo the ranks. They meet after each round: a fault of one ends all
/// soon, and none waits for another longer than a file takes.
void write_parts(PartExport& part_export, std::size_t parts, const ExportOptions& options,
                 Communicator& world) {
  const auto rank = static_cast<std::size_t>(world.rank());
  const auto ranks = static_cast<std::size_t>(world.size());
  for (std::size_t first = 0; first < parts; first += ranks) {
    run_together(world, [&] {
      if (first + rank >= parts) return;
      try {
        part_export.write(first + rank, options.after_tensor);
      } catch (...) {
        part_export.give_up();  // before rank 0 hears of it and removes the folder
        throw;
      }
    });
  }
}

}  // namespace

void write_model_files(const std::filesystem::path& checkpoint, const Manifest& manifest,
                       DType dtype, const std::filesystem::path& folder) {
  const Json config =
      hf_config_json(model_of(manifest, (checkpoint / kManifestName).string()), dtype);
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

ExportResult export_checkpoint(const std::filesystem::path& checkpoint,
                               const std::filesystem::path& output, const ExportOptions& options,
                               Communicator& world) {
  const bool leader = world.rank() == 0;
  const std::filesystem::path target = output_target(output);
  ExportedTensors exported;
  std::filesystem::path folder;
  run_together(world, [&] {
    if (leader) check_output(output);
  });
  const Manifest manifest = read_manifest(checkpoint, world);
  run_together(world, [&] {
    model_of(manifest, (checkpoint / kManifestName).string());  // found out before hours of writing
    exported = parameters_of(manifest, checkpoint);
  });
  run_together(world, [&] {
    if (leader) folder = make_temporary_folder(target);
  });
  folder = world.broadcast_text(folder.string(), 0);
  ExportResult result;
  result.dtype = options.dtype.value_or(dtype_of(manifest));
  result.tensors = static_cast<std::int64_t>(exported.size());
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const auto& [name, tensor] : exported) {
    tensors.push_back({name, tensor.shape, tensor.dtype});
    result.parameters += tensor.shape.count();
  }
  try {
    SafetensorsWriter writer(folder, result.dtype, std::move(tensors), options.file_bytes_max);
    result.bytes = writer.bytes();
    PartExport part_export(checkpoint, manifest, exported, writer);
    write_parts(part_export, writer.parts().size(), options, world);
    run_together(world, [&] {
      if (!leader) return;
      writer.finish();
      write_model_files(checkpoint, manifest, result.dtype, folder);
      write_mark(manifest, folder);
      commit(folder, target);
    });
  } catch (...) {
    std::error_code ignored;
    if (leader) std::filesystem::remove_all(folder, ignored);  // every rank is past its last write
    throw;
  }
  return result;
}

}  // namespace trireme
