#include <map>
#include <set>

#include "base/file.h"
#include "checkpoint/adapted_weights.h"
#include "checkpoint/export_files.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/nf4_base.h"
#include "checkpoint/tensor_parts.h"
#include "checkpoint/weight_source.h"
#include "config/model_parse.h"

namespace trireme {

namespace {

constexpr std::string_view kF32Suffix = ".e_score_correction_bias";  ///< in fp32 beside any weights
constexpr std::string_view kHeadName = "lm_head.weight";

/// Lossless where it can be: what the weights were imported from, else the checkpoint's fp32.
DType dtype_of(const Json& model) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const Json* named = model.find(key);
    if (named != nullptr && named->is_string() && named->as_string() == "bfloat16")
      return DType::kBF16;
  }
  return DType::kF32;
}

/// A tensor of an export: one of the source's, or all that are parts of it, by their index.
struct ExportedTensor {
  Shape shape;
  std::string dtype;  ///< as the writer takes it
  std::vector<std::vector<std::string>> slices;
};
/// By the names in files.
using ExportedTensors = std::map<std::string, ExportedTensor>;

/// What is written: the weights, what is merged into them, and the source of all other files.
struct Exported {
  const WeightSource& weights;
  const AdapterMerge* merge = nullptr;
  const WeightSource& files;
  const ModelConfig& model;
};

/// Reads the tensors of one file from the source and writes them.
class PartExport {
 public:
  PartExport(const Exported& what, const ExportedTensors& tensors, SafetensorsWriter& writer)
      : what_(what), tensors_(tensors), writer_(writer) {}

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
  void write_slice(const std::vector<std::string>& parts) {
    if (!part_of(parts[0])) return writer_.write(values_of(parts[0]));
    for (const std::string& name : parts) {
      const Shape shape(what_.weights.weights().at(name).shape);
      slice_.resize(static_cast<std::size_t>(shape.count()) * parts.size());
      part_of(name)->put(shape, values_of(name).data(), slice_.data());
    }
    writer_.write_slice(slice_);
  }

  /// Until the next is read.
  std::span<const float> values_of(const std::string& name) {
    const std::span<const float> values = what_.weights.read_fp32(name);
    const std::string ours = parameter_name(name, what_.model);
    if (what_.merge == nullptr || !what_.merge->changes(ours)) return values;
    merged_.assign(values.begin(), values.end());
    what_.merge->add(ours, merged_);
    return merged_;
  }

  const Exported& what_;
  const ExportedTensors& tensors_;
  SafetensorsWriter& writer_;
  std::vector<float> merged_, slice_;
};

/// Of a Hugging Face directory, which may hold more: a tied head, layers that predict further
/// tokens.
bool is_of_model(const std::string& name, const ModelConfig& model) {
  if (name == kHeadName) return !model.tied_embeddings;
  constexpr std::string_view kLayers = "model.layers.";
  return !name.starts_with(kLayers) ||
         std::atoll(name.c_str() + kLayers.size()) < model.layer_count();
}

/// Throws DataError where parts are missing, or differ in shape.
ExportedTensors parameters_of(const WeightSource& source, const ModelConfig& model) {
  std::set<std::string> names;
  const bool checkpoint = is_there(source.path() / kManifestName);
  for (const auto& [name, weight] : source.weights())
    if (checkpoint || is_of_model(name, model)) names.insert(name);
  const auto counts = count_parts(names);
  ExportedTensors exported;
  for (const std::string& name : names) {
    const StoredWeight& weight = source.weights().at(name);
    const auto part = part_of(name);
    if (weight.shape.size() > static_cast<std::size_t>(part ? 2 : Shape::kRankMax))
      throw DataError("{}: {} has {} dims", source.path().string(), name, weight.shape.size());
    const Shape of_one(weight.shape);
    if (!part) {
      exported[parameter_name(name, model)] = {
          of_one, name.ends_with(kF32Suffix) ? "F32" : "", {{name}}};
      continue;
    }
    const std::int64_t count = counts.at(part->stored);
    if (of_one.rank() < 1) throw DataError("{}: {} has no dims", source.path().string(), name);
    ExportedTensor& to = exported[part->stored];
    const Shape shape = part->stored_shape(of_one, count);
    if (to.slices.empty()) {
      to.shape = shape;
      to.slices.resize(static_cast<std::size_t>(count));
    }
    to.slices[static_cast<std::size_t>(part->index)].push_back(name);
    if (shape != to.shape)
      throw DataError("{}: parts of {} differ in shape", source.path().string(), part->stored);
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

void write_files(const Exported& what, DType dtype, const std::filesystem::path& folder) {
  const std::filesystem::path& path = what.files.path();
  if (is_there(path / kManifestName))  // of adapters too, which keep what belongs to the model
    return write_model_files(path, read_manifest(path), dtype, folder);
  what.files.write_files(folder, dtype == DType::kBF16);
  write_json(folder / "config.json", hf_config_json(what.model, dtype));  // it names the type
}

ExportResult write_export(const Exported& what, const std::filesystem::path& output,
                          const ExportOptions& options, Communicator& world) {
  const bool leader = world.rank() == 0;
  const std::filesystem::path target = output_target(output);
  ExportedTensors exported;
  std::filesystem::path folder;
  run_together(world, [&] { exported = parameters_of(what.weights, what.model); });
  run_together(world, [&] {
    if (leader) folder = make_temporary_folder(target);
  });
  folder = world.broadcast_text(folder.string(), 0);
  ExportResult result;
  result.dtype = options.dtype.value_or(dtype_of(what.files.model_keys()));
  result.tensors = static_cast<std::int64_t>(exported.size());
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const auto& [name, tensor] : exported) {
    tensors.push_back({name, tensor.shape, tensor.dtype});
    result.parameters += tensor.shape.count();
  }
  try {
    SafetensorsWriter writer(folder, result.dtype, std::move(tensors), options.file_bytes_max);
    result.bytes = writer.bytes();
    PartExport part_export(what, exported, writer);
    write_parts(part_export, writer.parts().size(), options, world);
    run_together(world, [&] {
      if (!leader) return;
      writer.finish();
      write_files(what, result.dtype, folder);
      write_export_mark(what.files.path(), folder);
      commit_export(folder, target);
    });
  } catch (...) {
    std::error_code ignored;
    if (leader) std::filesystem::remove_all(folder, ignored);  // every rank is past its last write
    throw;
  }
  return result;
}

}  // namespace

ExportResult export_checkpoint(const std::filesystem::path& checkpoint,
                               const std::filesystem::path& output, const ExportOptions& options,
                               Communicator& world) {
  run_together(world, [&] {
    if (world.rank() == 0) check_export_output(output);
  });
  const auto source = open_weights(checkpoint, world, options.weights);
  ModelConfig model;
  // Found out before hours of writing.
  run_together(world, [&] { model = source->required_model(); });
  return write_export({*source, nullptr, *source, model}, output, options, world);
}

ExportResult export_merged(const MergedModel& merged, const std::filesystem::path& output,
                           const ExportOptions& options, Communicator& world) {
  run_together(world, [&] {
    if (world.rank() == 0) check_export_output(output);
  });
  const auto adapters = open_weights(merged.adapters, world, options.weights),
             base = open_weights(merged.base, world);
  const AdapterMerge merge(
      merged.model, *adapters,
      merged.base_in_nf4 ? nf4_weights(merged.model) : std::set<std::string>());
  const bool checkpoint = is_there(merged.adapters / kManifestName);
  return write_export({*base, &merge, checkpoint ? *adapters : *base, merged.model}, output,
                      options, world);
}

}  // namespace trireme
