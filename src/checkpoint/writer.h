#pragma once
// The parts of a save, each done by one rank, without threads and without words to other ranks
// (async_writer.h has both). A checkpoint comes to be in a folder of another name and gets its own
// by one rename after every byte is on the disk: it is whole and verified by hashes, or it does not
// exist. Every rank writes one HDF5 file of the boxes it owns; a box that several ranks hold stands
// once, its rows shared out among them. All throw DataError where the file system refuses.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/retention.h"
#include "checkpoint/staging.h"
#include "store/state.h"

namespace trireme {

/// A small file kept in the checkpoint beside the shards, rank 0's.
struct ExtraFile {
  std::string name;
  std::string content;
};

/// What a save does, in this order.
enum class SavePhase : std::uint8_t {
  kFolder,    ///< rank 0: the temporary folder
  kRankFile,  ///< each rank: its file is begun
  kShards,    ///< all its shards are written, the file is to be closed and made durable
  kManifest,  ///< rank 0: every file is there
  kCommit,    ///< rank 0: only the rename is missing
};

/// What to save. Only `state` differs between ranks.
struct SaveRequest {
  std::filesystem::path directory;  ///< of all checkpoints; made where absent
  std::int64_t step = 0, consumed_samples = 0, zero_stage = 0;
  Json mesh = Json::object(), model = Json::object(), tokenizer = Json::object(),
       versions = Json::object();
  const State* state = nullptr;
  std::vector<ExtraFile> files;
  std::int64_t min_free_bytes = 0;  ///< must remain free on the disk afterwards
  std::int64_t shard_bytes_max = kShardBytesMax;
  /// With more of them, all ranks' together, the manifest is split: 65,536 are 17 MB of text.
  std::int64_t listed_shards_max = std::int64_t{1} << 16;
  Retention retention;  ///< where its `best` is this step, the link will point to it
  /// Called by rank 0 when all else is on the disk, before the rename; may be empty.
  std::function<void()> before_commit;
  /// Called before each phase by its thread; throwing fails the phase. For tests; may be empty.
  std::function<void(SavePhase)> on_phase;

  void enter(SavePhase phase) const {
    if (on_phase) on_phase(phase);
  }
};

/// Free bytes of the file system of `directory`, which exists. Throws DataError unless a save of
/// `payload_bytes` fits there (and a tenth for the rest) and leaves `min_free_bytes`.
std::int64_t check_free_space(const std::filesystem::path& directory, std::int64_t payload_bytes,
                              std::int64_t min_free_bytes);

/// Rank 0: a checkpoint's temporary folder, empty. All ranks' `payload_bytes` must fit on the disk.
std::filesystem::path make_temporary_folder(const SaveRequest& request, std::int64_t payload_bytes);

/// What a rank's file is written from: names of request and `state`, `staging`'s bytes of `shards`.
struct RankFile {
  const SaveRequest& request;
  const std::filesystem::path& folder;
  int rank = 0;
  const std::vector<StateTensor>& tensors;
  const std::vector<OwnShard>& shards;
  bool split = false;  ///< with an index: the manifest will not list the shards
};
/// Writes it (none where the rank owns nothing) and makes it durable. Returns what rank 0 must know
/// (contents_text). Calls `progress` now and then. Where it throws no file is left.
std::string write_rank_file(const RankFile& file, Staging& staging,
                            const std::function<void()>& progress);

/// What two neighbours' ranks have written, as one text. DataError where they contradict each
/// other.
std::string join_written(const std::string& lower, const std::string& higher, bool split);

/// Rank 0, behind the files of all ranks, of which `written` tells: manifest, virtual view (for a
/// manifest that lists the shards), the rename. An existing step-N is replaced in one exchange.
/// Then removes older checkpoints; returns what could not be.
std::string finish_checkpoint(const SaveRequest& request, const Json& scalars,
                              const std::filesystem::path& folder, const std::string& written);

/// Whether a save gives this name to a file that is its own: manifest, shards of a rank, virtual
/// view. Those of SaveRequest::files have their own names.
bool is_name_of_save(std::string_view name);

/// The name of the dataset that holds `box` of a tensor: "parameters/NAME/at-0-128".
std::string dataset_name(const std::string& tensor, const Box& box);

}  // namespace trireme
