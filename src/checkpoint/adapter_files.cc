#include "checkpoint/adapter_files.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/boxes.h"
#include "checkpoint/expert_adapters.h"
#include "checkpoint/export_files.h"
#include "checkpoint/name_sets.h"
#include "checkpoint/weight_source.h"
#include "config/adapters.h"

namespace trireme {

namespace {

constexpr std::string_view kStatePrefix = "parameters/",
                           kHeadInFile = "base_model.model.lm_head.base_layer.weight";

/// "M.lora_A.NAME.weight" is "M.lora_A.weight" of the adapter NAME, and
/// "M.lora_magnitude_vector.NAME.weight" "M.lora_magnitude_vector".
std::string our_name(std::string name) {
  if (name.starts_with(kAdapterPrefix)) name.erase(0, kAdapterPrefix.size());
  for (const std::string_view factor : {".lora_A.", ".lora_B."}) {
    const std::size_t at = name.find(factor);
    if (at != std::string::npos && name.ends_with(".weight"))
      return name.substr(0, at) + std::string(factor) + "weight";
  }
  constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
  const std::size_t at = name.find(std::string(kMagnitude) + ".");
  return at == std::string::npos ? name : name.substr(0, at + kMagnitude.size());
}

std::filesystem::path weights_file(const std::filesystem::path& folder) {
  std::filesystem::path path = folder / kAdapterWeightsName;
  if (is_there(path)) return path;
  throw DataError(
      "{}: holds no {} (other files of weights are not read). Save the adapter with peft's "
      "save_pretrained(..., safe_serialization=True)",
      folder.string(), kAdapterWeightsName);
}

void check_names(const AdapterFile& adapter, const std::set<std::string>& wanted) {
  std::vector<std::string> missing, surplus;
  for (const std::string& name : wanted)
    if (!adapter.tensors().contains(name)) missing.push_back(name);
  for (const auto& [name, tensor] : adapter.tensors())
    if (!wanted.contains(name)) surplus.push_back(name);
  if (missing.empty() && surplus.empty()) return;
  throw DataError("{}: does not hold this model's adapters.{}", adapter.file().path().string(),
                  mismatch_text(missing, surplus));
}

const SafetensorsTensor& checked(const AdapterFile& adapter, const std::string& name,
                                 const Shape& wanted) {
  const SafetensorsTensor& tensor = *adapter.tensors().at(name);
  const auto sizes = wanted.sizes();
  if (std::equal(tensor.shape.begin(), tensor.shape.end(), sizes.begin(), sizes.end()))
    return tensor;
  throw DataError("{}: {} is {}, the model has {}", adapter.file().path().string(), tensor.name,
                  tensor.text(), wanted.text());
}

/// The names of this rank's tensors, without "parameters/".
std::vector<std::string> names_of(const State& state) {
  std::vector<std::string> names;
  for (const StateTensor& tensor : state.tensors) {
    expect(tensor.name.starts_with(kStatePrefix) && tensor.dtype == DType::kF32,
           "{} {} among the adapters to import", name_of(tensor.dtype), tensor.name);
    names.push_back(tensor.name.substr(kStatePrefix.size()));
  }
  return names;
}

/// Where files have experts one by one peft takes other products of their names for them, as it
/// does with adapters from before transformers 5.
void warn_of_mistaken_names(const WeightSource& source) {
  static constexpr std::array kFamilies = {Family::kQwen3Moe, Family::kGlm4Moe,
                                           Family::kDeepseekV3};
  const ModelConfig model =
      with_adapters(source.required_model(), source.adapters()->lora, source.path().string());
  if (std::find(kFamilies.begin(), kFamilies.end(), model.family) == kFamilies.end()) return;
  const bool mistaken = std::any_of(
      model.layers.begin(), model.layers.end(),
      [](const LayerConfig& layer) { return layer.adapters.mlp_in + layer.adapters.mlp_out > 0; });
  if (mistaken) {
    log_warning(
        "{}: peft does not load adapters of gate_proj, up_proj and down_proj beside a {}: it takes "
        "them for those of experts. This program does; or merge them (export --merge)",
        source.path().string(), name_of(model.family));
  }
}

void write_adapter(const WeightSource& source, const std::filesystem::path& folder,
                   const ExportOptions& options, ExportResult& result) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const auto& [name, weight] : source.weights()) {
    tensors.push_back({std::string(kAdapterPrefix) + name, Shape(weight.shape)});
    result.parameters += weight.count();
  }
  result.tensors = std::ssize(tensors);
  SafetensorsWriter writer(folder, result.dtype, std::move(tensors),
                           std::numeric_limits<std::int64_t>::max());
  result.bytes = writer.bytes();
  for (const auto& [name, weight] : source.weights()) {
    writer.write(source.read_fp32(name));
    if (options.after_tensor) options.after_tensor();
  }
  writer.finish();
  source.write_files(folder, result.dtype == DType::kBF16);
  name_adapter_weights(folder);
}

}  // namespace

