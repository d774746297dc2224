#include "checkpoint/writer.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>

#include "base/file.h"
#include "base/hash.h"
#include "base/human_format.h"
#include "checkpoint/hdf5_file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/store_file.h"

namespace trireme {

std::int64_t check_free_space(const std::filesystem::path& directory, std::int64_t payload_bytes,
                              std::int64_t min_free_bytes) {
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) != 0)
    throw DataError("{}: cannot read the free space: {}", directory.string(), errno_text(errno));
  const double free = static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize);
  const double needed =
      1.1 * static_cast<double>(payload_bytes) + static_cast<double>(min_free_bytes);
  if (free < needed) {
    throw DataError("{}: {} free, saving needs {}. Free space, or lower checkpoint.keep_last",
                    directory.string(), format_bytes(static_cast<std::int64_t>(free)),
                    format_bytes(static_cast<std::int64_t>(needed)));
  }
  return static_cast<std::int64_t>(std::min(free, 0x1p62));
}

namespace {

constexpr std::string_view kVirtualViewName = "model.h5";

/// FOLDER/model.h5: every tensor of the manifest whole, as a virtual dataset over the shards beside
/// it, for h5py and its kin. What is missing reads as NaN, so this program never does.
void write_virtual_view(const std::filesystem::path& folder, const Manifest& manifest) {
  Hdf5Writer view(folder / kVirtualViewName);
  for (const ManifestTensor& tensor : manifest.tensors) {
    // Virtual datasets have at least one dim and one element; one number or none is copied instead.
    if (tensor.shape.rank() > 0 && tensor.shape.count() > 0) {
      std::vector<Hdf5Writer::VirtualPart> parts;
      for (const ManifestShard& shard : tensor.shards)
        parts.push_back({shard.file, shard.dataset, shard.box});
      view.write_virtual(tensor.name, tensor.dtype, tensor.shape, parts);
      continue;
    }
    std::vector<std::byte> value(static_cast<std::size_t>(tensor.shape.count()) *
                                 size_of(tensor.dtype));
    for (const ManifestShard& shard : tensor.shards) {
      StoreFile(folder / shard.file).read(shard.byte_offset, value);
    }
    view.write(tensor.name, tensor.dtype, tensor.shape, value);
  }
  view.finish();
}

constexpr std::string_view kRankFilePrefix = "rank-", kRankFileSuffix = ".h5";

std::string rank_file_name(int rank) {
  return fmt::format("{}{:05d}{}", kRankFilePrefix, rank, kRankFileSuffix);
}

Shape shape_of(const Json& json) {
  std::vector<std::int64_t> sizes;
  for (const Json& size : json.as_array()) sizes.push_back(size.as_integer());
  return Shape(std::span<const std::int64_t>(sizes));
}

/// This rank's manifest entries: [name, dtype, shape], if stored [offset, shape, hash, byte].
Json describe(const StateTensor& tensor) {
  Json entry = Json::array();
  entry.push_back(tensor.name);
  entry.push_back(static_cast<int>(tensor.dtype));
  entry.push_back(json_of(tensor.global_shape));
  return entry;
}

/// Adds the entries of one rank.
void add_entries(std::map<std::string, ManifestTensor>& tensors, const Json& entries, int rank) {
  for (const Json& json : entries.as_array()) {
    const Json::Array& entry = json.as_array();
    const std::string& name = entry[0].as_string();
    const auto dtype = static_cast<DType>(entry[1].as_integer());
    const Shape shape = shape_of(entry[2]);
    ManifestTensor& tensor =
        tensors.try_emplace(name, ManifestTensor{name, dtype, shape, {}}).first->second;
    expect(tensor.dtype == dtype && tensor.shape == shape,
           "{}: rank {} has {} {}, a lower rank {} {}", name, rank, name_of(dtype), shape.text(),
           name_of(tensor.dtype), tensor.shape.text());
    if (entry.size() == 3) continue;
    const Box box{shape_of(entry[3]), shape_of(entry[4])};
    tensor.shards.push_back({rank_file_name(rank), dataset_name(name, box), entry[6].as_integer(),
                             box, entry[5].as_string()});
  }
}

Manifest make_manifest(const SaveRequest& request, const Json& scalars,
                       const std::vector<std::string>& entries_of_ranks) {
  Manifest manifest;
  std::map<std::string, ManifestTensor> tensors;
  for (std::size_t i = 0; i < entries_of_ranks.size(); ++i) {
    const auto rank = static_cast<int>(i);
    const Json written = parse_json(entries_of_ranks[i], "entries of a rank");
    add_entries(tensors, *written.find("entries"), rank);
    if (const Json* store = written.find("store")) {
      const Json::Array& values = store->as_array();
      manifest.stores.push_back(
          {rank_file_name(rank), values[0].as_integer(), values[1].as_string()});
    }
  }
  manifest.step = request.step;
  manifest.consumed_samples = request.consumed_samples;
  manifest.zero_stage = request.zero_stage;
  manifest.mesh = request.mesh;
  manifest.model = request.model;
  manifest.tokenizer = request.tokenizer;
  manifest.scalars = scalars;
  manifest.versions = request.versions;
  for (const ExtraFile& file : request.files) {
    manifest.files.push_back(
        {file.name, static_cast<std::int64_t>(file.content.size()), xxh3_128_hex(file.content)});
  }
  for (auto& [name, tensor] : tensors) {
    std::sort(tensor.shards.begin(), tensor.shards.end(),
              [](const ManifestShard& a, const ManifestShard& b) {
                const auto x = a.box.offset.sizes(), y = b.box.offset.sizes();
                return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
              });
    manifest.tensors.push_back(std::move(tensor));
  }
  return manifest;
}

/// Gives the finished folder its name. What stood under it before goes away afterwards.
void commit(const std::filesystem::path& folder, const std::filesystem::path& final_path) {
  std::error_code code;
  const auto standing = std::filesystem::symlink_status(final_path, code);
  if (std::filesystem::is_directory(standing)) {
    if (::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0) {
      sync_path(final_path.parent_path());
      std::filesystem::remove_all(folder, code);  // what remains is a leftover of a known name
      return;
    }
    remove_folder(final_path);  // a file system without the exchange
  } else if (std::filesystem::exists(standing)) {
    throw DataError("{}: is in the way and not a folder. Move it away", final_path.string());
  }
  if (::rename(folder.c_str(), final_path.c_str()) != 0) {
    throw DataError("{}: cannot rename to {}: {}", folder.string(), final_path.string(),
                    errno_text(errno));
  }
}

}  // namespace

