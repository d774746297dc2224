#include "checkpoint/weight_source.h"

#include <bit>
#include <cstring>

#include "base/file.h"
#include "base/missing_path.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/boxes.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/expert_adapters.h"
#include "checkpoint/export_files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "config/adapters.h"
#include "config/model_parse.h"

namespace trireme {

namespace {

constexpr std::string_view kStatePrefix = "parameters/", kGpt2Prefix = "transformer.";
constexpr std::string_view kConfigName = "config.json";

class CheckpointSource : public WeightSource {
 public:
  CheckpointSource(const std::filesystem::path& path, Manifest manifest, WeightSet set)
      : WeightSource(path), manifest_(std::move(manifest)), set_(set), reader_(path, manifest_) {
    require_weights(manifest_, path, set);
    for (const ManifestTensor& tensor : manifest_.tensors) {
      if (!tensor.name.starts_with(kStatePrefix)) continue;
      const auto sizes = tensor.shape.sizes();
      const std::string dtype = tensor.dtype == DType::kF32    ? "F32"
                                : tensor.dtype == DType::kBF16 ? "BF16"
                                                               : std::string(name_of(tensor.dtype));
      weights_[tensor.name.substr(kStatePrefix.size())] = {dtype, {sizes.begin(), sizes.end()}};
    }
    if (weights_.empty()) throw DataError("{}: holds no parameters", path.string());
    adapters_ = adapters_of(manifest_, (path / kManifestName).string());
    if (adapters_) join_experts();
  }
  void read(const std::string& name, std::span<std::byte> out) const override {
    const auto parts = together_.find(name);
    if (parts == together_.end())
      return reader_.read(*manifest_.find(stored_name(manifest_, name, set_)), out.data());
    std::vector<float> values;
    for (const Part& part : parts->second) {
      values.resize(static_cast<std::size_t>(part.tensor->shape.count()));
      reader_.read(*part.tensor, reinterpret_cast<std::byte*>(values.data()));
      part.place.put(part.tensor->shape, values.data(), reinterpret_cast<float*>(out.data()));
    }
  }
  void write_files(const std::filesystem::path& folder, bool bf16) const override {
    if (!adapters_)
      return write_model_files(path_, manifest_, bf16 ? DType::kBF16 : DType::kF32, folder);
    write_json(folder / kAdapterConfigName, adapter_config_json(*adapters_, required_model()));
  }

  [[nodiscard]] Json model_keys() const override { return manifest_.model; }

 private:
  struct Part {
    const ManifestTensor* tensor;
    ExpertAdapterPart place;
  };
  /// Adapters of a layer's experts are one tensor, as in files of peft's.
  void join_experts() {
    const auto& targets = adapters_->lora.targets;
    if (std::none_of(targets.begin(), targets.end(), names_experts)) return;
    const ModelConfig model = with_adapters(required_model(), adapters_->lora, path_.string());
    for (auto& [name, place] : expert_adapter_parts(model)) {
      const ManifestTensor* tensor = manifest_.find(stored_name(manifest_, name, set_));
      if (tensor == nullptr || tensor->dtype != DType::kF32)
        throw DataError("{}: {} is not there in fp32", path_.string(), name);
      weights_.erase(name);
      const Shape shape = place.stored_shape(tensor->shape);
      weights_[place.stored] = {"F32", {shape.sizes().begin(), shape.sizes().end()}};
      together_[place.stored].push_back({tensor, place});
    }
  }

  Manifest manifest_;
  WeightSet set_;
  mutable TensorReader reader_;  // remembers the indices that it has read
  std::map<std::string, std::vector<Part>> together_;
};

class FolderSource : public WeightSource {
 public:
  explicit FolderSource(const std::filesystem::path& path) : WeightSource(path), files_(path) {
    for (const auto& [name, located] : files_.tensors()) {
      // Constants that some versions' files carry beside the weights, among them byte masks.
      if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
          name.ends_with("rotary_emb.inv_freq"))
        continue;
      weights_[name] = {located.tensor->dtype, located.tensor->shape};
    }
  }
  void read(const std::string& name, std::span<std::byte> out) const override {
    const auto& located = files_.tensors().find(name)->second;
    located.file->read_bytes(*located.tensor, out);
  }
  void write_files(const std::filesystem::path& folder, bool /*bf16*/) const override {
    for (const ExtraFile& file : read_companions(path_))
      write_file_atomically(folder / file.name, file.content);
    if (is_there(path_ / kConfigName))
      write_file_atomically(folder / kConfigName, read_file(path_ / kConfigName));
  }

  [[nodiscard]] Json model_keys() const override {
    const std::filesystem::path config = path_ / kConfigName;
    return is_there(config) ? parse_json(read_file(config), config.string()) : Json();
  }