AdapterFile::AdapterFile(const std::filesystem::path& folder) : file_(weights_file(folder)) {
  for (const SafetensorsTensor& tensor : file_.tensors()) {
    if (tensor.name == kHeadInFile) {
      head_ = &tensor;
      continue;
    }
    const auto [place, added] = tensors_.emplace(our_name(tensor.name), &tensor);
    if (!added) {
      throw DataError("{}: {} and {} are one parameter (of two adapters)", file_.path().string(),
                      place->second->name, tensor.name);
    }
  }
}

void check_head_of_adapter(const std::filesystem::path& folder, const std::filesystem::path& base) {
  const AdapterFile adapter(folder);
  const SafetensorsTensor* const saved = adapter.head();
  if (saved == nullptr) return;
  const auto source = open_weights(base);
  const std::string name = fmt::format("{}.weight", kHeadModule);
  const auto own = source->weights().find(name);
  if (own == source->weights().end()) return;  // of adapters merged into what is beside them
  bool same = own->second.shape == saved->shape;
  if (same) {
    const std::span<const float> values = source->read_fp32(name);
    std::vector<float> found(values.size());
    adapter.file().read_fp32(*saved, whole(Shape(saved->shape)), found.data());
    const float relative = saved->dtype == "BF16"  ? 0x1p-8F
                           : saved->dtype == "F16" ? 0x1p-11F
                                                   : 0,
                least = saved->dtype == "F16" ? 0x1p-25F : 0;
    same = std::equal(values.begin(), values.end(), found.begin(), [&](float of_base, float here) {
      return std::abs(of_base - here) <= relative * std::abs(of_base) + least;
    });
  }
  if (same) return;
  throw DataError(
      "{}: {} is another than {} of {}, beside which these adapters are to stand. Give the base "
      "that they were trained beside",
      adapter.file().path().string(), saved->name, name, base.string());
}

namespace {

void add_expert_shapes(const ModelConfig& model, const LinearModule& module,
                       std::map<std::string, Shape>& shapes) {
  const ExpertsConfig& experts = *model.layer(module.layer).experts;
  const bool first = module.place == &AdapterRanks::experts_in;
  const std::int64_t in = first ? model.hidden : experts.ffn,
                     out = first ? 2 * experts.ffn : model.hidden, rank = model.adapters->rank;
  for (std::int64_t expert = 0; expert < experts.count; ++expert) {
    shapes[expert_adapter_name(module.name, expert, 'A')] = {rank, in};
    shapes[expert_adapter_name(module.name, expert, 'B')] = {out, rank};
  }
}

}  // namespace

std::map<std::string, Shape> adapter_shapes(const ModelConfig& model,
                                            const std::map<std::string, Shape>& weights) {
  expect(model.adapters.has_value(), "a model without adapters");
  const AdapterConfig& adapters = *model.adapters;
  std::map<std::string, Shape> shapes;
  for (const LinearModule& module : linear_modules(model)) {
    if (!adapters.adapts(module.name)) continue;
    if (module.of_experts) {
      add_expert_shapes(model, module, shapes);
      continue;
    }
    const Shape& weight = weights.at(module.name + ".weight");
    const bool in_out = stored_in_out(model, module.name);
    const std::int64_t out = weight[in_out ? 1 : 0], in = weight[in_out ? 0 : 1];
    shapes[module.name + ".lora_A.weight"] = {adapters.rank, in};
    shapes[module.name + ".lora_B.weight"] = {out, adapters.rank};
    if (adapters.magnitudes) shapes[module.name + ".lora_magnitude_vector"] = {out};
  }
  return shapes;
}

