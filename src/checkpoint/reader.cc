#include "checkpoint/reader.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/math.h"
#include "base/missing_path.h"
#include "base/parallel_for.h"
#include "base/progress.h"
#include "checkpoint/name_sets.h"
#include "checkpoint/store_file.h"

namespace trireme {

namespace {

constexpr std::string_view kParametersPrefix = "parameters/";

/// The selected shards of a manifest that lists them.
std::vector<StoredShard> selected_shards(const Manifest& manifest, ShardSelection selection) {
  std::vector<StoredShard> shards;
  std::size_t number = 0;
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const ManifestShard& shard : tensor.shards) {
      if (number++ % selection.stride == selection.first) shards.push_back({&tensor, shard});
    }
  }
  std::stable_sort(shards.begin(), shards.end(), [](const StoredShard& x, const StoredShard& y) {
    return x.shard.file < y.shard.file;
  });
  return shards;
}

/// "" where every file that the manifest names is there with the bytes that were written.
std::string missing_file(const std::filesystem::path& folder, const Manifest& manifest) {
  std::map<std::string, std::int64_t> bytes_of_file;
  for (const ManifestFile& file : manifest.files) bytes_of_file[file.file] = file.bytes;
  for (const ManifestStore& store : manifest.stores) bytes_of_file[store.file] = store.bytes;
  for (const auto& [name, bytes] : bytes_of_file) {
    std::error_code code;
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::is_regular_file(path, code))
      return fmt::format("{}: is missing", path.string());
    const auto found = static_cast<std::int64_t>(std::filesystem::file_size(path, code));
    if (!code && found != bytes) {
      return fmt::format("{}: has {} bytes, {} were written (it was cut or changed)", path.string(),
                         found, bytes);
    }
  }
  return "";
}

void verify_file(const std::filesystem::path& folder, const ManifestFile& file) {
  const std::filesystem::path path = folder / file.file;
  const std::string content = read_file(path);
  if (static_cast<std::int64_t>(content.size()) != file.bytes ||
      xxh3_128_hex(content) != file.hash) {
    throw DataError("{}: does not match its hash (it was changed or damaged)", path.string());
  }
}

/// What lies between the shards: h5py needs it, and a changed byte is a sign of more.
void verify_frame(const std::filesystem::path& folder, const ManifestStore& store,
                  const std::vector<StoredShard>& shards) {
  const std::filesystem::path path = folder / store.file;
  std::vector<Extent> extents;
  for (const StoredShard& stored : shards)
    extents.push_back({stored.shard.byte_offset, stored.bytes()});
  const StoreFile file(path);
  if (file.bytes() != store.bytes) {
    throw DataError("{}: has {} bytes, {} were written (it was cut or changed)", path.string(),
                    file.bytes(), store.bytes);
  }
  if (file.frame_hash(std::move(extents)) != store.frame_hash) {
    throw DataError(
        "{}: what lies between its tensors does not match its hash (the file was changed or "
        "damaged)",
        path.string());
  }
}

ShardSelection share_of(const Communicator& world) {
  return {static_cast<std::size_t>(world.rank()), static_cast<std::size_t>(world.size())};
}

/// The first fault that any rank finds, "" where there is none. Collective.
std::string first_fault(const std::filesystem::path& folder, Communicator& world) {
  std::string mine;
  try {
    const auto faults = verify_checkpoint(folder, share_of(world));
    if (!faults.empty()) mine = faults.front().text;
    if (faults.size() > 1) mine += fmt::format(" (and {} more)", faults.size() - 1);
  } catch (const std::exception& error) {
    mine = error.what();
  }
  for (const std::string& fault : world.all_gather_text(mine)) {
    if (!fault.empty()) return fault;
  }
  return "";
}

bool has_step_folders(const std::filesystem::path& directory) {
  std::error_code code;
  for (std::filesystem::directory_iterator at(directory, code), end; !code && at != end;
       at.increment(code)) {
    if (step_of_folder_name(at->path().filename().string()) >= 0) return true;
  }
  return false;
}