 private:
  SafetensorsFolder files_;
};

class AdapterSource : public WeightSource {
 public:
  explicit AdapterSource(const std::filesystem::path& path) : WeightSource(path), file_(path) {
    adapters_ = read_adapter_config(path);
    for (const auto& [name, tensor] : file_.tensors())
      weights_[name] = {tensor->dtype, tensor->shape};
  }
  void read(const std::string& name, std::span<std::byte> out) const override {
    file_.file().read_bytes(*file_.tensors().at(name), out);
  }
  void write_files(const std::filesystem::path& folder, bool /*bf16*/) const override {
    write_file_atomically(folder / kAdapterConfigName, read_file(path_ / kAdapterConfigName));
  }

  [[nodiscard]] Json model_keys() const override { return {}; }

 private:
  AdapterFile file_;
};

}  // namespace

std::int64_t StoredWeight::count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::string StoredWeight::text() const { return SafetensorsTensor{"", dtype, shape, 0, 0}.text(); }

std::string WeightSource::name_here(const std::string& name) const {
  if (weights_.contains(name)) return name;
  if (name.starts_with(kGpt2Prefix)) {
    const std::string rest = name.substr(kGpt2Prefix.size());
    return weights_.contains(rest) ? rest : "";
  }
  const std::string prefixed = std::string(kGpt2Prefix) + name;
  return weights_.contains(prefixed) ? prefixed : "";
}

std::optional<ModelConfig> WeightSource::model() const {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const Json keys = model_keys();
  if (!keys.is_object()) return std::nullopt;
  ModelConfig model = read_model(keys, problems, notes);
  return problems.empty() ? std::optional(std::move(model)) : std::nullopt;
}

ModelConfig WeightSource::required_model() const {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ModelConfig model = read_model(model_keys(), problems, notes);
  if (problems.empty()) return model;
  const bool checkpoint = is_there(path_ / kManifestName);
  throw DataError("{}: {}", (path_ / (checkpoint ? kManifestName : kConfigName)).string(),
                  format_problem(problems.front()));
}

std::span<const float> WeightSource::read_fp32(const std::string& name) const {
  const StoredWeight& weight = weights_.at(name);
  if (weight.dtype != "F32" && weight.dtype != "BF16" && weight.dtype != "F16") {
    throw DataError("{}: {} is {} (parameters are F32, BF16 or F16)", path_.string(), name,
                    weight.text());
  }
  const auto count = static_cast<std::size_t>(weight.count());
  const bool wide = weight.dtype == "F32";
  bytes_.resize(count * (wide ? sizeof(float) : sizeof(std::uint16_t)));
  read(name, bytes_);
  if (wide) return {reinterpret_cast<const float*>(bytes_.data()), count};
  values_.resize(count);
  const auto* stored = reinterpret_cast<const std::uint16_t*>(bytes_.data());
  if (weight.dtype == "BF16") {
    for (std::size_t i = 0; i < count; ++i) values_[i] = to_float(BFloat16{stored[i]});
  } else {
    for (std::size_t i = 0; i < count; ++i) values_[i] = half_value(stored[i]);
  }
  return values_;
}

std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path, WeightSet set) {
  if (is_there(path / kManifestName))
    return std::make_unique<CheckpointSource>(path, read_manifest(path), set);
  if (!is_there(path))
    throw DataError("{}. Give checkpoints or Hugging Face directories", missing_path_text(path));
  if (!is_folder(path)) {
    throw DataError("{}: is a file. Give a checkpoint's folder, or a Hugging Face directory",
                    path.string());
  }
  if (looks_like_adapter(path)) return std::make_unique<AdapterSource>(path);
  return std::make_unique<FolderSource>(path);
}

std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path, Communicator& world,
                                           WeightSet set) {
  std::unique_ptr<WeightSource> source;
  if (!is_there(path / kManifestName)) {
    run_together(world, [&] { source = open_weights(path, set); });
    return source;
  }
  Manifest manifest = read_manifest(path, world);
  run_together(
      world, [&] { source = std::make_unique<CheckpointSource>(path, std::move(manifest), set); });
  return source;
}

std::string parameter_name(const std::string& stored, const ModelConfig& model) {
  const bool whole = model.family != Family::kGpt2 || stored.starts_with(kGpt2Prefix) ||
                     stored == "lm_head.weight";
  return whole ? stored : std::string(kGpt2Prefix) + stored;
}

float half_value(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const float scaled =
      std::bit_cast<float>(static_cast<std::uint32_t>(half & 0x7fffU) << 13) * 0x1p112F;
  const std::uint32_t special = (half & 0x7fffU) >= 0x7c00U ? 0x7f800000U : 0U;
  return std::bit_cast<float>(sign | special | std::bit_cast<std::uint32_t>(scaled));
}

}  // namespace trireme
