#include "train/run_directory.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/retention.h"
#include "train/shared_folder.h"

namespace trireme {

namespace {

void require_shared_directory(const Launch& launch, const std::filesystem::path& directory) {
  if (launch.job().size() == 1) return;
  const FolderMark mark(launch, directory);
  run_together(launch.job(), [&] {
    if (launch.job().rank() == 0) return;
    if (!mark.appears()) {
      throw EnvironmentError(
          "{}: on host {} this is not the folder that rank 0 works in: a file that rank 0 wrote "
          "there does not appear (a local disk? Each host would keep a part of every checkpoint). "
          "Choose run.directory and checkpoint.directory on a file system that all hosts share.",
          directory.string(), launch.host_name());
    }
    if (const std::string why = mark.refused(); !why.empty()) {
      throw DataError(
          "{}: host {} cannot write here: {} (every rank writes its part of a checkpoint)",
          directory.string(), launch.host_name(), why);
    }
  });
}

}  // namespace

RunDirectory::RunDirectory(const PreparedRun& prepared, Launch& launch) {
  run_together(launch.job(), [&] {
    if (launch.job().rank() != 0) return;
    lock_ =
        std::make_unique<RunLock>(prepared.config.run.directory, [&launch](const std::string& why) {
          log_any_rank("{}", why);
          launch.abort(static_cast<int>(ExitCode::kEnvironment));
        });
    const std::string left = remove_leftovers(prepared.config.checkpoint_directory());
    if (!left.empty()) log_warning("{}", left);
  });
  require_shared_directory(launch, prepared.config.run.directory);
  const std::filesystem::path checkpoints = prepared.config.checkpoint_directory();
  std::int64_t there = is_there(checkpoints) ? 1 : 0;
  launch.job().broadcast(std::as_writable_bytes(std::span(&there, 1)), 0);
  if (there != 0) require_shared_directory(launch, checkpoints);
}

}  // namespace trireme
