#include "checkpoint/average.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "base/file.h"
#include "base/missing_path.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/export_files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "config/model_parse.h"

namespace trireme {

namespace {

constexpr std::string_view kStatePrefix = "parameters/", kGpt2Prefix = "transformer.";

struct StoredWeight {
  std::string dtype;  ///< "F32", "BF16", "F16", or what else a file says
  std::vector<std::int64_t> shape;
  [[nodiscard]] std::int64_t count() const {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    return count;
  }
};

/// The weights of one checkpoint, by Hugging Face's names.
class WeightSource {
 public:
  explicit WeightSource(std::filesystem::path path) : path_(std::move(path)) {}
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::map<std::string, StoredWeight>& weights() const { return weights_; }
  /// The name here of another source's weight: GPT-2 files may leave out the prefix. "" where none.
  [[nodiscard]] std::string name_here(const std::string& name) const {
    if (weights_.contains(name)) return name;
    if (name.starts_with(kGpt2Prefix)) {
      const std::string rest = name.substr(kGpt2Prefix.size());
      return weights_.contains(rest) ? rest : "";
    }
    const std::string prefixed = std::string(kGpt2Prefix) + name;
    return weights_.contains(prefixed) ? prefixed : "";
  }
  /// Its config; nothing where it says none that this program reads: means need none.
  [[nodiscard]] std::optional<ModelConfig> model() const {
    std::vector<Problem> problems;
    std::vector<std::string> notes;
    const Json keys = model_keys();
    if (!keys.is_object()) return std::nullopt;
    ModelConfig model = read_model(keys, problems, notes);
    return problems.empty() ? std::optional(std::move(model)) : std::nullopt;
  }
  /// The bytes as they are stored.
  virtual void read(const std::string& name, std::span<std::byte> out) const = 0;
  virtual void write_files(const std::filesystem::path& folder, bool bf16) const = 0;

 protected:
  [[nodiscard]] virtual Json model_keys() const = 0;

  std::filesystem::path path_;
  std::map<std::string, StoredWeight> weights_;
};

class CheckpointSource : public WeightSource {
 public:
  explicit CheckpointSource(const std::filesystem::path& path)
      : WeightSource(path), manifest_(read_manifest(path)), reader_(path, manifest_) {
    for (const ManifestTensor& tensor : manifest_.tensors) {
      if (!tensor.name.starts_with(kStatePrefix)) continue;
      const auto sizes = tensor.shape.sizes();
      const std::string dtype = tensor.dtype == DType::kF32    ? "F32"
                                : tensor.dtype == DType::kBF16 ? "BF16"
                                                               : std::string(name_of(tensor.dtype));
      weights_[tensor.name.substr(kStatePrefix.size())] = {dtype, {sizes.begin(), sizes.end()}};
    }
    if (weights_.empty()) throw DataError("{}: holds no parameters", path.string());
  }
  void read(const std::string& name, std::span<std::byte> out) const override {
    reader_.read(*manifest_.find(std::string(kStatePrefix) + name), out.data());
  }
  void write_files(const std::filesystem::path& folder, bool bf16) const override {
    write_model_files(path_, manifest_, bf16 ? DType::kBF16 : DType::kF32, folder);
  }

 private:
  [[nodiscard]] Json model_keys() const override { return manifest_.model; }

  Manifest manifest_;
  mutable TensorReader reader_;  // remembers the indices that it has read
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
    const std::string_view config = "config.json";
    if (is_there(path_ / config)) write_file_atomically(folder / config, read_file(path_ / config));
  }

 private:
  [[nodiscard]] Json model_keys() const override {
    const std::filesystem::path config = path_ / "config.json";
    return is_there(config) ? parse_json(read_file(config), config.string()) : Json();
  }

