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

constexpr std::string_view kVirtualViewName = "model.h5", kIndexDataset = "index";

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

/// The part of a manifest that one rank writes.
class WrittenPart {
 public:
  /// Names also what nobody writes: a hole is then seen.
  explicit WrittenPart(const std::vector<StateTensor>& tensors) {
    for (const StateTensor& tensor : tensors) {
      if (tensor.replica == 0) named(tensor);
    }
  }
  void add(const StateTensor& tensor, ManifestShard shard) {
    named(tensor).shards.push_back(std::move(shard));
  }
  [[nodiscard]] Manifest listed() const {
    Manifest manifest;
    for (const auto& [name, tensor] : tensors_) manifest.tensors.push_back(tensor);
    return manifest;
  }
  [[nodiscard]] Manifest in_runs(int rank) const {
    Manifest manifest = listed();
    manifest.split = true;
    for (ManifestTensor& tensor : manifest.tensors) {
      for (const ManifestShard& shard : std::exchange(tensor.shards, {}))
        tensor.runs.push_back({shard.box, rank});
    }
    return manifest;
  }

 private:
  ManifestTensor& named(const StateTensor& tensor) {
    const ManifestTensor made{tensor.name, tensor.dtype, tensor.global_shape, {}, {}};
    return tensors_.try_emplace(tensor.name, made).first->second;
  }

  std::map<std::string, ManifestTensor> tensors_;
};

Manifest make_manifest(const SaveRequest& request, const Json& scalars,
                       const std::string& written) {
  Manifest manifest;
  std::string_view rest = written;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    Manifest part = parse_contents(rest.substr(0, end), "what the ranks wrote");
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    manifest.split = part.split;
    join_contents(manifest, std::move(part));
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
  WrittenPart part(work.tensors);
  const auto contents = [&] { return work.split ? part.in_runs(work.rank) : part.listed(); };
  if (work.shards.empty()) return contents_text(contents());
  const std::string name = store_name(work.rank);
  Hdf5Writer file(work.folder / name);
  std::vector<Extent> extents;
  for (const OwnShard& shard : work.shards) {
    const StateTensor& tensor = work.tensors[shard.tensor];
    const std::span<const std::byte> bytes = staging.take();
    const std::string dataset = dataset_name(tensor.name, shard.box);
    const Hdf5Writer::Stored stored = file.write(dataset, tensor.dtype, shard.box.shape, bytes);
    extents.push_back({stored.begin, shard.bytes});
    part.add(tensor, {name, dataset, stored.begin, shard.box, stored.xxh3_128});
    staging.release();
    progress();
  }
  ManifestStore store;
  store.file = name;
  if (work.split) {
    const std::string index = contents_text(part.listed());
    const Hdf5Writer::Stored stored = file.write_text(std::string(kIndexDataset), index);
    store.index = {stored.begin, std::ssize(index), stored.xxh3_128};
  }
  work.request.enter(SavePhase::kShards);
  file.finish();
  progress();
  const StoreFile written(work.folder / name);
  store.bytes = written.bytes();
  store.frame_hash = written.frame_hash(std::move(extents));
  Manifest manifest = contents();
  manifest.stores.push_back(std::move(store));
  return contents_text(manifest);
}

std::string join_written(const std::string& lower, const std::string& higher, bool split) {
  if (!split) return lower + "\n" + higher;  // joined behind the step, by the thread that saves
  Manifest joined = parse_contents(lower, "what the ranks wrote");
  join_contents(joined, parse_contents(higher, "what the ranks wrote"));
  return contents_text(joined);
}

std::string finish_checkpoint(const SaveRequest& request, const Json& scalars,
                              const std::filesystem::path& folder, const std::string& written) {
  request.enter(SavePhase::kManifest);
  const Manifest manifest = make_manifest(request, scalars, written);
  const std::filesystem::path manifest_path = folder / kManifestName;
  const std::string text = manifest_text(manifest);
  (void)parse_manifest(text,
                       manifest_path.string());  // refuses to commit what a reader would refuse
  for (const ExtraFile& file : request.files)
    write_file_atomically(folder / file.name, file.content);
  if (!manifest.split) write_virtual_view(folder, manifest);
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
         (name.starts_with(kStorePrefix) && name.ends_with(kStoreSuffix));
}

std::string dataset_name(const std::string& tensor, const Box& box) {
  std::string name = tensor + "/at";
  for (const std::int64_t offset : box.offset.sizes()) name += fmt::format("-{}", offset);
  return name;
}

}  // namespace trireme