std::filesystem::path make_temporary_folder(const SaveRequest& request,
                                            std::int64_t payload_bytes) {
  request.enter(SavePhase::kFolder);
  std::error_code code;
  std::filesystem::create_directories(request.directory, code);
  if (code)
    throw DataError("{}: cannot make this folder: {}", request.directory.string(), code.message());
  check_free_space(request.directory, payload_bytes, request.min_free_bytes);
  std::filesystem::path folder =
      request.directory / fmt::format("{}.tmp-{}", step_folder_name(request.step), unique_suffix());
  std::filesystem::create_directory(folder, code);
  if (code) throw DataError("{}: cannot make this folder: {}", folder.string(), code.message());
  return folder;
}

std::string write_rank_file(const RankFile& work, Staging& staging,
                            const std::function<void()>& progress) {
  work.request.enter(SavePhase::kRankFile);
  Json entries = Json::array();
  for (const StateTensor& tensor : work.tensors) {
    if (tensor.replica == 0)
      entries.push_back(describe(tensor));  // also what nobody writes: a hole is then seen
  }
  if (work.shards.empty()) return Json(Json::Object{{"entries", std::move(entries)}}).dump();
  const std::filesystem::path path = work.folder / rank_file_name(work.rank);
  Hdf5Writer file(path);
  std::vector<Extent> extents;
  for (const OwnShard& shard : work.shards) {
    const StateTensor& tensor = work.tensors[shard.tensor];
    const std::span<const std::byte> bytes = staging.take();
    const Hdf5Writer::Stored stored =
        file.write(dataset_name(tensor.name, shard.box), tensor.dtype, shard.box.shape, bytes);
    extents.push_back({stored.begin, shard.bytes});
    Json entry = describe(tensor);
    entry.push_back(json_of(shard.box.offset));
    entry.push_back(json_of(shard.box.shape));
    entry.push_back(stored.xxh3_128);
    entry.push_back(stored.begin);
    entries.push_back(std::move(entry));
    staging.release();
    progress();
  }
  work.request.enter(SavePhase::kShards);
  file.finish();
  progress();
  const StoreFile written(path);
  Json store = Json::array();
  store.push_back(written.bytes());
  store.push_back(written.frame_hash(std::move(extents)));
  return Json(Json::Object{{"entries", std::move(entries)}, {"store", std::move(store)}}).dump();
}

std::string finish_checkpoint(const SaveRequest& request, const Json& scalars,
                              const std::filesystem::path& folder,
                              const std::vector<std::string>& entries_of_ranks) {
  request.enter(SavePhase::kManifest);
  const Manifest manifest = make_manifest(request, scalars, entries_of_ranks);
  const std::filesystem::path manifest_path = folder / kManifestName;
  const std::string text = manifest_text(manifest);
  (void)parse_manifest(text,
                       manifest_path.string());  // refuses to commit what a reader would refuse
  for (const ExtraFile& file : request.files)
    write_file_atomically(folder / file.name, file.content);
  write_virtual_view(folder, manifest);
  write_file_atomically(manifest_path, text);
  sync_path(folder);
  if (request.before_commit) request.before_commit();
  request.enter(SavePhase::kCommit);
  commit(folder, request.directory / step_folder_name(request.step));
  sync_path(request.directory);
  std::string problems;
  if (request.retention.best == request.step) {
    try {
      point_best(request.directory, request.step);
    } catch (const DataError& error) {  // the checkpoint is safe; the old link may still stand
      problems = error.what();
    }
  }
  const std::string left =
      remove_old_checkpoints(request.directory, request.step, request.retention);
  return problems + (problems.empty() || left.empty() ? "" : "\n") + left;
}

bool is_name_of_save(std::string_view name) {
  return name == kManifestName || name == kVirtualViewName ||
         (name.starts_with(kRankFilePrefix) && name.ends_with(kRankFileSuffix));
}

std::string dataset_name(const std::string& tensor, const Box& box) {
  std::string name = tensor + "/at";
  for (const std::int64_t offset : box.offset.sizes()) name += fmt::format("-{}", offset);
  return name;
}

}  // namespace trireme