void check_adapter(const std::filesystem::path& folder, const ModelConfig& model,
                   const std::map<std::string, Shape>& wanted) {
  const AdapterFile adapter(folder);
  const std::map<std::string, Shape> shapes = shapes_in_file(model, wanted);
  std::set<std::string> names;
  for (const auto& [name, shape] : shapes) names.insert(name);
  check_names(adapter, names);
  for (const auto& [name, shape] : shapes) (void)checked(adapter, name, shape);
}

namespace {

/// Of what a file has together each tensor is read once.
class PartReads {
 public:
  PartReads(const AdapterFile& adapter, const ModelConfig& model)
      : adapter_(adapter), parts_(expert_adapter_parts(model)) {}

  /// Whether it is a part of another.
  bool add(const std::string& name, const StateTensor& tensor) {
    const auto part = parts_.find(name);
    if (part == parts_.end()) return false;
    together_[part->second.stored].push_back({&part->second, &tensor});
    return true;
  }
  void run() const {
    std::vector<float> values;
    for (const auto& [stored, parts] : together_) {
      const Shape shape = parts[0].part->stored_shape(parts[0].tensor->global_shape);
      values.resize(static_cast<std::size_t>(shape.count()));
      adapter_.file().read_fp32(checked(adapter_, stored, shape), whole(shape), values.data());
      for (const auto& [part, tensor] : parts)
        part->take(tensor->global_shape, values.data(), tensor->box,
                   reinterpret_cast<float*>(tensor->data));
    }
  }

 private:
  struct Read {
    const ExpertAdapterPart* part;
    const StateTensor* tensor;
  };
  const AdapterFile& adapter_;
  const std::map<std::string, ExpertAdapterPart> parts_;
  std::map<std::string, std::vector<Read>> together_;
};

std::set<std::string> names_in_file(const ModelConfig& model, const State& state) {
  std::map<std::string, Shape> shapes;
  const std::vector<std::string> names = names_of(state);
  for (std::size_t i = 0; i < names.size(); ++i)
    shapes.emplace(names[i], state.tensors[i].global_shape);
  std::set<std::string> stored;
  for (const auto& [name, shape] : shapes_in_file(model, shapes)) stored.insert(name);
  return stored;
}

}  // namespace

void import_adapter(const std::filesystem::path& folder, const ModelConfig& model, State& state,
                    Communicator& world) {
  const std::set<std::string> mine = names_in_file(model, state);
  const std::set<std::string> wanted = union_of_names({mine.begin(), mine.end()}, world);
  run_together(world, [&] {
    const AdapterFile adapter(folder);
    check_names(adapter, wanted);
    SafetensorsReads reads;
    PartReads parts(adapter, model);
    for (const StateTensor& tensor : state.tensors) {
      const std::string name = tensor.name.substr(kStatePrefix.size());
      if (parts.add(name, tensor)) continue;
      reads.add(adapter.file(), checked(adapter, name, tensor.global_shape), tensor.box,
                reinterpret_cast<float*>(tensor.data));
    }
    reads.run();
    parts.run();
  });
}

ExportResult export_adapter(const std::filesystem::path& checkpoint,
                            const std::filesystem::path& output, const ExportOptions& options,
                            Communicator& world) {
  ExportResult result;
  result.dtype = options.dtype.value_or(DType::kF32);
  run_together(world, [&] {
    if (world.rank() != 0) return;
    check_export_output(output);
    const auto source = open_weights(checkpoint, options.weights);
    if (!source->adapters())
      throw ConfigError("{}: holds a whole model, no adapters", checkpoint.string());
    warn_of_mistaken_names(*source);
    const std::filesystem::path target = output_target(output);
    write_in_temporary_folder(target, [&](const std::filesystem::path& folder) {
      write_adapter(*source, folder, options, result);
      write_export_mark(checkpoint, folder);
      commit_export(folder, target);
    });
  });
  return result;
}

}  // namespace trireme
