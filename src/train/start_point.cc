#include "train/start_point.h"

#include "base/log.h"
#include "checkpoint/reader.h"
#include "config/fields.h"
#include "config/model_parse.h"
#include "parallel/host_state.h"
#include "train/model_source.h"

namespace trireme {

namespace {

/// A run whose every checkpoint is damaged must not begin anew by itself: that drops its metrics
/// and in time overwrites what might still be mended. Folders without a manifest never were
/// checkpoints.
void refuse_if_saved(const std::vector<Rejected>& rejected) {
  for (const Rejected& one : rejected) {
    std::error_code ignored;
    if (!std::filesystem::exists(one.path / kManifestName, ignored)) continue;
    throw DataError(
        "{}: no checkpoint of the run is good; the newest: {}. Bring back a good copy, or set "
        "run.resume to \"never\" to begin anew.",
        one.path.parent_path().string(), one.reason);
  }
}

std::filesystem::path choose_checkpoint(const RunConfig& config, Communicator& world) {
  const std::filesystem::path directory = config.checkpoint_directory();
  const ResumeChoice& resume = config.run.resume;
  switch (resume.kind) {
    case ResumeKind::kNever:
      return {};
    case ResumeKind::kStep: {
      const std::filesystem::path folder = directory / step_folder_name(resume.step);
      require_valid(folder, world);
      return folder;
    }
    case ResumeKind::kDirectory: {
      const std::filesystem::path folder = resolve_checkpoint_argument(resume.directory, world);
      require_valid(folder, world);
      return folder;
    }
    case ResumeKind::kAuto:
    case ResumeKind::kMust:
      break;
  }
  const NewestCheckpoint newest = find_newest_valid(directory, world);
  for (const Rejected& rejected : newest.rejected) {
    log_warning("{} is not used: {}", rejected.path.string(), rejected.reason);
  }
  if (newest.path.empty() && resume.kind == ResumeKind::kMust) {
    throw SharedError(ExitCode::kData,
                      fmt::format("{}: no checkpoint to resume from (run.resume is \"must\")",
                                  directory.string()));
  }
  if (newest.path.empty()) {
    run_together(world, [&] {
      if (world.rank() == 0) refuse_if_saved(newest.rejected);
    });
  }
  return newest.path;
}

/// Shape-giving keys of two models; "" where they agree.
std::string model_difference(const ModelConfig& saved, const ModelConfig& wanted) {
  const Json a = model_keys_json(saved), b = model_keys_json(wanted);
  static constexpr std::string_view kShape[] = {
      "model_type",  "hidden_size",         "n_embd",         "num_hidden_layers",
      "n_layer",     "num_attention_heads", "n_head",         "num_key_value_heads",
      "head_dim",    "intermediate_size",   "n_inner",        "vocab_size",
      "n_positions", "tie_word_embeddings", "attention_bias", "mlp_bias"};
  for (const std::string_view key : kShape) {
    const Json* x = a.find(key);
    const Json* y = b.find(key);
    if (x == nullptr && y == nullptr) continue;
    if (x == nullptr || y == nullptr || !(*x == *y)) {
      return fmt::format("model.{}: {} in the checkpoint, {} in the config", key,
                         x ? x->dump() : "absent", y ? y->dump() : "absent");
    }
  }
  return "";
}

void print_changes(const Json& saved, const Json& wanted) {
  for (const Field& field : fields()) {
    const auto value = [&](const Json& config) {
      const Json* section = field.section().empty() ? &config : config.find(field.section());
      const Json* found = section == nullptr ? nullptr : section->find(field.key());
      return found == nullptr ? std::string("default") : found->dump();
    };
    const std::string before = value(saved), now = value(wanted);
    if (before != now) log_info("{}: {} -> {}", field.path, before, now);
  }
}

std::int64_t integer_of(const Json& scalars, std::string_view name) {
  const Json* value = scalars.find(name);
  if (value == nullptr || !value->is_integer() || value->as_integer() < 0) {
    throw DataError("the checkpoint's manifest: scalars.{} is not a count", name);
  }
  return value->as_integer();
}

void compare(const PreparedRun& prepared, const Manifest& manifest,
             const std::filesystem::path& folder) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const ModelConfig saved = read_model(manifest.model, problems, notes);
  throw_problems(problems);
  if (const std::string difference = model_difference(saved, prepared.config.model);
      !difference.empty()) {
    throw ConfigError(
        "{}: another model ({}). Use another run.directory, or init.weights to start from its "
        "weights.",
        folder.string(), difference);
  }
  const Json* hash = manifest.tokenizer.find("hash");
  if (hash != nullptr && hash->is_string() && hash->as_string() != prepared.tokenizer_hash) {
    throw ConfigError(
        "{}: trained with another tokenizer (hash {}, the config's {} has {}): its ids mean other "
        "text. "
        "Use the same tokenizer or another run.directory.",
        folder.string(), hash->as_string(), prepared.config.tokenizer, prepared.tokenizer_hash);
  }
  const std::int64_t global = integer_of(manifest.scalars, "global_batch");
  if (global != prepared.run.batch.global && !prepared.global_batch_given) {
    throw ConfigError(
        "batch.global: {} follows from the config and the number of ranks, the checkpoint has {} "
        "(the run would "
        "go on with another batch unnoticed). Set batch.global to {} to keep it or to {} to change "
        "it.",
        prepared.run.batch.global, global, global, prepared.run.batch.global);
  }
  if (const Json* config = manifest.scalars.find("config"))
    print_changes(*config, resolved_json(prepared.config));
}

/// Going back leaves later checkpoints where they are; whoever starts again with "auto" should
/// know.
void warn_of_later(const RunConfig& config, std::int64_t step) {
  const ResumeKind kind = config.run.resume.kind;
  if (kind == ResumeKind::kAuto || kind == ResumeKind::kMust) return;
  const std::filesystem::path directory = config.checkpoint_directory();
  const std::vector<CheckpointInfo> saved = list_checkpoints(directory);  // the newest first
  if (saved.empty() || saved.front().step <= step) return;
  log_warning(
      "{} is later than step {}, where this run goes on: with run.resume \"auto\" it would be "
      "chosen "
      "as long as it stands. Move it and others after step {} away if they are not wanted.",
      saved.front().path.string(), step, step);
}

}  // namespace

