#pragma once
// The weights that adapters stand beside are read anew at each start; hashes say whether they are
// still those that the adapters were trained with.

#include <filesystem>

#include "base/json.h"
#include "comm/communicator.h"

namespace trireme {

/// {file: XXH3-128 of its bytes}: of a Hugging Face directory every file of weights and
/// config.json, of a step folder its manifest, which has the hashes of the rest. The ranks share
/// the files. Throws DataError on every rank. Collective.
Json base_hashes(const std::filesystem::path& folder, Communicator& world);

/// {"path": absolute, "hashes": base_hashes}: `base` of a manifest's scalars. `folder` is what
/// ModelSource::path() gives: a run's folder would mean another step later. Collective.
Json base_json(const std::filesystem::path& folder, Communicator& world);

/// Throws DataError on every rank where `folder` has other files than `hashes` says (of
/// base_hashes; null: not known, nothing is read), naming the file and both hashes. Collective.
void check_base(const Json& hashes, const std::filesystem::path& folder, Communicator& world);

/// The same where the hashes of `folder` are known: `found`. On one rank.
void compare_base(const Json& hashes, const Json& found, const std::filesystem::path& folder);

}  // namespace trireme
