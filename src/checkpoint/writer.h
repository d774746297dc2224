#pragma once
// Saving. A checkpoint comes to be in a folder of another name and gets its own by one rename after
// every byte is on the disk: it is whole and verified by hashes, or it does not exist. Every rank
// writes one HDF5 file of the boxes it owns; a box that several ranks hold stands once, its rows
// shared out among them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/retention.h"
#include "comm/communicator.h"
#include "parallel/state.h"

namespace trireme {

/// A small file kept in the checkpoint beside the shards, rank 0's.
struct ExtraFile {
  std::string name;
  std::string content;
};

/// What to save. Only `state` differs between ranks. It is read during the call and not kept: a
/// caller that goes on changing its tensors hands in a copy.
struct SaveRequest {
  std::filesystem::path directory;  ///< of all checkpoints; made where absent
  std::int64_t step = 0, consumed_samples = 0, zero_stage = 0;
  Json mesh = Json::object(), model = Json::object(), tokenizer = Json::object(),
       versions = Json::object();
  const State* state = nullptr;
  std::vector<ExtraFile> files;
  std::int64_t min_free_bytes = 0;  ///< must remain free on the disk afterwards
  std::int64_t shard_bytes_max = std::int64_t{64}
                                 << 20;  ///< bounds what a reader of a part must hash
  Retention retention;
};

/// The same on every rank.
struct SaveResult {
  std::filesystem::path path;  ///< DIRECTORY/step-N
  std::int64_t bytes = 0;      ///< payload of all ranks
  std::string error;           ///< why nothing was saved; "" where it was
  std::string warning;         ///< older checkpoints that could not be removed
  [[nodiscard]] bool saved() const { return error.empty(); }
};

/// Collective. Never throws for what a file system refuses on any rank: training goes on. A failed
/// save leaves what was there before and no temporary folder. An existing step-N is replaced in one
/// exchange. Older checkpoints are removed after the new one is durable.
SaveResult save_checkpoint(const SaveRequest& request, Communicator& world);

/// The name of the dataset that holds `box` of a tensor: "parameters/NAME/at-0-128".
std::string dataset_name(const std::string& tensor, const Box& box);

}  // namespace trireme
