#pragma once
// Which checkpoints stay; no kill leaves a half-deleted folder of the others under a valid name.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

struct Retention {
  std::int64_t keep_last = 3;         ///< the newest so many; 0: all
  std::int64_t keep_every_steps = 0;  ///< and every step that this divides; 0: none
  std::int64_t best = -1;             ///< and this one, beside the newest; -1: none
  /// Was saved because it was the best, and is no more: the first rule does not keep it. -1: none.
  std::int64_t superseded = -1;
};

/// The link in a folder of checkpoints that stands for the one with the best loss.
inline constexpr const char* kBestName = "best";
/// Lets it point to this step's folder, by one rename. Throws DataError.
void point_best(const std::filesystem::path& directory, std::int64_t step);
/// The step that it points to; -1 where there is no such link.
std::int64_t step_of_best(const std::filesystem::path& directory);

/// Which of `steps` go once `saved` is safe. `saved` itself stays, and what is newer than it (the
/// run went back to an older checkpoint: nothing saved is lost unasked).
std::vector<std::int64_t> steps_to_remove(std::vector<std::int64_t> steps, std::int64_t saved,
                                          const Retention& retention);

/// Removes what steps_to_remove names below `directory`, never what `best` points to. Returns what
/// could not be removed and why, "" where all went well: a failure here is no reason to stop a run.
std::string remove_old_checkpoints(const std::filesystem::path& directory, std::int64_t saved,
                                   const Retention& retention);

/// Removes what runs killed while saving or removing left behind (step-N.tmp-*, best.tmp-*,
/// .trash-*).
/// The caller holds the run's lock. Returns what could not be removed.
std::string remove_leftovers(const std::filesystem::path& directory);

/// Renames the folder to .trash-NAME-UNIQUE beside it, then deletes that. Throws DataError.
void remove_folder(const std::filesystem::path& folder);

/// A suffix that no other process and no earlier call has used.
std::string unique_suffix();

}  // namespace trireme
