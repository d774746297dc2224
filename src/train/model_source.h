#pragma once
// Where weights come from: a checkpoint of ours, a Hugging Face directory, or adapters (a
// checkpoint of a run of them, or a folder of peft's) and the weights that they stand beside.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/adapter_config.h"
#include "checkpoint/reader.h"
#include "checkpoint/weight_set.h"
#include "comm/communicator.h"
#include "config/model_config.h"
#include "store/state.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

class ModelSource {
 public:
  /// A step folder, a folder of checkpoints, a run (the newest that verifies), a Hugging Face
  /// directory, or a folder of peft's. `base`: where the weights are that adapters stand beside;
  /// empty: where the adapters say. `set`: of a checkpoint's weights, not its base's. Throws
  /// DataError, ConfigError for a model that is not trained. Collective.
  ModelSource(const std::filesystem::path& path, Communicator& world,
              const std::filesystem::path& base = {}, WeightSet set = WeightSet::kLast);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const ModelConfig& model() const { return model_; }
  [[nodiscard]] bool is_checkpoint() const { return checkpoint_; }
  /// The weights beside which its adapters stand; null for a whole model.
  [[nodiscard]] const ModelSource* base() const { return base_.get(); }
  /// model() with the adapters, where there are any: it has none itself.
  [[nodiscard]] const ModelConfig& adapted_model() const { return adapted_model_; }
  /// Adapters were trained beside a base in NF4.
  [[nodiscard]] bool base_in_nf4() const {
    return adapters_ && adapters_->lora.base == LoraBase::kNf4;
  }
  /// Any of them ends a text: generation_config.json's, maybe several; else the model config's.
  [[nodiscard]] const std::vector<std::int64_t>& end_tokens() const { return end_tokens_; }
  /// What load_tokenizer takes; "" where the source has none.
  [[nodiscard]] const std::string& tokenizer() const { return tokenizer_; }
  /// data.sequence_length of the run that made the checkpoint; 0 where it does not say.
  [[nodiscard]] std::int64_t sequence_length() const { return sequence_length_; }
  /// Throws DataError unless the base's files are those of the adapters' run. Collective.
  void check_base_files(Communicator& world) const;
  /// Fills every "parameters/NAME" of `state`: of model(), adapters merged. Together the ranks have
  /// all of them. Checks the base's files. Collective; throws DataError.
  void load(State& state, Communicator& world) const;
  /// The same of whatever the states of all ranks name, a part of model(). For a source that has no
  /// adapters.
  void load_part(State& state, Communicator& world) const;

 private:
  /// `depth`: how many adapters stand upon it.
  ModelSource(const std::filesystem::path& path, Communicator& world,
              const std::filesystem::path& base, WeightSet set, int depth);
  /// Of the checkpoint's own parameters, all or some.
  void load_own(State& state, Communicator& world, LoadScope scope) const;
  void read_checkpoint(const std::filesystem::path& path, Communicator& world);
  void read_folder();
  void take_base(Communicator& world, const std::filesystem::path& base, int depth);

  std::filesystem::path path_;
  WeightSet set_;
  bool checkpoint_ = false;
  ModelConfig model_;
  std::vector<std::int64_t> end_tokens_;
  std::string tokenizer_;
  std::int64_t sequence_length_ = 0;
  std::optional<AdapterFacts> adapters_;
  ModelConfig adapted_model_;
  std::unique_ptr<const ModelSource> base_;
};

}  // namespace trireme
