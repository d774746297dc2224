#include "train/start_point.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/base_hashes.h"
#include "checkpoint/companion_files.h"
#include "config/fields.h"
#include "config/model_parse.h"
#include "store/base_values.h"
#include "store/host_state.h"
#include "tokenizer/tokenizer.h"
#include "train/model_source.h"
#include "train/moment_conversion.h"

namespace trireme {

namespace {

/// A run whose every checkpoint is damaged must not begin anew by itself: that drops its metrics
/// and overwrites what might be mended. Folders without a manifest never were checkpoints.
void refuse_if_saved(const std::vector<Rejected>& rejected) {
  for (const Rejected& one : rejected) {
    if (!is_there(one.path / kManifestName)) continue;
    throw DataError(
        "{}: no checkpoint of the run is good; the newest: {}. Bring back a good copy, or set "
        "run.resume to \"never\" to begin anew.",
        one.path.parent_path().string(), one.reason);
  }
}

void reject(const Rejected& one, std::vector<Rejected>& rejected) {
  log_warning("{} is not used: {}", one.path.string(), one.reason);
  rejected.push_back(one);
}

/// The newest below `directory` by sizes, but for `rejected`; new ones are reported and added.
std::filesystem::path choose_newest(const std::filesystem::path& directory, Communicator& replica,
                                    std::vector<Rejected>& rejected) {
  const NewestCheckpoint newest = find_newest(directory, replica, Check::kSizes, rejected);
  for (const Rejected& one : newest.rejected) reject(one, rejected);
  return newest.path;
}

/// run.resume names a run, a folder of checkpoints, or nothing: older ones replace a damaged one.
std::filesystem::path folder_to_choose_from(const RunConfig& config, Communicator& replica) {
  const ResumeChoice& resume = config.run.resume;
  if (resume.kind == ResumeKind::kDirectory) return folder_of_argument(resume.directory, replica);
  const bool ours = resume.kind == ResumeKind::kAuto || resume.kind == ResumeKind::kMust;
  return ours ? config.checkpoint_directory() : "";
}

std::filesystem::path choose_checkpoint(const RunConfig& config, Communicator& replica,
                                        std::vector<Rejected>& rejected) {
  const ResumeChoice& resume = config.run.resume;
  if (resume.kind == ResumeKind::kNever) return {};
  if (resume.kind == ResumeKind::kStep)
    return std::filesystem::path(config.checkpoint_directory()) / step_folder_name(resume.step);
  const std::filesystem::path folder = folder_to_choose_from(config, replica);
  if (folder.empty()) return resolve_checkpoint_argument(resume.directory, replica);
  std::filesystem::path newest = choose_newest(folder, replica, rejected);
  if (!newest.empty()) return newest;
  if (resume.kind == ResumeKind::kDirectory) {
    throw SharedError(ExitCode::kData, folder.string() + ": holds no checkpoint that verifies");
  }
  if (resume.kind == ResumeKind::kMust) {
    throw SharedError(
        ExitCode::kData,
        fmt::format(
            "{}: no checkpoint to resume from (run.resume is \"must\"). Set run.directory to "
            "that of the run, or run.resume to \"auto\" to begin where there is none",
            folder.string()));
  }
  run_together(replica, [&] {
    if (replica.rank() == 0) refuse_if_saved(rejected);
  });
  return {};
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

/// Whether the run's tokenizer is the checkpoint's: by the hash that it names, or by the copy that
/// it keeps, where that hash is one of a file which was written anew since.
bool is_tokenizer_of(const PreparedRun& prepared, const std::string& hash, const Manifest& manifest,
                     const std::filesystem::path& folder) {
  const std::vector<std::string>& hashes = prepared.tokenizer_hashes;
  if (std::find(hashes.begin(), hashes.end(), hash) != hashes.end()) return true;
  if (manifest.find_file(kTokenizerName) == nullptr) return false;
  try {
    return load_tokenizer((folder / kTokenizerName).string())->hash() == hashes.front();
  } catch (const Error&) {
    return false;  // damaged, or of a form that only another version understands
  }
}

/// A key of `lora` as a run had it; "none" where it trained the whole model.
std::string lora_value(const Json* config, std::string_view key) {
  const Json* lora = config == nullptr ? nullptr : config->find("lora");
  const Json* rank = lora == nullptr ? nullptr : lora->find("rank");
  const Json* found = rank == nullptr ? nullptr : lora->find(key);
  return found == nullptr ? "none" : found->dump();
}

/// What decides which parameters there are, and of which shapes.
void compare_adapters(const Json* saved, const Json& wanted, const std::filesystem::path& folder) {
  for (const char* key : {"rank", "targets", "dora"}) {
    const std::string before = lora_value(saved, key), now = lora_value(&wanted, key);
    if (before == now) continue;
    throw ConfigError(
        "lora.{}: {} in the config, {} in {}: its tensors are those of other adapters, or of a "
        "whole model. Use another run.directory, or what the run was begun with.",
        key, now, before, folder.string());
  }
}

void compare(const PreparedRun& prepared, const Manifest& manifest,
             const std::filesystem::path& folder) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const ModelConfig saved = read_model(manifest.model, problems, notes);
  throw_problems(problems);
  if (const std::string difference =
          shape_difference(saved, prepared.config.model, "the checkpoint");
      !difference.empty()) {
    throw ConfigError(
        "{}: another model ({}). Use another run.directory, or init.weights to start from its "
        "weights.",
        folder.string(), difference);
  }
  const Json* config = manifest.scalars.find("config");
  const Json wanted = resolved_json(prepared.config);
  compare_adapters(config, wanted, folder);
  const Json* hash = manifest.tokenizer.find("hash");
  if (hash != nullptr && hash->is_string() &&
      !is_tokenizer_of(prepared, hash->as_string(), manifest, folder)) {
    throw ConfigError(
        "{}: trained with another tokenizer (hash {}, the config's {} has {}): its ids mean other "
        "text. Use the same tokenizer or another run.directory.",
        folder.string(), hash->as_string(), prepared.config.tokenizer,
        prepared.tokenizer_hashes.front());
  }
  const std::int64_t global = integer_of(manifest.scalars, "global_batch");
  if (global != prepared.run.batch.global && !prepared.global_batch_given) {
    throw ConfigError(
        "batch.global: {} follows from the config and the number of ranks, the checkpoint has {} "
        "(the run would go on with another batch unnoticed). Set batch.global to {} to keep it or "
        "to {} to change it.",
        prepared.run.batch.global, global, global, prepared.run.batch.global);
  }
  if (config != nullptr) print_changes(*config, wanted);
  // Checkpoints of earlier versions say nothing of their data.
  if (const Json* data = manifest.scalars.find("data")) {
    for (const std::string& line : replaced_data(*data, prepared.data_fingerprints))
      log_warning("{}", line);
  }
}

/// Going back leaves later checkpoints; whoever starts again with "auto" should know.
void warn_of_later(const RunConfig& config, std::int64_t step) {
  const ResumeKind kind = config.run.resume.kind;
  if (kind == ResumeKind::kAuto || kind == ResumeKind::kMust) return;
  const std::filesystem::path directory = config.checkpoint_directory();
  const std::vector<CheckpointInfo> saved = list_checkpoints(directory);  // the newest first
  if (saved.empty() || saved.front().step <= step) return;
  log_warning(
      "{} is later than step {}, where this run goes on: with run.resume \"auto\" it would be "
      "chosen as long as it stands. Move it and others after step {} away if they are not wanted.",
      saved.front().path.string(), step, step);
}

/// Chooses anew, without what was rejected.
void choose(StartPoint& start, const PreparedRun& prepared, Communicator& replica) {
  start.checkpoint = choose_checkpoint(prepared.config, replica, start.rejected);
  start.progress = {};
  start.progress.spikes = SpikeWatch(prepared.config.stability.skip_spikes);
  Manifest manifest;
  if (!start.checkpoint.empty()) manifest = read_manifest(start.checkpoint, replica);
  run_together(replica, [&] {
    if (start.checkpoint.empty()) {
      if (replica.rank() == 0) warn_of_later(prepared.config, 0);
      return;
    }
    compare(prepared, manifest, start.checkpoint);
    start.progress.step = manifest.step;
    start.progress.consumed_samples = manifest.consumed_samples;
    start.progress.skipped_in_a_row = integer_of(manifest.scalars, "skipped_in_a_row");
    start.progress.best = best_loss_of(manifest.scalars);
    start.progress.spikes = {prepared.config.stability.skip_spikes, manifest.scalars};
    if (prepared.config.stability.noise_scale) start.progress.noise = NoiseScale(manifest.scalars);
    if (replica.rank() == 0) warn_of_later(prepared.config, start.progress.step);
  });
}

/// Runs `read`, which finds damage by a DataError; then chooses the next, or lets the error pass
/// where there is no choice. True where nothing was wrong. Collective.
bool read_or_choose_next(StartPoint& start, const PreparedRun& prepared, Communicator& replica,
                         const std::function<void()>& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    const bool shared = replica.size() == 1 || dynamic_cast<const SharedError*>(&error) != nullptr;
    if (error.code() != ExitCode::kData || !shared) throw;
    if (folder_to_choose_from(prepared.config, replica).empty()) throw;
    reject({start.checkpoint, error.what()}, start.rejected);
  }
  choose(start, prepared, replica);
  return false;
}

/// optimizer.kind of the run that saved.
std::string saved_kind(const Manifest& manifest) {
  const Json* at = &manifest.scalars;
  for (const char* key : {"config", "optimizer", "kind"}) {
    at = at->is_object() ? at->find(key) : nullptr;
    if (at == nullptr) return "adamw";  // tests and earlier versions say nothing
  }
  return at->is_string() ? at->as_string() : "";
}

/// Whether a run goes on with this: else it begins anew, being of another optimizer or not in the
/// checkpoint, since it was not trained or averaged then.
bool goes_on(const std::string& tensor, const Manifest& manifest, bool same_kind) {
  return manifest.find(tensor) != nullptr && (same_kind || !tensor.starts_with("optimizer/"));
}

/// Takes what begins anew out of a state, leaving zeros.
void clear_unsaved(State& state, const Manifest& manifest, bool same_kind) {
  std::erase_if(state.tensors, [&](const StateTensor& tensor) {
    if (goes_on(tensor.name, manifest, same_kind) || tensor.name.starts_with("parameters/"))
      return false;
    std::memset(tensor.data, 0,
                static_cast<std::size_t>(tensor.box.shape.count()) * size_of(tensor.dtype));
    return true;
  });
}

void load_checkpoint(Runtime& runtime, const std::filesystem::path& folder) {
  const Manifest manifest = read_manifest(folder, runtime.replica());
  const std::string before = saved_kind(manifest),
                    now = find_field("optimizer.kind")->read(runtime.config).as_string();
  HostState host(runtime.context, runtime.store.state());
  if (before == now)
    convert_moments(host.state(), folder, manifest, runtime.config.optimizer.state,
                    runtime.replica());
  clear_unsaved(host.state(), manifest, before == now);
  load_state(folder, host.state(), runtime.replica());
  host.store();
  if (before != now && runtime.replica().rank() == 0)
    log_info("moments begin anew: those of {} are another optimizer's, {}", folder.string(),
             before);
  runtime.optimizer->set_applied_updates(
      before == now ? integer_of(manifest.scalars, "applied_updates") : 0);
  runtime.optimizer->restore(before == now ? manifest.scalars : Json::object());
  runtime.optimizer->begin_states(
      runtime.context, [&](const ParamMeta& param, const OptimizerState& state) {
        return !goes_on(state_name(param, state), manifest, before == now);
      });
}

/// What adapters stand beside, whether they begin or go on: those of `checkpoint`. What is saved of
/// it.
Json load_base(Runtime& runtime, const PreparedRun& prepared,
               const std::filesystem::path& checkpoint) {
  if (!prepared.config.lora.given()) return nullptr;
  Communicator& replica = runtime.replica();
  const ModelSource source(prepared.config.init.weights, replica);
  Json json = base_json(source.path(), replica);
  if (!checkpoint.empty()) {
    const Manifest manifest = read_manifest(checkpoint, replica);
    run_together(replica, [&] {
      const auto saved = adapters_of(manifest, (checkpoint / kManifestName).string());
      compare_base(saved->base_hashes, *json.find("hashes"), source.path());
    });
  }
  load_base_values(runtime, source);
  return json;
}

void load_weights(Runtime& runtime, const PreparedRun& prepared) {
  const auto& init = prepared.config.init;
  const bool adapters = prepared.config.lora.given();
  if (init.weights == "random" || adapters)
    runtime.store.initialise(runtime.context, static_cast<std::uint64_t>(prepared.config.run.seed));
  if (adapters ? !init.adapter : init.weights == "random") return;
  HostState host(runtime.context, runtime.store.state());
  std::erase_if(host.state().tensors,
                [](const StateTensor& tensor) { return !tensor.name.starts_with("parameters/"); });
  if (adapters) {
    import_adapter(*init.adapter, runtime.model, host.state(), runtime.replica());
  } else {
    const ModelSource source(init.weights, runtime.replica());
    source.load(host.state(), runtime.replica());
  }
  host.store();
}

/// Behind a crash, or going back: checkpoints/best is what the run knows as its best. Collective.
void find_best(const PreparedRun& prepared, Communicator& replica, RunProgress& progress) {
  if (!prepared.config.checkpoint.keep_best) return;
  std::int64_t there = 0;
  run_together(replica, [&] {
    if (replica.rank() != 0 || progress.best.kept.step < 0) return;
    const std::filesystem::path directory = prepared.config.checkpoint_directory();
    if (!is_there(directory / step_folder_name(progress.best.kept.step))) return;
    there = 1;
    try {
      if (step_of_best(directory) != progress.best.kept.step)
        point_best(directory, progress.best.kept.step);
    } catch (const DataError& error) {
      log_warning("{}", error.what());
    }
  });
  replica.broadcast(std::as_writable_bytes(std::span(&there, 1)), 0);
  if (there == 0) progress.best.kept = {};
}

}  // namespace

