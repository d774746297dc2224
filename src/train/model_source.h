#pragma once
// Where weights come from: a checkpoint of ours or a Hugging Face directory.

#include <filesystem>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "config/model_config.h"
#include "store/state.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

class ModelSource {
 public:
  /// A step folder, a folder of checkpoints, a run (the newest that verifies), or a Hugging Face
  /// directory. Throws DataError, ConfigError for a model that is not trained. Collective.
  ModelSource(const std::filesystem::path& path, Communicator& world);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const ModelConfig& model() const { return model_; }
  [[nodiscard]] bool is_checkpoint() const { return checkpoint_; }
  /// Any of them ends a text: generation_config.json's, maybe several; else the model config's.
  [[nodiscard]] const std::vector<std::int64_t>& end_tokens() const { return end_tokens_; }
  /// What load_tokenizer takes; "" where the source has none.
  [[nodiscard]] const std::string& tokenizer() const { return tokenizer_; }
  /// data.sequence_length of the run that made the checkpoint; 0 where it does not say.
  [[nodiscard]] std::int64_t sequence_length() const { return sequence_length_; }
  /// Fills every "parameters/NAME" of `state`. Collective; throws DataError.
  void load(State& state, Communicator& world) const;

 private:
  std::filesystem::path path_;
  bool checkpoint_ = false;
  ModelConfig model_;
  std::vector<std::int64_t> end_tokens_;
  std::string tokenizer_;
  std::int64_t sequence_length_ = 0;
};

}  // namespace trireme
