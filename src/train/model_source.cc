#include "train/model_source.h"

#include <limits>

#include "base/file.h"
#include "base/log.h"
#include "base/missing_path.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/reader.h"
#include "config/model_parse.h"

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

}  // namespace

ModelSource::ModelSource(const std::filesystem::path& path, Communicator& world)
    : path_(path), checkpoint_(looks_like_checkpoint(path)) {
  if (!checkpoint_) {
    run_together(world, [&] {
      if (!is_there(path_)) {
        throw DataError("{}. Give a checkpoint, a run's folder or a Hugging Face directory",
                        missing_model_text(path_));
      }
      if (!is_there(path_ / "config.json")) {
        throw DataError(
            "{}: is neither a checkpoint (no manifest.json, no step folders) nor a Hugging Face "
            "directory (no config.json)",
            path_.string());
      }
      model_ = load_model_config(path_ / "config.json");
      end_tokens_ = end_tokens_of(path_, model_);
    });
    if (is_there(path_ / kTokenizerName)) tokenizer_ = (path_ / kTokenizerName).string();
    return;
  }
  path_ = resolve_checkpoint_argument(path, world);
  const Manifest manifest = read_manifest(path_, world);
  run_together(world, [&] {
    std::vector<Problem> problems;
    std::vector<std::string> notes;
    model_ = read_model(manifest.model, problems, notes);
    throw_problems(problems);
    end_tokens_ = end_tokens_of(path_, model_);
    tokenizer_ = tokenizer_of(manifest, path_);
    sequence_length_ = sequence_length_of(manifest);
  });
}

void ModelSource::load(State& state, Communicator& world) const {
  if (checkpoint_) {
    load_state(path_, state, world, LoadScope::kParameters);
  } else {
    import_weights(path_, state, world);
  }
}

}  // namespace trireme