void load_base_values(Runtime& runtime, const ModelSource& source, std::int64_t bytes_at_once) {
  Communicator& replica = runtime.replica();
  // Lengths of DoRA's rows are those of whole weights.
  const bool whole = source.base() != nullptr;
  BaseValues base(runtime.context, runtime.store,
                  whole ? std::numeric_limits<std::int64_t>::max() : bytes_at_once);
  std::int64_t parts = base.parts();
  replica.maximum({&parts, 1});
  for (int part = 0; part < parts; ++part) {
    State state = base.state(part);
    whole ? source.load(state, replica) : source.load_part(state, replica);
    base.give(runtime.fp8_weights);
  }
}

bool is_over(const StartPoint& start, const PreparedRun& prepared) {
  return start.progress.step >= prepared.run.steps || stopped_early(start, prepared);
}

bool stopped_early(const StartPoint& start, const PreparedRun& prepared) {
  const std::int64_t patience = prepared.config.evaluation.stop_after;
  return patience > 0 && start.progress.best.evaluations_since >= patience &&
         start.progress.step < prepared.run.steps;
}

StartPoint choose_start(const PreparedRun& prepared, Communicator& replica) {
  StartPoint start;
  choose(start, prepared, replica);
  // Of a finished run nobody would read the tensors.
  while (is_over(start, prepared) && !read_or_choose_next(start, prepared, replica, [&] {
           require_valid(start.checkpoint, replica);
         })) {
  }
  return start;
}