/// The folder of checkpoints that an argument means; empty where it means none.
std::filesystem::path checkpoints_folder(const std::filesystem::path& argument) {
  if (has_step_folders(argument)) return argument;
  std::error_code code;
  if (is_folder(argument / "checkpoints")) return argument / "checkpoints";
  // A run that keeps its checkpoints elsewhere says so in its resolved config.
  if (!std::filesystem::is_regular_file(argument / "config.json", code)) return {};
  try {
    const std::filesystem::path config = argument / "config.json";
    const Json json = parse_json(read_file(config), config.string());
    const Json* section = json.find("checkpoint");
    const Json* directory = section == nullptr ? nullptr : section->find("directory");
    if (directory != nullptr && directory->is_string() &&
        has_step_folders(directory->as_string())) {
      return directory->as_string();
    }
  } catch (const Error&) {
    // Not a run's config: the argument means no checkpoint.
  }
  return {};
}

/// Where a link such as checkpoints/best points now, as rank 0 sees it: it may move meanwhile.
std::filesystem::path without_link(const std::filesystem::path& folder, Communicator& world) {
  std::string path;
  if (world.rank() == 0) {
    std::error_code code;
    const std::filesystem::path plain = (folder / "").parent_path();  // without a slash at the end
    const std::filesystem::path target = std::filesystem::read_symlink(plain, code);
    path = (code ? folder : plain.parent_path() / target).string();
  }
  return world.broadcast_text(path, 0);
}

std::vector<std::string> names_of(const State& state) {
  std::vector<std::string> names;
  for (const StateTensor& tensor : state.tensors) names.push_back(tensor.name);
  return names;
}

void check_names(const std::set<std::string>& wanted, const Manifest& manifest, LoadScope scope,
                 const std::string& source) {
  std::vector<std::string> missing, surplus;
  for (const std::string& name : wanted) {
    if (manifest.find(name) == nullptr) missing.push_back(name);
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    const bool in_scope = scope != LoadScope::kSome && tensor.name.starts_with(kParametersPrefix);
    if (in_scope && !wanted.contains(tensor.name)) surplus.push_back(tensor.name);
  }
  if (missing.empty() && surplus.empty()) return;
  throw DataError("{}: does not hold this model's state.{}", source,
                  mismatch_text(missing, surplus));
}

void check_tensor(const StateTensor& wanted, const ManifestTensor& stored,
                  const std::string& source) {
  if (stored.dtype != wanted.dtype || stored.shape != wanted.global_shape) {
    throw DataError("{}: {} is {} {}, the model has {} {}", source, wanted.name,
                    name_of(stored.dtype), stored.shape.text(), name_of(wanted.dtype),
                    wanted.global_shape.text());
  }
  expect(lies_inside(wanted.box, wanted.global_shape), "{}: a box outside of {}", wanted.name,
         wanted.global_shape.text());
}

void load_boxes(const std::filesystem::path& folder, const Manifest& manifest, State& state) {
  const std::string source = (folder / kManifestName).string();
  std::map<std::string_view, std::vector<BoxBuffer>>
      targets;  // one tensor may stand in several boxes
  for (const StateTensor& tensor : state.tensors) {
    const ManifestTensor* stored = manifest.find(tensor.name);
    expect(stored != nullptr, "{} was found before", tensor.name);
    check_tensor(tensor, *stored, source);
    targets[tensor.name].push_back({tensor.data, tensor.box});
  }
  struct Reading {
    StoredShard stored;
    std::vector<BoxBuffer> met;
  };
  // By file; a manifest may be wrong, and have the same bytes twice.
  std::map<std::tuple<std::string, std::int64_t, std::string_view, std::string>, Reading> by_place;
  ShardLists lists(folder, manifest);
  for (const auto& [name, buffers] : targets) {
    const ManifestTensor& tensor = *manifest.find(name);
    for (const BoxBuffer& target : buffers) {
      for (ManifestShard& shard : lists.meeting(tensor, target.box)) {
        Reading& reading = by_place[{shard.file, shard.byte_offset, name, shard.box.offset.text()}];
        reading.met.push_back(target);
        reading.stored = {&tensor, std::move(shard)};
      }
    }
  }
  std::vector<const Reading*> readings;
  std::int64_t bytes = 0;
  for (const auto& [place, reading] : by_place) {
    readings.push_back(&reading);
    bytes += reading.stored.bytes();
  }
  Progress progress("reading " + folder.string(), bytes, ProgressUnit::kBytes);
  const ShardReader reader(folder);
  parallel_for(std::ssize(readings), [&](std::int64_t i) {
    const auto& [stored, met] = *readings[static_cast<std::size_t>(i)];
    reader.read(*stored.tensor, stored.shard, met);
    progress.add(stored.bytes());
  });
}

