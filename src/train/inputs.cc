#include "train/inputs.h"

#include <functional>
#include <map>
#include <optional>

#include "base/file.h"
#include "base/missing_path.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/name_sets.h"
#include "checkpoint/reader.h"
#include "config/model_parse.h"
#include "model/param_table.h"

namespace trireme {

namespace {

constexpr std::string_view kParameterPrefix = "parameters/";

/// The newest of a folder whose manifest and sizes of files are good; nothing where there is none.
std::optional<CheckpointInfo> newest_of(const std::filesystem::path& argument) {
  for (CheckpointInfo& info : find_checkpoints(argument)) {
    if (info.problem.empty()) return std::move(info);
  }
  return std::nullopt;
}

/// What the run would go on from in place of init.weights.
std::optional<CheckpointInfo> checkpoint_to_resume(const RunConfig& config) {
  const ResumeChoice& resume = config.run.resume;
  const std::filesystem::path own = config.checkpoint_directory();
  switch (resume.kind) {
    case ResumeKind::kNever:
      return std::nullopt;
    case ResumeKind::kStep:
      return newest_of(own / step_folder_name(resume.step));
    case ResumeKind::kDirectory:
      return newest_of(resume.directory);
    case ResumeKind::kAuto:
    case ResumeKind::kMust:
      break;
  }
  return newest_of(own);
}

/// The checkpoint that init.weights names. Throws DataError where none of its folder is good.
CheckpointInfo checkpoint_of_weights(const std::string& weights) {
  if (auto found = newest_of(weights)) return *std::move(found);
  std::vector<CheckpointInfo> all = find_checkpoints(weights);
  throw DataError("{}: holds no checkpoint that is good{}", weights,
                  all.empty() ? std::string() : "; the newest: " + all.front().problem);
}

Json find_model(const RunConfig& config, std::vector<std::string>& notes) {
  const std::string& weights = config.init.weights;
  if (looks_like_checkpoint(weights)) return checkpoint_of_weights(weights).manifest.model;
  if (looks_like_adapter(weights)) return model_of_weights(read_adapter_config(weights).base);
  if (!is_there(weights)) {
    if (const auto resumed = checkpoint_to_resume(config)) {
      notes.push_back(fmt::format(
          "init.weights: {} is not there; the model is that of {}, where the run goes on", weights,
          resumed->path.string()));
      return resumed->manifest.model;
    }
  }
  return model_of_weights(weights);
}

/// Of a whole model, without adapters.
std::map<std::string, Shape> shapes_of(ModelConfig model) {
  model.adapters.reset();
  std::map<std::string, Shape> shapes;
  for (const ParamMeta& param : declare_params(model).metas) {
    if (param.shares == kNoParam) shapes.emplace(param.name, param.shape);
  }
  return shapes;
}

/// Of adapters beside this model's weights.
std::map<std::string, Shape> shapes_of_adapters(const ModelConfig& model,
                                                const RunConfig::Lora& lora,
                                                const std::filesystem::path& source) {
  return adapter_shapes(with_adapters(model, lora, source.string()), shapes_of(model));
}

/// A whole model, or adapters beside it.
void check_checkpoint(const CheckpointInfo& info, const ModelConfig& model) {
  const auto adapters = adapters_of(info.manifest, (info.path / kManifestName).string());
  const std::map<std::string, Shape> wanted =
      adapters ? shapes_of_adapters(model, adapters->lora, info.path) : shapes_of(model);
  std::vector<std::string> missing, surplus;
  std::map<std::string, Shape> found;
  for (const ManifestTensor& tensor : info.manifest.tensors) {
    if (!tensor.name.starts_with(kParameterPrefix)) continue;
    const std::string name = tensor.name.substr(kParameterPrefix.size());
    found.emplace(name, tensor.shape);
    if (!wanted.contains(name)) surplus.push_back(name);
  }
  for (const auto& [name, shape] : wanted) {
    const auto at = found.find(name);
    if (at == found.end()) {
      missing.push_back(name);
    } else if (!(at->second == shape)) {
      throw DataError("{}: {} is {}, the model has {}", info.path.string(), name, at->second.text(),
                      shape.text());
    }
  }
  if (!missing.empty() || !surplus.empty()) {
    throw DataError("{}: does not hold this model's weights.{}", info.path.string(),
                    mismatch_text(missing, surplus));
  }
}

/// How the weights' model differs from the config's; "" if not, or if unreadable.
std::string model_difference(const Json& saved, const RunConfig& config) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const ModelConfig model = read_model(saved, problems, notes);
  return problems.empty() ? shape_difference(model, config.model, "init.weights") : "";
}

/// `check_tensors` compares names and shapes; equal ones may be those of other heads.
void check_model(const Json& saved, const RunConfig& config,
                 const std::function<void()>& check_tensors) {
  constexpr const char* kWayOut =
      "Leave \"model\" out to take that of the weights, or give it the weights' value";
  const std::string difference = model_difference(saved, config);
  try {
    check_tensors();
  } catch (const DataError& error) {
    if (difference.empty()) throw;
    std::string_view text = error.what();
    if (text.ends_with('.')) text.remove_suffix(1);
    throw DataError("{} ({}). {}", text, difference, kWayOut);
  }
  if (difference.empty()) return;
  throw ConfigError("init.weights: another model ({}): its weights would mean something else. {}",
                    difference, kWayOut);
}

void check_adapter_folder(const std::filesystem::path& folder, const ModelConfig& model,
                          const RunConfig::Lora& lora) {
  check_adapter(folder, with_adapters(model, lora, folder.string()),
                shapes_of_adapters(model, lora, folder));
}

/// A folder of peft's is checked without its base, which its reader opens.
void check_folder(const std::filesystem::path& folder, const ModelConfig& model) {
  if (!looks_like_adapter(folder)) return check_weights(folder, shapes_of(model));
  check_adapter_folder(folder, model, read_adapter_config(folder).lora);
}

void check_weights_of(const RunConfig& config) {
  const std::string& weights = config.init.weights;
  if (weights == "random") return;
  if (looks_like_checkpoint(weights)) {
    const CheckpointInfo info = checkpoint_of_weights(weights);
    check_model(info.manifest.model, config, [&] { check_checkpoint(info, config.model); });
  } else if (is_there(weights) || !checkpoint_to_resume(config)) {
    std::vector<std::string> notes;
    const Json model = find_model(config, notes);  // that it is a folder of weights
    check_model(model, config, [&] { check_folder(weights, config.model); });
  }
}

void check_resume(const RunConfig& config) {
  const ResumeChoice& resume = config.run.resume;
  if (resume.kind == ResumeKind::kStep) {
    const std::filesystem::path folder =
        std::filesystem::path(config.checkpoint_directory()) / step_folder_name(resume.step);
    if (is_there(folder)) return;
    throw DataError("{}. `train checkpoint list {}` names those that were saved",
                    missing_path_text(folder), config.run.directory);
  }
  if (resume.kind != ResumeKind::kDirectory || looks_like_checkpoint(resume.directory)) return;
  constexpr const char* kLegal =
      "Give a step folder, a checkpoints folder or a run's folder; or \"auto\", which goes on from "
      "the newest of run.directory and begins where there is none";
  if (!is_there(resume.directory))
    throw DataError("{}. {}", missing_path_text(resume.directory), kLegal);
  throw DataError("{}: holds no checkpoint. {}", resume.directory, kLegal);
}

}  // namespace