  SafetensorsFolder files_;
};

std::unique_ptr<WeightSource> open_source(const std::filesystem::path& path) {
  if (is_there(path / kManifestName)) return std::make_unique<CheckpointSource>(path);
  if (!is_there(path))
    throw DataError("{}. Give checkpoints or Hugging Face directories", missing_path_text(path));
  if (!is_folder(path)) {
    throw DataError("{}: is a file. Give a checkpoint's folder, or a Hugging Face directory",
                    path.string());
  }
  if (is_there(path / "adapter_config.json")) {
    throw ConfigError(
        "{}: holds an adapter; their mean is not in this version. Merge each into its model first",
        path.string());
  }
  return std::make_unique<FolderSource>(path);
}

std::string text_of(const StoredWeight& weight) {
  return SafetensorsTensor{"", weight.dtype, weight.shape, 0, 0}.text();
}

std::size_t bytes_of(const StoredWeight& weight) {
  return static_cast<std::size_t>(weight.count()) * (weight.dtype == "F32" ? 4 : 2);
}

void check_float(const WeightSource& source, const std::string& name, const StoredWeight& weight) {
  if (weight.dtype == "F32" || weight.dtype == "BF16" || weight.dtype == "F16") return;
  throw ConfigError("{}: {} is {} (means are taken of F32, BF16 and F16)", source.path().string(),
                    name, text_of(weight));
}

/// Equal shapes may be those of other heads.
void check_same_model(const WeightSource& first, const WeightSource& other) {
  const std::optional<ModelConfig> wanted = first.model(), found = other.model();
  if (!wanted || !found) return;
  const std::string difference =
      shape_difference(*found, *wanted, other.path().string(), first.path().string());
  if (!difference.empty()) throw ConfigError("{} (they are not of one model)", difference);
}

/// All sources have the names and shapes of the first.
void check_same(const std::vector<std::unique_ptr<WeightSource>>& sources) {
  const WeightSource& first = *sources.front();
  for (const auto& [name, weight] : first.weights()) check_float(first, name, weight);
  for (const auto& source : sources) {
    for (const auto& [name, weight] : first.weights()) {
      const std::string here = source->name_here(name);
      if (here.empty()) {
        throw ConfigError("{}: has no {}, which {} has (they are not of one model)",
                          source->path().string(), name, first.path().string());
      }
      const StoredWeight& other = source->weights().at(here);
      if (other.shape != weight.shape) {
        throw ConfigError("{}: {} is {}, in {} it is {} (they are not of one model)",
                          source->path().string(), here, text_of(other), first.path().string(),
                          text_of(weight));
      }
      check_float(*source, here, other);
    }
    for (const auto& [name, weight] : source->weights()) {
      if (first.name_here(name).empty()) {
        throw ConfigError("{}: has {}, which {} lacks (they are not of one model)",
                          source->path().string(), name, first.path().string());
      }
    }
    check_same_model(first, *source);
  }
}

float half_value(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const float scaled =
      std::bit_cast<float>(static_cast<std::uint32_t>(half & 0x7fffU) << 13) * 0x1p112F;
  const std::uint32_t special = (half & 0x7fffU) >= 0x7c00U ? 0x7f800000U : 0U;
  return std::bit_cast<float>(sign | special | std::bit_cast<std::uint32_t>(scaled));
}

template <class T>
T value_at(const std::byte* bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

/// sum += x, or sum = x: a sum that began with 0 would lose the sign of -0.
void accumulate(std::string_view dtype, const std::byte* bytes, std::span<double> sum, bool first) {
  const auto each = [&](auto value_of) {
    if (first) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = value_of(i);
    } else {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += value_of(i);
    }
  };
  if (dtype == "F32") {
    each([&](std::size_t i) { return static_cast<double>(value_at<float>(bytes, i)); });
  } else if (dtype == "BF16") {
    each([&](std::size_t i) {
      return static_cast<double>(to_float(BFloat16{value_at<std::uint16_t>(bytes, i)}));
    });
  } else {
    each([&](std::size_t i) {
      return static_cast<double>(half_value(value_at<std::uint16_t>(bytes, i)));
    });
  }
}

void round_means(std::string_view dtype, std::span<const double> sum, double count,
                 std::byte* out) {
  const auto put = [&](std::size_t i, auto value) {
    std::memcpy(out + i * sizeof value, &value, sizeof value);
  };
  if (dtype == "F32") {
    for (std::size_t i = 0; i < sum.size(); ++i) put(i, static_cast<float>(sum[i] / count));
  } else if (dtype == "BF16") {
    for (std::size_t i = 0; i < sum.size(); ++i) put(i, rounded_to_16_bits(sum[i] / count, 8, 7));
  } else {
    for (std::size_t i = 0; i < sum.size(); ++i) put(i, rounded_to_16_bits(sum[i] / count, 5, 10));
  }
}

void write_means(const std::vector<std::unique_ptr<WeightSource>>& sources,
                 SafetensorsWriter& writer, const AverageOptions& options) {
  std::vector<std::byte> bytes;
  std::vector<double> sum;
  for (const SafetensorsWriter::Tensor& tensor : writer.tensors()) {
    sum.resize(sources.size() > 1 ? static_cast<std::size_t>(tensor.shape.count()) : 0);
    for (const auto& source : sources) {
      const std::string name = source->name_here(tensor.name);
      const StoredWeight& weight = source->weights().at(name);
      bytes.resize(bytes_of(weight));
      source->read(name, bytes);
      if (sources.size() > 1)
        accumulate(weight.dtype, bytes.data(), sum, source == sources.front());
    }
    if (sources.size() > 1) {
      bytes.resize(sum.size() * (tensor.dtype == "F32" ? 4 : 2));
      round_means(tensor.dtype, sum, static_cast<double>(sources.size()), bytes.data());
    }
    writer.write_bytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (options.after_tensor) options.after_tensor();
  }
}

void check_output(const std::filesystem::path& output) {
  std::error_code code;
  if (!std::filesystem::exists(std::filesystem::symlink_status(output, code))) return;
  if (is_folder(output) && std::filesystem::is_empty(output, code)) return;
  throw ConfigError("--output: {} is there (nothing is overwritten). Give a new folder",
                    output.string());
}

/// Gives the finished folder its name. What has come to be there in the meantime stays.
void commit_new(const std::filesystem::path& folder, const std::filesystem::path& target) {
  sync_path(folder);
  if (::rename(folder.c_str(), target.c_str()) !=
      0) {  // replaces an empty folder, and nothing else
    throw DataError("{}: cannot rename to {}: {}", folder.string(), target.string(),
                    errno_text(errno));
  }
}

}  // namespace