StartPoint choose_start(const PreparedRun& prepared, Communicator& world) {
  StartPoint start;
  start.checkpoint = choose_checkpoint(prepared.config, world);
  run_together(world, [&] {
    if (start.checkpoint.empty()) {
      if (world.rank() == 0) warn_of_later(prepared.config, 0);
      return;
    }
    const Manifest manifest = read_manifest(start.checkpoint);
    compare(prepared, manifest, start.checkpoint);
    start.progress.step = manifest.step;
    start.progress.consumed_samples = manifest.consumed_samples;
    start.progress.skipped_in_a_row = integer_of(manifest.scalars, "skipped_in_a_row");
    if (world.rank() == 0) warn_of_later(prepared.config, start.progress.step);
  });
  return start;
}

void load_start(Runtime& runtime, const PreparedRun& prepared, const StartPoint& start) {
  const Span span(runtime.trace, Phase::kCheckpoint);
  Communicator& world = runtime.world();
  if (prepared.config.init.weights == "random" && start.checkpoint.empty()) {
    runtime.store.initialise(runtime.context, static_cast<std::uint64_t>(prepared.config.run.seed));
    runtime.weights_changed(Runtime::Forms::kStale);
    return;
  }
  HostState host(runtime.context, runtime.store.state());
  State& state = host.state();
  if (!start.checkpoint.empty()) {
    const Manifest manifest = load_state(start.checkpoint, state, world);
    runtime.optimizer->set_applied_updates(integer_of(manifest.scalars, "applied_updates"));
  } else {
    const ModelSource source(prepared.config.init.weights, world);
    std::erase_if(state.tensors, [](const StateTensor& tensor) {
      return !tensor.name.starts_with("parameters/");
    });
    source.load(state, world);
  }
  host.store();
  runtime.weights_changed(Runtime::Forms::kStale);
}

Json saved_scalars(const PreparedRun& prepared, const Progress& progress,
                   std::int64_t applied_updates) {
  Json scalars = Json::object();
  scalars["applied_updates"] = applied_updates;
  scalars["skipped_in_a_row"] = progress.skipped_in_a_row;
  scalars["global_batch"] = prepared.run.batch.global;
  scalars["config"] = resolved_json(prepared.config);
  return scalars;
}

}  // namespace trireme
