#pragma once
// Finding, verifying and loading checkpoints. Nothing is trusted: the newest that verifies is used,
// whatever else lies beside it, and every byte that enters a tensor has passed its hash.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/shard_lists.h"
#include "checkpoint/shard_reader.h"
#include "comm/communicator.h"
#include "store/state.h"

namespace trireme {

/// A folder step-N below a folder of checkpoints.
struct CheckpointInfo {
  std::filesystem::path path;
  std::int64_t step = 0;
  std::string problem;  ///< why its manifest or its list of files is no good; "" where they are
  Manifest manifest;    ///< where there is no problem
};

/// All of them, the newest first; none without the folder. Reads manifests and file sizes alone.
std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& directory);

/// Those that an argument means: a step folder, all of a checkpoints folder or a run, or none.
std::vector<CheckpointInfo> find_checkpoints(const std::filesystem::path& argument);

/// A fault of a checkpoint; `text` is the sentence; `tensor` "" for extra files and gaps.
struct CheckpointFault {
  std::string file, tensor, text;
};

/// Which of the shards to verify: numbers first, first + stride, ... Ranks share the work.
struct ShardSelection {
  std::size_t first = 0, stride = 1;
};

/// Reads every selected shard, frame and extra file and compares hashes: every byte of every file,
/// but for model.h5. All faults. Throws DataError where the manifest itself is no good.
std::vector<CheckpointFault> verify_checkpoint(const std::filesystem::path& folder,
                                               ShardSelection selection = {});

struct Rejected {
  std::filesystem::path path;
  std::string reason;
};

struct NewestCheckpoint {
  std::filesystem::path path;      ///< empty: there is none
  std::vector<Rejected> rejected;  ///< the newer ones
};

enum class Check : std::uint8_t {
  kSizes,      ///< manifests and sizes of files: for who loads what is found, which checks the rest
  kEveryHash,  ///< every byte is read; the ranks share the reading
};

/// The newest checkpoint below `directory` that passes, without those that are known to be no good
/// and which stand in neither part of the answer. Collective.
NewestCheckpoint find_newest(const std::filesystem::path& directory, Communicator& world,
                             Check check, const std::vector<Rejected>& known = {});

/// The newest whose every hash holds.
NewestCheckpoint find_newest_valid(const std::filesystem::path& directory, Communicator& world);

/// Throws DataError with the first fault unless every hash of this step folder holds. Collective.
void require_valid(const std::filesystem::path& folder, Communicator& world);

/// What `--checkpoint DIR` means: a step folder (itself, not verified), a folder of checkpoints or
/// a run's (the newest that verifies; others are warned of). DataError where none. Collective.
std::filesystem::path resolve_checkpoint_argument(const std::filesystem::path& argument,
                                                  Communicator& world);

/// The folder of checkpoints that it means; empty: a step folder. DataError: none. Collective.
std::filesystem::path folder_of_argument(const std::filesystem::path& argument,
                                         Communicator& world);

/// Whether resolve_checkpoint_argument would look here: a manifest, step folders or a run is there.
bool looks_like_checkpoint(const std::filesystem::path& argument);

/// FOLDER/manifest.json, read by rank 0 alone. DataError on every rank. Collective.
Manifest read_manifest(const std::filesystem::path& folder, Communicator& world);

enum class LoadScope : std::uint8_t {
  kEverything,  ///< the state names exactly its parameters, and what it has of the rest
  kParameters,  ///< the state names exactly its parameters; its optimizer's tensors are left alone
  kSome,        ///< the state names some of its parameters
};

/// Fills every tensor of `state` with its box of the checkpoint's tensor, and the scalars; returns
/// the manifest. Reads only the shards that meet these boxes, each once and verified whole; with
/// kEverything the ranks share the rest of the files too, so that whoever loaded needs no other
/// verification: every byte but model.h5's has passed a hash, of the tensors that are named.
/// Another number of ranks than that which saved is the ordinary case. Throws DataError on every
/// rank: tensors missing or left over (all ranks' names together), other types or shapes, a shard
/// that does not match its hash. After an error the contents of `state` mean nothing. Collective.
Manifest load_state(const std::filesystem::path& folder, State& state, Communicator& world,
                    LoadScope scope = LoadScope::kEverything);

/// Reads whole tensors of one checkpoint, verified: what export does, one at a time. `manifest` is
/// kept by reference.
class TensorReader {
 public:
  TensorReader(const std::filesystem::path& folder, const Manifest& manifest);
  /// All of `tensor` (of this manifest), row-major; DataError where a hash does not match.
  void read(const ManifestTensor& tensor, std::byte* out);

 private:
  ShardReader reader_;
  ShardLists lists_;
};

}  // namespace trireme