/// What belongs to no tensor: the ranks share it by files. Calls `attempt(file, work)` for each;
/// the work on a store begins with `visit(its shards)`.
template <class Attempt, class Visit>
void verify_rest(const std::filesystem::path& folder, const Manifest& manifest,
                 ShardSelection selection, const Attempt& attempt, const Visit& visit) {
  for (std::size_t i = selection.first; i < manifest.files.size(); i += selection.stride)
    attempt(manifest.files[i].file, [&] { verify_file(folder, manifest.files[i]); });
  const ShardLists lists(folder, manifest);
  for (std::size_t i = selection.first; i < manifest.stores.size(); i += selection.stride) {
    const ManifestStore& store = manifest.stores[i];
    attempt(store.file, [&] {
      const std::vector<StoredShard> shards = lists.of_store(store);
      visit(shards);
      verify_frame(folder, store, shards);
    });
  }
}

/// Adds a fault for each shard that does not match its hash.
void verify_shards(const std::filesystem::path& folder, const std::vector<StoredShard>& shards,
                   Progress& progress, std::vector<CheckpointFault>& faults) {
  const ShardReader reader(folder);
  std::vector<std::string> texts(shards.size());
  parallel_for(std::ssize(shards), [&](std::int64_t job) {
    const auto i = static_cast<std::size_t>(job);
    progress.add(shards[i].bytes());
    try {
      reader.read(*shards[i].tensor, shards[i].shard, {});
    } catch (const Error& error) {
      texts[i] = error.what();
    }
  });
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (!texts[i].empty())
      faults.push_back({shards[i].shard.file, shards[i].tensor->name, texts[i]});
  }
}

CheckpointInfo examine(const std::filesystem::path& folder, std::int64_t step) {
  CheckpointInfo info;
  info.path = folder;
  info.step = step;
  try {
    info.manifest = read_manifest(folder);
    info.problem = missing_file(folder, info.manifest);
  } catch (const std::exception& error) {
    info.problem = error.what();
  }
  return info;
}

}  // namespace

