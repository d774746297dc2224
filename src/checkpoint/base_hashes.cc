#include "checkpoint/base_hashes.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "base/missing_path.h"
#include "base/progress.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace trireme {

namespace {

constexpr std::string_view kConfigName = "config.json";

/// Sorted.
std::set<std::string> files_of(const std::filesystem::path& folder) {
  if (!is_there(folder))
    throw DataError("{} (the weights that adapters stand beside)", missing_path_text(folder));
  if (is_there(folder / kManifestName)) return {std::string(kManifestName)};
  std::set<std::string> files{std::string(kConfigName)};
  const SafetensorsFolder weights(folder);
  for (const auto& [name, located] : weights.tensors())
    files.insert(located.file->path().filename().string());
  return files;
}

std::string hash_of_file(const std::filesystem::path& path, Progress& progress) {
  constexpr std::size_t kBlockBytes = std::size_t{4} << 20;
  const RegularFile file = open_regular_file(path);
  StreamingHash hash;
  std::vector<std::byte> block(kBlockBytes);
  for (;;) {
    const ssize_t count = ::read(file.descriptor.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError("{}: cannot read: {}", path.string(), errno_text(errno));
    if (count == 0) return hash.hex();
    hash.update(std::span(block).first(static_cast<std::size_t>(count)));
    progress.add(count);
  }
}

/// The hash that `hashes` has for a file, "none" where it has none.
std::string entry(const Json& hashes, const std::string& file) {
  const Json* hash = hashes.find(file);
  return hash != nullptr && hash->is_string() ? hash->as_string() : "none";
}

}  // namespace

Json base_hashes(const std::filesystem::path& folder, Communicator& world) {
  std::string list;
  run_together(world, [&] {
    if (world.rank() != 0) return;
    Json names = Json::array();
    for (const std::string& name : files_of(folder)) names.push_back(name);
    list = names.dump();
  });
  const Json names = parse_json(world.broadcast_text(list, 0), "files of weights");
  Json mine = Json::object();
  run_together(world, [&] {
    Progress progress("hashing " + folder.string(), 0, ProgressUnit::kBytes);
    for (auto i = static_cast<std::size_t>(world.rank()); i < names.as_array().size();
         i += static_cast<std::size_t>(world.size())) {
      const std::string& name = names.as_array()[i].as_string();
      mine[name] = hash_of_file(folder / name, progress);
    }
  });
  std::map<std::string, std::string> all;
  for (const std::string& text : world.all_gather_text(mine.dump())) {
    const Json part = parse_json(text, "hashes");
    for (const auto& [name, hash] : part.as_object()) all[name] = hash.as_string();
  }
  Json hashes = Json::object();
  for (const auto& [name, hash] : all) hashes[name] = hash;
  return hashes;
}

Json base_json(const std::filesystem::path& folder, Communicator& world) {
  Json json = Json::object();
  json["path"] = std::filesystem::absolute(folder).lexically_normal().string();
  json["hashes"] = base_hashes(folder, world);
  return json;
}

void check_base(const Json& hashes, const std::filesystem::path& folder, Communicator& world) {
  if (hashes.is_null()) return;
  const Json found = base_hashes(folder, world);
  run_together(world, [&] { compare_base(hashes, found, folder); });
}

void compare_base(const Json& hashes, const Json& found, const std::filesystem::path& folder) {
  if (hashes.is_null()) return;
  std::set<std::string> files;
  for (const Json* each : {&hashes, &found}) {
    if (!each->is_object())
      throw DataError("{}: the hashes of the base are no object", folder.string());
    for (const auto& [name, hash] : each->as_object()) files.insert(name);
  }
  for (const std::string& file : files) {
    const std::string then = entry(hashes, file), now = entry(found, file);
    if (then == now) continue;
    throw DataError(
        "{}: is not the file beside which the adapters were trained (its hash is {}, then {}): "
        "they would mean something else. Bring the weights back, or name their folder (--base "
        "DIR of generate, evaluate and export; init.weights of a run)",
        (folder / file).string(), now, then);
  }
}

}  // namespace trireme