StartPoint load_start(Runtime& runtime, const PreparedRun& prepared, StartPoint start) {
  const Span span(runtime.trace, Phase::kCheckpoint);
  while (!start.checkpoint.empty() && !read_or_choose_next(start, prepared, runtime.replica(), [&] {
    load_checkpoint(runtime, start.checkpoint);
  })) {
  }
  const bool fresh = start.checkpoint.empty();
  if (fresh) load_weights(runtime, prepared);
  start.progress.base = load_base(runtime, prepared, start.checkpoint);
  if (fresh) runtime.optimizer->begin_states(runtime.context);
  runtime.weights_changed(Runtime::Copies::kStale);
  if (fresh && prepared.config.lora.dora) {
    runtime.stage.begin_magnitudes();
    runtime.optimizer->begin_states(runtime.context);
    runtime.weights_changed(Runtime::Copies::kStale);
  }
  find_best(prepared, runtime.replica(), start.progress);
  return start;
}

Json saved_scalars(const PreparedRun& prepared, const RunProgress& progress,
                   const Optimizer& optimizer) {
  Json scalars = Json::object();
  scalars["applied_updates"] = optimizer.applied_updates();
  optimizer.save(scalars);
  scalars["skipped_in_a_row"] = progress.skipped_in_a_row;
  scalars["global_batch"] = prepared.run.ramp.size_at(progress.consumed_samples);
  scalars["best"] = to_json(progress.best);
  if (const Json noise = progress.noise.json(); !noise.is_null()) scalars["noise"] = noise;
  if (const Json spikes = progress.spikes.json(); !spikes.is_null()) scalars["spikes"] = spikes;
  scalars["reproducible"] = prepared.run.pipeline.schedule().reproducible;
  scalars["config"] = resolved_json(prepared.config);
  scalars["data"] = prepared.data_fingerprints;
  if (!progress.base.is_null()) scalars["base"] = progress.base;
  return scalars;
}

}  // namespace trireme
