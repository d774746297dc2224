#include "train/model_source.h"

#include "base/log.h"
#include "base/missing_path.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/reader.h"
#include "config/model_parse.h"

namespace trireme {

namespace {

/// The tokenizer of a checkpoint: its own copy of the file where it keeps one, else "byte" or the
/// path it was trained with.
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

}  // namespace

ModelSource::ModelSource(const std::filesystem::path& path, Communicator& world)
    : path_(path), checkpoint_(looks_like_checkpoint(path)) {
  if (!checkpoint_) {
    std::error_code none;  // a name may be too long to ask for
    run_together(world, [&] {
      if (!std::filesystem::exists(path_, none)) {
        throw DataError("{}. Give a checkpoint, a run's folder or a Hugging Face directory",
                        missing_model_text(path_));
      }
      if (!std::filesystem::exists(path_ / "config.json", none)) {
        throw DataError(
            "{}: is neither a checkpoint (no manifest.json, no step folders) nor a Hugging Face "
            "directory (no "
            "config.json)",
            path_.string());
      }
      model_ = load_model_config(path_ / "config.json");
    });
    if (std::filesystem::exists(path_ / kTokenizerName, none))
      tokenizer_ = (path_ / kTokenizerName).string();
    return;
  }
  path_ = resolve_checkpoint_argument(path, world);
  run_together(world, [&] {
    const Manifest manifest = read_manifest(path_);
    std::vector<Problem> problems;
    std::vector<std::string> notes;
    model_ = read_model(manifest.model, problems, notes);
    throw_problems(problems);
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
