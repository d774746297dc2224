#pragma once

#include <memory>

#include "comm/launch.h"
#include "guard/lock.h"
#include "train/prepare.h"

namespace trireme {

/// The run's folder: on rank 0 locked and cleared of what dead runs left, then seen by all.
class RunDirectory {
 public:
  /// Collective. Throws as RunLock; and SharedError unless every rank finds in the run's folder and
  /// in that of its checkpoints, where it is there, a file that rank 0 writes (EnvironmentError,
  /// naming the host: a path of a local disk means another folder on each host, and a checkpoint
  /// would be scattered over them), and may write there itself (DataError). Nothing stays behind. A
  /// shared file system gets 10 s to show the file everywhere.
  RunDirectory(const PreparedRun& prepared, Launch& launch);

 private:
  std::unique_ptr<RunLock> lock_;
};

}  // namespace trireme
