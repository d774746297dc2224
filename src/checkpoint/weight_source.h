#pragma once
// The weights of a checkpoint of ours, a Hugging Face directory or a folder of peft's, by name and
// whole: for what takes one tensor after the other.

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/adapter_config.h"
#include "checkpoint/weight_set.h"
#include "comm/communicator.h"
#include "config/model_config.h"

namespace trireme {

struct StoredWeight {
  std::string dtype;  ///< "F32", "BF16", "F16", or what else a file says
  std::vector<std::int64_t> shape;
  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] std::string text() const;  ///< "F32 [2, 3]"
};

/// By the names of parameters; those of experts that a file has in one tensor, and all adapters of
/// experts (expert_adapters.h), by the file's. All throw DataError.
class WeightSource {
 public:
  explicit WeightSource(std::filesystem::path path) : path_(std::move(path)) {}
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::map<std::string, StoredWeight>& weights() const { return weights_; }
  /// Of a source that holds adapters alone.
  [[nodiscard]] const std::optional<AdapterFacts>& adapters() const { return adapters_; }
  /// The name here of another source's weight: GPT-2 files may leave out the prefix. "" where none.
  [[nodiscard]] std::string name_here(const std::string& name) const;
  /// Its config; nothing where it says none that this program reads: means need none.
  [[nodiscard]] std::optional<ModelConfig> model() const;
  /// The same where it is needed. DataError.
  [[nodiscard]] ModelConfig required_model() const;
  /// Hugging Face's config keys; null where there are none.
  [[nodiscard]] virtual Json model_keys() const = 0;
  /// The bytes as they are stored.
  virtual void read(const std::string& name, std::span<std::byte> out) const = 0;
  /// All of a tensor, until the next call.
  [[nodiscard]] std::span<const float> read_fp32(const std::string& name) const;
  /// What stands beside the weights; of a file of `bf16` or fp32, where the config says it.
  virtual void write_files(const std::filesystem::path& folder, bool bf16) const = 0;

 protected:
  std::filesystem::path path_;
  std::map<std::string, StoredWeight> weights_;
  std::optional<AdapterFacts> adapters_;

 private:
  mutable std::vector<std::byte> bytes_;
  mutable std::vector<float> values_;
};

/// A step folder, a Hugging Face directory or a folder of peft's. Averages are of a step folder.
std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path,
                                           WeightSet set = WeightSet::kLast);

/// The same; manifests are read by rank 0 alone. Errors on every rank. Collective.
std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& path, Communicator& world,
                                           WeightSet set = WeightSet::kLast);

/// The parameter that a file's tensor is: those of GPT-2 may stand there without "transformer.".
std::string parameter_name(const std::string& stored, const ModelConfig& model);

/// Exact.
float half_value(std::uint16_t half);

}  // namespace trireme
