#pragma once
// A sweep as a job array.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace trireme {

struct ArrayJob {
  std::filesystem::path folder;   ///< of the sweep: the script and the logs stand there
  std::filesystem::path scripts;  ///< with slurm.sbatch
  std::filesystem::path program;  ///< what it starts
  std::int64_t ranks = 1;         ///< of each run
  std::vector<std::vector<std::string>> runs;  ///< the words behind `train` of each task
};

/// One task a run, each by slurm.sbatch (which saves at the time limit and requeues).
std::string array_script(const ArrayJob& job);

/// Writes folder/sweep.sbatch, over one of ours only (else ConfigError), and returns its path.
std::filesystem::path write_array_script(const ArrayJob& job);

}  // namespace trireme
