#pragma once
// The files that a config names, as a start of its run would find them.

#include <filesystem>
#include <memory>
#include <vector>

#include "config/parse.h"
#include "dataset/sources.h"
#include "tokenizer/tokenizer.h"
#include "train/model_source.h"

namespace trireme {

/// read_run_config where the model of a config that names none is that of init.weights, a Hugging
/// Face directory or a checkpoint. Where init.weights is gone and the run has a checkpoint to go on
/// from, its model is taken (it beats init.weights anyway), and a note says so.
LoadedConfig read_config_with_model(const ConfigInput& input);

enum class DataFiles : std::uint8_t {
  kLeftOut,  ///< not looked at: they need not be on this host
  kOpened,   ///< indices read and checked, lengths counted
  kChecked,  ///< token ids compared with the vocabulary too, as make_training_source does
};

struct Inputs {
  std::unique_ptr<Tokenizer> tokenizer;  ///< null where it cannot be read
  DataFacts data;                        ///< of the training data, where they were opened
  /// Every fault with the key that names the file: kData for a file's content or absence.
  std::vector<Problem> problems;
};

/// Opens tokenizer, init.weights (names and shapes of all tensors), training and validation data
/// and a folder that run.resume names, as every command that takes a CONFIG does. Sections of the
/// config with problems are not looked at. On one rank.
Inputs check_inputs(const LoadedConfig& loaded, DataFiles data);

/// Throws where a checkpoint does not hold the weights of the model that its own manifest names, by
/// names and shapes (of adapters beside it: theirs): a DataError, and a ConfigError for a model
/// that this version does not train.
void check_own_model(const std::filesystem::path& step_folder);
/// The same of adapters and of their base.
void check_own_model(const ModelSource& source);

/// Throws where the folder of init.adapter does not hold adapters of the model's: ConfigError where
/// it says others than `lora` does, DataError where its tensors are not those.
void check_init_adapter(const RunConfig& config);

}  // namespace trireme
