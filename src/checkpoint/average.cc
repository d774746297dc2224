#include "checkpoint/average.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "base/file.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/export_files.h"
#include "checkpoint/weight_source.h"
#include "config/model_parse.h"

namespace trireme {

namespace {

std::size_t bytes_of(const StoredWeight& weight) {
  return static_cast<std::size_t>(weight.count()) * (weight.dtype == "F32" ? 4 : 2);
}

void check_float(const WeightSource& source, const std::string& name, const StoredWeight& weight) {
  if (weight.dtype == "F32" || weight.dtype == "BF16" || weight.dtype == "F16") return;
  throw ConfigError("{}: {} is {} (means are taken of F32, BF16 and F16)", source.path().string(),
                    name, weight.text());
}

/// Equal shapes may be those of other heads.
void check_same_model(const WeightSource& first, const WeightSource& other) {
  const std::optional<ModelConfig> wanted = first.model(), found = other.model();
  if (!wanted || !found) return;
  const std::string difference =
      shape_difference(*found, *wanted, other.path().string(), first.path().string());
  if (!difference.empty()) throw ConfigError("{} (they are not of one model)", difference);
}

/// The files of two bases, where both are known by their hashes; else what names them.
bool has_other_base(const AdapterFacts& first, const AdapterFacts& other) {
  if (!first.base_hashes.is_null() && !other.base_hashes.is_null())
    return first.base_hashes != other.base_hashes;
  return !first.base.empty() && !other.base.empty() && first.base != other.base;
}

/// Equal names and shapes say that rank and targets are equal.
void check_same_adapters(const WeightSource& first, const WeightSource& other) {
  const auto &wanted = first.adapters(), &found = other.adapters();
  if (wanted.has_value() != found.has_value()) {
    throw ConfigError("{}: holds {}, {} {} (there is no mean of both)", other.path().string(),
                      found ? "adapters" : "a whole model", first.path().string(),
                      found ? "a whole model" : "adapters");
  }
  if (!wanted) return;
  if (*wanted->lora.rank != *found->lora.rank) {
    throw ConfigError("{}: adapters of rank {}, {} has rank {}", other.path().string(),
                      *found->lora.rank, first.path().string(), *wanted->lora.rank);
  }
  if (wanted->lora.scale() != found->lora.scale() || wanted->lora.dora != found->lora.dora) {
    throw ConfigError("{}: adapters of scale {}{}, {} has {}{} (alpha, rslora, dora)",
                      other.path().string(), found->lora.scale(), found->lora.dora ? ", DoRA" : "",
                      first.path().string(), wanted->lora.scale(),
                      wanted->lora.dora ? ", DoRA" : "");
  }
  if (has_other_base(*wanted, *found)) {
    throw ConfigError("{}: adapters beside {}, {} has some beside {}{} (their mean means nothing)",
                      other.path().string(), found->base, first.path().string(), wanted->base,
                      found->base == wanted->base ? ", whose files are others" : "");
  }
}

/// All sources have the names and shapes of the first.
void check_same(const std::vector<std::unique_ptr<WeightSource>>& sources) {
  const WeightSource& first = *sources.front();
  for (const auto& [name, weight] : first.weights()) check_float(first, name, weight);
  for (const auto& source : sources) {
    check_same_adapters(first, *source);
    for (const auto& [name, weight] : first.weights()) {
      const std::string here = source->name_here(name);
      if (here.empty()) {
        throw ConfigError("{}: has no {}, which {} has (they are not of one model)",
                          source->path().string(), name, first.path().string());
      }
      const StoredWeight& other = source->weights().at(here);
      if (other.shape != weight.shape) {
        throw ConfigError("{}: {} is {}, in {} it is {} (they are not of one model)",
                          source->path().string(), here, other.text(), first.path().string(),
                          weight.text());
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
  auto own_name = sources.front()->weights().begin();  // the writer's stand in this order
  for (const SafetensorsWriter::Tensor& tensor : writer.tensors()) {
    const std::string& of_first = (own_name++)->first;
    sum.resize(sources.size() > 1 ? static_cast<std::size_t>(tensor.shape.count()) : 0);
    for (const auto& source : sources) {
      const std::string name = source->name_here(of_first);
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
  for (const std::filesystem::path& source : sources) opened.push_back(open_weights(source));
  check_same(opened);
  std::vector<SafetensorsWriter::Tensor> tensors;
  AverageResult result;
  bool bf16 = true;
  const bool adapters = opened.front()->adapters().has_value();
  const std::string prefix(adapters ? kAdapterPrefix : "");
  for (const auto& [name, weight] : opened.front()->weights()) {
    tensors.push_back({prefix + name, Shape(weight.shape), weight.dtype});
    result.parameters += weight.count();
    bf16 = bf16 && weight.dtype == "BF16";
  }
  result.tensors = static_cast<std::int64_t>(tensors.size());
  const std::filesystem::path target = output_target(output);
  write_in_temporary_folder(target, [&](const std::filesystem::path& folder) {
    SafetensorsWriter writer(
        folder, DType::kF32, std::move(tensors),
        adapters ? std::numeric_limits<std::int64_t>::max() : options.file_bytes_max);
    write_means(opened, writer, options);
    writer.finish();
    result.bytes = writer.bytes();
    opened.front()->write_files(folder, bf16);
    if (adapters) name_adapter_weights(folder);
    commit_new(folder, target);
  });
  return result;
}

}  // namespace trireme