void check_own_model(const std::filesystem::path& step_folder) {
  CheckpointInfo info;
  info.path = step_folder;
  info.manifest = read_manifest(step_folder);
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const ModelConfig model = read_model(info.manifest.model, problems, notes);
  throw_problems(problems);
  check_checkpoint(info, model);
}

void check_init_adapter(const RunConfig& config) {
  const std::filesystem::path folder = *config.init.adapter;
  const AdapterFacts found = read_adapter_config(folder);
  const std::string difference = adapter_difference(found.lora, config.lora, config.model, "lora");
  if (!difference.empty()) {
    throw ConfigError(
        "init.adapter: {}: {}: these are other adapters than the run's. Give lora the "
        "same, or leave init.adapter out",
        folder.string(), difference);
  }
  check_adapter_folder(folder, config.model, config.lora);
  const std::string& base = config.init.weights;
  if (is_there(base))
    check_head_of_adapter(folder, looks_like_checkpoint(base) ? checkpoint_of_weights(base).path
                                                              : std::filesystem::path(base));
}

void check_own_model(const ModelSource& source) {
  if (source.base() == nullptr) return check_own_model(source.path());
  if (source.is_checkpoint()) {
    check_own_model(source.path());
  } else {
    check_folder(source.path(), source.model());
  }
  const ModelSource& base = *source.base();
  if (base.base() != nullptr) {
    throw ConfigError("{}: holds adapters too. Merge them first: `train export --merge`",
                      base.path().string());
  }
  if (base.is_checkpoint()) {
    check_own_model(base.path());
  } else {
    check_folder(base.path(), base.model());
  }
}

LoadedConfig read_config_with_model(const ConfigInput& input) {
  return read_run_config(input, find_model);
}

Inputs check_inputs(const LoadedConfig& loaded, DataFiles data) {
  const RunConfig& config = loaded.config;
  Inputs inputs;
  const auto clean = [&](std::string_view section) {
    return !has_problem_in(loaded.problems, section);
  };
  const auto look = [&](std::string_view path, const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kConfig && error.code() != ExitCode::kData) throw;
      inputs.problems.push_back(problem_of(error, path));
    }
  };
  if (clean("tokenizer"))
    look("tokenizer", [&] { inputs.tokenizer = load_tokenizer(config.tokenizer); });
  if (clean("init") && config.has_model()) look("init.weights", [&] { check_weights_of(config); });
  if (clean("init") && clean("lora") && config.has_model() && config.init.adapter)
    look("init.adapter", [&] { check_init_adapter(config); });
  if (clean("run")) look("run.resume", [&] { check_resume(config); });
  if (data == DataFiles::kLeftOut || !clean("data")) return inputs;
  look("data.train", [&] { inputs.data = training_facts(config); });
  look(config.data.validation ? "data.validation" : "data.split",
       [&] { check_validation_sources(config); });
  if (data != DataFiles::kChecked || !inputs.problems.empty() || !config.has_model()) return inputs;
  SourceRequest request;
  request.vocab_size = config.model.vocab_size;
  if (inputs.tokenizer) request.tokenizer_hashes = inputs.tokenizer->hashes();
  look("data.train", [&] { check_training_tokens(config, request); });
  look(config.data.validation ? "data.validation" : "data.split",
       [&] { check_validation_tokens(config, request); });
  return inputs;
}

}  // namespace trireme
