#pragma once
// What a run writes, and what stands where it would.

#include <filesystem>
#include <optional>

#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

/// A file or folder that a run of this config would overwrite and that no run of ours made. A
/// folder is a run's where a config.json stands beside metrics.jsonl or checkpoints/; whatever a
/// run writes is its own there, but for a lock that is none (guard/lock.h). Elsewhere none of its
/// files may exist: config.json, metrics.jsonl (but for an empty one: a run makes it before its
/// config.json, so that one which ends between the two is no stranger), loss.svg,
/// kernel_choices.json, expert_load.json of a model with experts, report.html and trace.json where
/// they are asked for.
/// The file of log.prometheus is any run's that begins as those do, or empty. A step folder of
/// checkpoint.directory is ours where it holds something that only a save makes, or nothing but
/// files that a save keeps (left by a cut removal), or nothing. Other files and empty folders do
/// not matter.
std::optional<Problem> foreign_file(const RunConfig& config);

/// The folder, or the nearest above it that is there.
std::filesystem::path standing_part(const std::filesystem::path& folder);

/// Whether checkpoints of `bytes` may be written there and one fits; warns where those kept do not.
std::optional<Problem> disk_fault(const RunConfig& config, std::int64_t bytes);

}  // namespace trireme
