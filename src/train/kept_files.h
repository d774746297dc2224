#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/writer.h"
#include "config/run_config.h"

namespace trireme {

/// The tokenizer of a run with all that belongs to it, and the generation config: what its
/// checkpoints keep (checkpoint/companion_files.h), so that they, and exports of them, can be used
/// where the originals are not. Of each file the first found of
/// - the tokenizer's folder (of its siblings only where the file is named tokenizer.json),
/// - `resumed`, the checkpoint that the run goes on from (may be empty),
/// - the folder or checkpoint of init.weights.
/// Files of another tokenizer than the run's, whose `tokenizer_hash` this is, are left where they
/// are. Reads files; throws DataError where one cannot be read.
std::vector<ExtraFile> kept_files(const RunConfig& config, const std::string& tokenizer_hash,
                                  const std::filesystem::path& resumed);

}  // namespace trireme
