#include "train/model_source.h"

#include <limits>
#include <set>

#include "base/file.h"
#include "base/log.h"
#include "base/missing_path.h"
#include "checkpoint/adapted_weights.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/base_hashes.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/nf4_base.h"
#include "checkpoint/reader.h"
#include "config/model_parse.h"
#include "model/param_table.h"

namespace trireme {

namespace {

/// A checkpoint's tokenizer: its copy of the file, else "byte" or the path it was trained with.
std::string tokenizer_of(const Manifest& manifest, const std::filesystem::path& folder) {
  if (manifest.find_file(kTokenizerName) != nullptr) return (folder / kTokenizerName).string();
  const Json* path = manifest.tokenizer.find("path");
  return path != nullptr && path->is_string() ? path->as_string() : "";
}

std::int64_t sequence_length_of(const Manifest& manifest) {
  const Json* at = &manifest.scalars;
  for (const char* key : {"config", "data", "sequence_length"}) {
    at = at->find(key);
    if (at == nullptr) return 0;
  }
  return at->is_integer() ? at->as_integer() : 0;
}

/// `value` of eos_token_id: an id, or a list of them; nothing where it is null.
std::vector<std::int64_t> ids_of(const Json& value, const std::filesystem::path& file) {
  std::vector<std::int64_t> ids;
  const auto add = [&](const Json& id) {
    constexpr std::int64_t kIdMax = std::numeric_limits<std::int32_t>::max();
    if (!id.is_integer() || id.as_integer() < 0 || id.as_integer() > kIdMax) {
      throw DataError(
          "{}: eos_token_id: is neither a token id nor a list of them (generation stops there). "
          "Found {}",
          file.string(), shown(value));
    }
    ids.push_back(id.as_integer());
  };
  if (value.is_array()) {
    for (const Json& id : value.as_array()) add(id);
  } else if (!value.is_null()) {
    add(value);
  }
  return ids;
}

std::vector<std::int64_t> end_tokens_of(const std::filesystem::path& folder,
                                        const ModelConfig& model) {
  const std::filesystem::path file = folder / kGenerationConfigName;
  if (is_there(file)) {
    const Json generation = parse_json(read_file(file), file.string());
    if (!generation.is_object()) throw DataError("{}: is no JSON object", file.string());
    const Json* ids = generation.find("eos_token_id");
    if (ids != nullptr && !ids->is_null()) return ids_of(*ids, file);
  }
  // Of a list, model.end_token is the first.
  const Json* ids = model.source.is_object() ? model.source.find("eos_token_id") : nullptr;
  if (ids != nullptr && ids->is_array()) return ids_of(*ids, folder / "config.json");
  return model.end_token < 0 ? std::vector<std::int64_t>() : std::vector{model.end_token};
}

/// Before `base` is opened as what the adapters at `path` stand beside.
void check_base_path(const std::filesystem::path& path, const std::filesystem::path& base,
                     int depth) {
  constexpr int kDepthMax = 4;
  if (base.empty()) {
    throw DataError(
        "{}: does not say which weights its adapters stand beside. Give their folder: "
        "--base DIR",
        path.string());
  }
  if (!is_there(base)) {
    throw DataError(
        "{}: its adapters stand beside weights that are not there: {}. Give their "
        "folder: --base DIR",
        path.string(), missing_model_text(base));
  }
  if (depth == kDepthMax) {
    throw DataError(
        "{}: adapters upon adapters, {} times. Merge some into their base (export "
        "--merge)",
        path.string(), depth);
  }
}

}  // namespace

ModelSource::ModelSource(const std::filesystem::path& path, Communicator& world,
                         const std::filesystem::path& base, WeightSet set)
    : ModelSource(path, world, base, set, 0) {}

ModelSource::ModelSource(const std::filesystem::path& path, Communicator& world,
                         const std::filesystem::path& base, WeightSet set, int depth)
    : path_(path), set_(set), checkpoint_(looks_like_checkpoint(path)) {
  if (checkpoint_) {
    read_checkpoint(path, world);
  } else {
    run_together(world, [&] { read_folder(); });
  }
  if (adapters_) {
    take_base(world, base, depth);
    return;
  }
  run_together(world, [&] {
    if (base.empty()) return;
    throw ConfigError("--base: {} holds a whole model, no adapters. Leave --base out",
                      path_.string());
  });
}

void ModelSource::read_folder() {
  if (set_ == WeightSet::kAveraged) {
    throw ConfigError("--ema: {} is no checkpoint of a run, and holds no averages. Leave --ema out",
                      path_.string());
  }
  if (!is_there(path_)) {
    throw DataError("{}. Give a checkpoint, a run's folder or a Hugging Face directory",
                    missing_model_text(path_));
  }
  if (is_there(path_ / kTokenizerName)) tokenizer_ = (path_ / kTokenizerName).string();
  if (looks_like_adapter(path_)) {
    adapters_ = read_adapter_config(path_);
    return;
  }
  if (!is_there(path_ / "config.json")) {
    throw DataError(
        "{}: is neither a checkpoint (no manifest.json, no step folders) nor a Hugging Face "
        "directory (no config.json) nor an adapter (no adapter_config.json)",
        path_.string());
  }
  model_ = load_model_config(path_ / "config.json");
  end_tokens_ = end_tokens_of(path_, model_);
}

void ModelSource::read_checkpoint(const std::filesystem::path& path, Communicator& world) {
  path_ = resolve_checkpoint_argument(path, world);
  const Manifest manifest = read_manifest(path_, world);
  run_together(world, [&] {
    require_weights(manifest, path_, set_);
    std::vector<Problem> problems;
    std::vector<std::string> notes;
    model_ = read_model(manifest.model, problems, notes);
    throw_problems(problems);
    end_tokens_ = end_tokens_of(path_, model_);
    tokenizer_ = tokenizer_of(manifest, path_);
    sequence_length_ = sequence_length_of(manifest);
    adapters_ = adapters_of(manifest, (path_ / kManifestName).string());
  });
}

void ModelSource::take_base(Communicator& world, const std::filesystem::path& base, int depth) {
  const std::filesystem::path where = base.empty() ? std::filesystem::path(adapters_->base) : base;
  run_together(world, [&] { check_base_path(path_, where, depth); });
  base_.reset(new ModelSource(where, world, {}, WeightSet::kLast, depth + 1));
  run_together(world, [&] {
    if (checkpoint_) {
      const std::string difference =
          shape_difference(base_->model(), model_, where.string(), path_.string());
      if (!difference.empty()) {
        throw DataError("{}: is not the base of {} ({}). Give its folder: --base DIR",
                        where.string(), path_.string(), difference);
      }
    } else {
      model_ = base_->model();
      end_tokens_ = is_there(path_ / kGenerationConfigName) ? end_tokens_of(path_, model_)
                                                            : base_->end_tokens();
      if (tokenizer_.empty()) tokenizer_ = base_->tokenizer();
      sequence_length_ = base_->sequence_length();
    }
    adapted_model_ = with_adapters(model_, adapters_->lora, path_.string());
    if (!checkpoint_ && world.rank() == 0) check_head_of_adapter(path_, base_->path());
  });
}

void ModelSource::check_base_files(Communicator& world) const {
  if (base_) check_base(adapters_->base_hashes, base_->path(), world);
}

void ModelSource::load_own(State& state, Communicator& world, LoadScope scope) const {
  if (set_ == WeightSet::kLast) {
    load_state(path_, state, world, scope);
    return;
  }
  constexpr std::string_view kPrefix = "parameters/";
  const Manifest manifest = read_manifest(path_, world);
  State averaged = state;
  for (StateTensor& tensor : averaged.tensors)
    tensor.name = stored_name(manifest, tensor.name.substr(kPrefix.size()), set_);
  load_state(path_, averaged, world, LoadScope::kSome);
}

void ModelSource::load_part(State& state, Communicator& world) const {
  expect(!base_, "a part of merged weights");
  if (checkpoint_) return load_own(state, world, LoadScope::kSome);
  std::set<std::string> all;
  for (const ParamMeta& param : declare_params(model_).metas)
    if (param.shares == kNoParam) all.insert(param.name);
  import_weights(path_, state, world, all);
}

void ModelSource::load(State& state, Communicator& world) const {
  if (base_) {
    check_base_files(world);
    base_->load(state, world);
    if (base_in_nf4()) run_together(world, [&] { round_to_nf4(adapted_model_, state); });
    add_adapters(
        adapted_model_, state,
        [&](State& adapters) {
          if (!checkpoint_) return import_adapter(path_, adapted_model_, adapters, world);
          load_own(adapters, world, LoadScope::kParameters);
        },
        world);
  } else if (checkpoint_) {
    load_own(state, world, LoadScope::kParameters);
  } else {
    import_weights(path_, state, world);
  }
}

}  // namespace trireme