std::uint16_t rounded_to_16_bits(double value, int exponent_bits, int mantissa_bits) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 48 & 0x8000U);
  const std::uint64_t magnitude = bits & ~(std::uint64_t{1} << 63);
  const std::uint64_t infinite = ((std::uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  if (std::isnan(value))
    return static_cast<std::uint16_t>(sign | infinite | std::uint64_t{1} << (mantissa_bits - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1, shift = 52 - mantissa_bits;
  std::uint64_t rounded = 0;
  if (std::abs(value) < std::ldexp(1.0, 1 - bias)) {  // in steps of the smallest subnormal
    rounded = static_cast<std::uint64_t>(
        std::nearbyint(std::ldexp(std::abs(value), bias - 1 + mantissa_bits)));
  } else {
    rounded =
        (magnitude + (std::uint64_t{1} << (shift - 1)) - 1 + (magnitude >> shift & 1)) >> shift;
    rounded -= static_cast<std::uint64_t>(1023 - bias) << mantissa_bits;
  }
  return static_cast<std::uint16_t>(sign | std::min(rounded, infinite));
}

AverageResult average_weights(const std::vector<std::filesystem::path>& sources,
                              const std::filesystem::path& output, const AverageOptions& options) {
  check_output(output);
  std::vector<std::unique_ptr<WeightSource>> opened;
  for (const std::filesystem::path& source : sources) opened.push_back(open_source(source));
  check_same(opened);
  std::vector<SafetensorsWriter::Tensor> tensors;
  AverageResult result;
  bool bf16 = true;
  for (const auto& [name, weight] : opened.front()->weights()) {
    tensors.push_back({name, Shape(weight.shape), weight.dtype});
    result.parameters += weight.count();
    bf16 = bf16 && weight.dtype == "BF16";
  }
  result.tensors = static_cast<std::int64_t>(tensors.size());
  const std::filesystem::path target = output_target(output);
  const std::filesystem::path folder = make_temporary_folder(target);
  try {
    SafetensorsWriter writer(folder, DType::kF32, std::move(tensors), options.file_bytes_max);
    write_means(opened, writer, options);
    writer.finish();
    result.bytes = writer.bytes();
    opened.front()->write_files(folder, bf16);
    commit_new(folder, target);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    throw;
  }
  return result;
}

}  // namespace trireme
