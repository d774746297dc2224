#pragma once
// manifest.json: what a checkpoint holds and where, with the hash of every shard, frame and small
// file. Of a job of many ranks it would be mostly a list of shards, hundreds of megabytes long; the
// list is then split among the stores, each with the index of its own shards, and the manifest has
// runs of shards: which ranks hold which rows. Reading is strict: shapes fit memory arithmetic,
// boxes cover every tensor exactly once.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/shape.h"

namespace trireme {

/// Shards with byte_offset, files of shards with a frame: every tensor has its `shards`.
inline constexpr std::int64_t kListedManifestVersion = 2;
/// Tensors have `runs`, stores an `index`.
inline constexpr std::int64_t kSplitManifestVersion = 3;
inline constexpr std::string_view kManifestName = "manifest.json";

/// One stored box of a tensor.
struct ManifestShard {
  std::string file;              ///< a plain name in the checkpoint's folder
  std::string dataset;           ///< its path in that HDF5 file
  std::int64_t byte_offset = 0;  ///< where its bytes begin in that file
  Box box;                       ///< which part of the tensor; the dataset has box.shape
  std::string hash;              ///< XXH3-128, 32 hex digits, of its little-endian row-major bytes
  friend bool operator==(const ManifestShard&, const ManifestShard&) = default;
};

/// Shards of one tensor in the stores of several ranks: `box` in `count` pieces of equally many
/// rows (dim 0), piece i in the store of rank `rank` + i * `stride`.
struct ManifestRun {
  Box box;  ///< all pieces together
  std::int64_t rank = 0, stride = 0, count = 1;

  [[nodiscard]] Box piece(std::int64_t i) const;
  [[nodiscard]] std::int64_t rank_of(std::int64_t i) const { return rank + i * stride; }
  friend bool operator==(const ManifestRun&, const ManifestRun&) = default;
};

struct ManifestTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<ManifestShard> shards;  ///< sorted by offset; none in a split manifest
  std::vector<ManifestRun> runs;      ///< of a split manifest

  [[nodiscard]] std::int64_t shard_count() const;
  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

/// Where the index of a store stands in it: the text (contents_text) of its shards.
struct ManifestIndex {
  std::int64_t byte_offset = 0, bytes = 0;
  std::string hash;
  friend bool operator==(const ManifestIndex&, const ManifestIndex&) = default;
};

/// An HDF5 file of shards.
struct ManifestStore {
  std::string file;
  std::int64_t bytes = 0;
  std::string frame_hash;  ///< of all its bytes that belong to no shard (checkpoint/store_file.h)
  std::optional<ManifestIndex> index = std::nullopt;  ///< of a split manifest
  friend bool operator==(const ManifestStore&, const ManifestStore&) = default;
};

/// A small file kept beside the shards (tokenizer.json, kernel_choices.json).
struct ManifestFile {
  std::string file;
  std::int64_t bytes = 0;
  std::string hash;
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct Manifest {
  std::int64_t step = 0, consumed_samples = 0, zero_stage = 0;
  Json mesh = Json::object();       ///< extents by axis
  Json model = Json::object();      ///< Hugging Face config keys
  Json tokenizer = Json::object();  ///< {path, hash}
  Json scalars = Json::object();    ///< State::scalars
  Json versions = Json::object();   ///< of the program and its libraries
  std::vector<ManifestFile> files;
  std::vector<ManifestStore> stores;    ///< one for each file that a shard names
  std::vector<ManifestTensor> tensors;  ///< sorted by name
  bool split = false;                   ///< runs and indices instead of shards

  [[nodiscard]] const ManifestTensor* find(std::string_view name) const;
  [[nodiscard]] const ManifestFile* find_file(std::string_view file) const;
  /// Payload of all tensors.
  [[nodiscard]] std::int64_t bytes() const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// The text of the file. Its member manifest_xxh3_128 is the hash of the compact text of all
/// others, so that a changed number is found as a changed weight is.
std::string manifest_text(const Manifest& manifest);

/// Throws DataError naming `source` and the member: wrong types, sizes, boxes outside of the shape,
/// overlaps, holes, file names that leave the folder, shards beyond the end of their file, another
/// format version, a wrong hash. A manifest without manifest_xxh3_128 (another tool's) is accepted.
Manifest parse_manifest(std::string_view text, std::string_view source);

/// What it says of stores and tensors, on one line: what ranks tell each other of a save, and the
/// index of a store.
std::string contents_text(const Manifest& manifest);
/// DataError as parse_manifest; whether parts fit each other is not looked at.
Manifest parse_contents(std::string_view text, std::string_view source);

/// Adds the stores and tensors of higher ranks; adjacent runs become one. InternalError where a
/// tensor has two types or shapes.
void join_contents(Manifest& manifest, Manifest more);

/// FOLDER/manifest.json, with check_folder_name.
Manifest read_manifest(const std::filesystem::path& folder);

/// Throws DataError where a folder named step-N holds another step; other names say nothing.
void check_folder_name(const std::filesystem::path& folder, const Manifest& manifest);

/// DataError unless the boxes of every tensor cover it exactly once, as parse_manifest does.
void check_coverage(const Manifest& manifest, std::string_view source);

/// [307, 24]
Json json_of(const Shape& shape);

inline constexpr std::string_view kStorePrefix = "rank-", kStoreSuffix = ".h5";
/// "rank-00012.h5", the store of a rank.
std::string store_name(std::int64_t rank);
/// The rank of such a name, -1 for any other.
std::int64_t rank_of_store_name(std::string_view name);

/// "step-00000100"
std::string step_folder_name(std::int64_t step);
/// The step of such a name, -1 for any other.
std::int64_t step_of_folder_name(std::string_view name);

}  // namespace trireme
