#include "train/run_files.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/human_format.h"
#include "base/log.h"
#include "checkpoint/companion_files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/writer.h"
#include "guard/lock.h"
#include "telemetry/prometheus_text.h"
#include "telemetry/run_pages.h"
#include "train/expert_load_record.h"
#include "train/run_kernels.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

/// A link that leads nowhere is there, too: a rename would replace it.
bool stands(const fs::path& path) {
  std::error_code none;
  return fs::exists(fs::symlink_status(path, none));
}

bool is_run(const fs::path& directory) {
  return stands(directory / "config.json") &&
         (stands(directory / "metrics.jsonl") || is_folder(directory / "checkpoints"));
}

/// Nothing of it can be lost: lines are added. A run that ended before its config.json leaves one.
bool is_empty_file(const fs::path& path) {
  std::error_code fault;
  const bool regular = fs::is_regular_file(fs::symlink_status(path, fault));
  return regular && fs::file_size(path, fault) == 0 && !fault;
}

fs::path foreign_in_run(const RunConfig& config) {
  const fs::path directory = config.run.directory;
  if (const fs::path lock = directory / RunLock::kFileName; is_foreign_lock(lock)) return lock;
  if (is_run(directory)) return {};
  std::vector<const char*> names = {"config.json", "metrics.jsonl", "loss.svg",
                                    RunKernels::kFileName};
  if (config.model.has_experts()) names.push_back(ExpertLoadRecord::kFileName);
  if (config.log.report) names.push_back(RunPages::kReportName);
  if (config.log.trace_steps) names.push_back("trace.json");
  for (const char* name : names) {
    const fs::path path = directory / name;
    if (stands(path) && !(path.filename() == "metrics.jsonl" && is_empty_file(path))) return path;
  }
  // A folder in a run, and in nobody's way else.
  const fs::path events = directory / "tensorboard";
  return stands(events) && !is_folder(events) ? events : fs::path();
}

/// A file for Prometheus may be a run's of any folder: the next start's.
bool is_foreign_prometheus(const fs::path& path) {
  if (!stands(path) || is_empty_file(path)) return false;
  try {
    const MappedFile file(path);
    const auto* const begin = reinterpret_cast<const char*>(file.bytes().data());
    return !std::string_view(begin, file.bytes().size()).starts_with(kPrometheusBegin);
  } catch (const Error&) {
    return true;
  }
}

bool is_step_folder_of_ours(const fs::path& folder) {
  std::error_code fault;
  // What is no folder stays in a save's way: the rename onto it fails, which is reported then.
  if (!is_folder(folder)) return true;
  bool kept_alone = true;
  for (fs::directory_iterator at(folder, fault), end; !fault && at != end; at.increment(fault)) {
    const std::string name = at->path().filename().string();
    if (is_name_of_save(name)) return true;
    kept_alone = kept_alone && (is_companion(name) || name == RunKernels::kFileName);
  }
  return kept_alone;
}

fs::path foreign_step(const fs::path& directory) {
  std::error_code fault;
  for (fs::directory_iterator at(directory, fault), end; !fault && at != end; at.increment(fault)) {
    if (step_of_folder_name(at->path().filename().string()) >= 0 &&
        !is_step_folder_of_ours(at->path()))
      return at->path();
  }
  return {};
}

}  // namespace

fs::path standing_part(const fs::path& folder) {
  std::error_code none;
  fs::path part = fs::absolute(folder, none);
  while (part.has_relative_path() && !is_there(part)) part = part.parent_path();
  return part;
}

std::optional<Problem> foreign_file(const RunConfig& config) {
  if (config.run.directory.empty()) return std::nullopt;  // a fault of its own
  if (const fs::path path = foreign_in_run(config); !path.empty()) {
    return Problem{"run.directory", shown(Json(config.run.directory)),
                   "a new folder, one without the files of a run, or an earlier run's "
                   "(config.json beside metrics.jsonl or checkpoints/)",
                   "", path.string() + " is there and no run made it: training would overwrite it"};
  }
  const auto& prometheus = config.log.prometheus;
  if (prometheus && prometheus->file && is_foreign_prometheus(*prometheus->file)) {
    return Problem{"log.prometheus", shown(Json(*prometheus->file)),
                   "a new file, or one that a run wrote for Prometheus", "",
                   *prometheus->file + " is there and no run made it: training would overwrite it"};
  }
  if (const fs::path path = foreign_step(config.checkpoint_directory()); !path.empty()) {
    return Problem{"checkpoint.directory", shown(Json(config.checkpoint_directory())),
                   "a folder in which step-N are checkpoints", "",
                   path.string() + " is there and no save made it: a save would replace it"};
  }
  return std::nullopt;
}

std::optional<Problem> disk_fault(const RunConfig& config, std::int64_t bytes) {
  const fs::path folder = standing_part(config.checkpoint_directory());
  try {
    if (!is_folder(folder))
      throw DataError("{}: is no folder, and checkpoints belong below it", folder.string());
    if (::access(folder.c_str(), W_OK | X_OK) != 0)
      throw DataError("{}: cannot write here: {}", folder.string(), errno_text(errno));
    const std::int64_t free = check_free_space(folder, bytes, config.checkpoint.min_free_bytes);
    // One more than are kept stands there while the newest is written.
    const auto wanted =
        1.1 * static_cast<double>(bytes) * static_cast<double>(config.checkpoint.keep_last + 1);
    if (config.checkpoint.keep_last > 0 && wanted > static_cast<double>(free)) {
      log_warning(
          "{}: {} free, and {} checkpoints (checkpoint.keep_last) with one being written take {}. "
          "Keep fewer or free space",
          folder.string(), format_bytes(free), config.checkpoint.keep_last,
          format_bytes(static_cast<std::int64_t>(wanted)));
    }
  } catch (const Error& error) {
    return problem_of(error,
                      config.checkpoint.directory ? "checkpoint.directory" : "run.directory");
  }
  return std::nullopt;
}

}  // namespace trireme