std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& directory) {
  std::vector<CheckpointInfo> found;
  std::error_code code;
  for (std::filesystem::directory_iterator at(directory, code), end; !code && at != end;
       at.increment(code)) {
    const std::int64_t step = step_of_folder_name(at->path().filename().string());
    if (step >= 0) found.push_back(examine(at->path(), step));
  }
  if (code && code != std::errc::no_such_file_or_directory) {
    throw DataError("{}: cannot list: {}", directory.string(), code.message());
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

std::vector<CheckpointInfo> find_checkpoints(const std::filesystem::path& argument) {
  const std::int64_t named =
      step_of_folder_name((argument / "").lexically_normal().parent_path().filename().string());
  if (is_there(argument / kManifestName) || (named >= 0 && is_there(argument))) {
    CheckpointInfo info = examine(argument, named);
    if (info.problem.empty()) info.step = info.manifest.step;  // "best" names none
    return {std::move(info)};
  }
  const std::filesystem::path folder = checkpoints_folder(argument);
  return folder.empty() ? std::vector<CheckpointInfo>{} : list_checkpoints(folder);
}

std::vector<CheckpointFault> verify_checkpoint(const std::filesystem::path& folder,
                                               ShardSelection selection) {
  const Manifest manifest = read_manifest(folder);
  Progress progress("verifying " + folder.string(),
                    ceil_div(manifest.bytes(), static_cast<std::int64_t>(selection.stride)),
                    ProgressUnit::kBytes);
  std::vector<CheckpointFault> faults;
  const auto verify = [&](const std::vector<StoredShard>& shards) {
    verify_shards(folder, shards, progress, faults);
  };
  if (!manifest.split) verify(selected_shards(manifest, selection));
  const auto attempt = [&](const std::string& file, const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      faults.push_back({file, "", error.what()});
    }
  };
  verify_rest(folder, manifest, selection, attempt, [&](const std::vector<StoredShard>& shards) {
    if (manifest.split) verify(shards);  // by stores, so that each index is read by one rank
  });
  return faults;
}

NewestCheckpoint find_newest(const std::filesystem::path& directory, Communicator& world,
                             Check check, const std::vector<Rejected>& known) {
  Json steps = Json::array();
  NewestCheckpoint newest;
  run_together(world, [&] {
    if (world.rank() != 0) return;
    for (const CheckpointInfo& info : list_checkpoints(directory)) {
      if (std::any_of(known.begin(), known.end(),
                      [&](const Rejected& rejected) { return rejected.path == info.path; }))
        continue;
      Json entry = Json::array();
      entry.push_back(info.path.string());
      entry.push_back(info.problem);
      steps.push_back(std::move(entry));
      if (check == Check::kSizes && info.problem.empty()) break;
    }
  });
  steps = parse_json(world.broadcast_text(steps.dump(), 0), "list of checkpoints");
  for (const Json& entry : steps.as_array()) {
    const std::filesystem::path path = entry.as_array()[0].as_string();
    std::string fault = entry.as_array()[1].as_string();
    if (fault.empty() && check == Check::kEveryHash) fault = first_fault(path, world);
    if (fault.empty()) {
      newest.path = path;
      break;
    }
    newest.rejected.push_back({path, std::move(fault)});
  }
  return newest;
}

NewestCheckpoint find_newest_valid(const std::filesystem::path& directory, Communicator& world) {
  return find_newest(directory, world, Check::kEveryHash);
}

void require_valid(const std::filesystem::path& folder, Communicator& world) {
  const std::string fault = first_fault(folder, world);
  if (!fault.empty()) throw SharedError(ExitCode::kData, fault);
}

bool looks_like_checkpoint(const std::filesystem::path& argument) {
  return is_there(argument / kManifestName) || !checkpoints_folder(argument).empty();
}

std::filesystem::path folder_of_argument(const std::filesystem::path& argument,
                                         Communicator& world) {
  std::string folder;
  run_together(world, [&] {
    if (world.rank() != 0) return;
    constexpr const char* kLegal = "Give a step folder, a checkpoints folder or a run's folder";
    if (!is_there(argument)) throw DataError("{}. {}", missing_path_text(argument), kLegal);
    if (is_there(argument / kManifestName)) return;
    folder = checkpoints_folder(argument).string();
    if (folder.empty()) throw DataError("{}: holds no checkpoint. {}", argument.string(), kLegal);
  });
  return world.broadcast_text(folder, 0);
}

std::filesystem::path resolve_checkpoint_argument(const std::filesystem::path& argument,
                                                  Communicator& world) {
  const std::filesystem::path folder = folder_of_argument(argument, world);
  if (folder.empty()) return without_link(argument, world);
  const NewestCheckpoint newest = find_newest_valid(folder, world);
  for (const Rejected& rejected : newest.rejected) {
    log_warning("{} is not used: {}", rejected.path.string(), rejected.reason);
  }
  if (newest.path.empty()) {
    throw SharedError(ExitCode::kData, folder.string() + ": holds no checkpoint that verifies");
  }
  return newest.path;
}

Manifest load_state(const std::filesystem::path& folder, State& state, Communicator& world,
                    LoadScope scope) {
  const std::filesystem::path path = folder / kManifestName;
  const Manifest manifest = read_manifest(folder, world);
  const std::set<std::string> wanted = union_of_names(names_of(state), world);
  run_together(world, [&] {
    check_names(wanted, manifest, scope, path.string());
    load_boxes(folder, manifest, state);
    if (scope == LoadScope::kEverything) {
      verify_rest(
          folder, manifest, share_of(world), [](const std::string&, const auto& work) { work(); },
          [](const std::vector<StoredShard>&) {});
    }
  });
  state.scalars = manifest.scalars;
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& folder, Communicator& world) {
  const std::filesystem::path path = folder / kManifestName;
  std::string text;
  run_together(world, [&] {
    if (world.rank() == 0) text = read_file(path);
  });
  text = world.broadcast_text(text, 0);
  Manifest manifest;
  run_together(world, [&] {
    manifest = parse_manifest(text, path.string());
    check_folder_name(folder, manifest);
  });
  return manifest;
}

TensorReader::TensorReader(const std::filesystem::path& folder, const Manifest& manifest)
    : reader_(folder), lists_(folder, manifest) {}

void TensorReader::read(const ManifestTensor& tensor, std::byte* out) {
  const Box all = whole(tensor.shape);
  for (const ManifestShard& shard : lists_.meeting(tensor, all))
    reader_.read(tensor, shard, {{out, all}});
}

}  // namespace trireme
