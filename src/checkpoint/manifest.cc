#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/file.h"
#include "base/hash.h"
#include "base/math.h"
#include "checkpoint/boxes.h"

namespace trireme {

namespace {

constexpr std::string_view kHashKey = "manifest_xxh3_128";

/// A value of the manifest and how to name it in a message.
struct Member {
  const Json& value;
  std::string source;
  std::string path;

  [[noreturn]] void fail(std::string_view what) const {
    throw DataError("{}: {}: {}", source, path.empty() ? "the whole" : path, what);
  }
  [[nodiscard]] Member operator[](std::string_view key) const {
    const Json* found = object_checked().value.find(key);
    const std::string where = path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
    if (found == nullptr) throw DataError("{}: {} is missing", source, where);
    return {*found, source, where};
  }
  [[nodiscard]] const Member& object_checked() const {
    if (!value.is_object()) fail(fmt::format("must be an object, found {}", value.kind_name()));
    return *this;
  }
  [[nodiscard]] const Json& object() const { return object_checked().value; }
  [[nodiscard]] const Json::Array& array() const {
    if (!value.is_array()) fail(fmt::format("must be an array, found {}", value.kind_name()));
    return value.as_array();
  }
  [[nodiscard]] Member at(std::size_t index) const {
    return {array()[index], source, fmt::format("{}[{}]", path, index)};
  }
  [[nodiscard]] const std::string& text() const {
    if (!value.is_string()) fail(fmt::format("must be a string, found {}", value.kind_name()));
    return value.as_string();
  }
  [[nodiscard]] std::int64_t count() const {
    if (!value.is_integer()) fail(fmt::format("must be an integer, found {}", value.kind_name()));
    if (value.as_integer() < 0)
      fail(fmt::format("must not be negative, found {}", value.as_integer()));
    return value.as_integer();
  }
  [[nodiscard]] std::string hash() const {
    const std::string& digits = text();
    const bool hex = std::all_of(digits.begin(), digits.end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    });
    if (digits.size() != 32 || !hex) fail("must be 32 lower-case hex digits");
    return digits;
  }
  /// A name that stays in the folder.
  [[nodiscard]] std::string file_name() const {
    const std::string& name = text();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      fail(fmt::format("\"{}\" is not the name of a file in this folder", name));
    }
    return name;
  }
  /// "a/b/c" without anything that a path could climb with.
  [[nodiscard]] std::string dataset_name() const {
    const std::string& name = text();
    std::size_t begin = 0;
    while (begin <= name.size()) {
      const std::size_t end = std::min(name.find('/', begin), name.size());
      const std::string_view part = std::string_view(name).substr(begin, end - begin);
      if (part.empty() || part == "." || part == ".." ||
          part.find('\0') != std::string_view::npos) {
        fail(fmt::format("\"{}\" is not the path of a dataset", name));
      }
      begin = end + 1;
    }
    return name;
  }
  [[nodiscard]] Shape shape() const {
    const Json::Array& sizes = array();
    if (sizes.size() > static_cast<std::size_t>(Shape::kRankMax)) {
      fail(fmt::format("has {} dims, at most {} are known", sizes.size(), Shape::kRankMax));
    }
    std::vector<std::int64_t> values(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) values[i] = at(i).count();
    return Shape(values);
  }
};

DType dtype_of(const Member& member) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
    if (member.text() == name_of(dtype)) return dtype;
  }
  member.fail(fmt::format("\"{}\" is not a type of stored tensors (fp32, bf16, fp64, int32)",
                          member.text()));
}

ManifestTensor parse_tensor(const std::string& name, const Member& member) {
  ManifestTensor tensor;
  tensor.name = name;
  tensor.dtype = dtype_of(member["dtype"]);
  tensor.shape = member["shape"].shape();
  std::int64_t bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  for (const std::int64_t size : tensor.shape.sizes()) {
    // Zero sizes count as one here: the product of the others must fit as well.
    if (!multiply_checked(bytes, std::max<std::int64_t>(size, 1), &bytes))
      member["shape"].fail("is too large");
  }
  const Member shards = member["shards"];
  for (std::size_t i = 0; i < shards.array().size(); ++i) {
    const Member at = shards.at(i);
    ManifestShard& shard = tensor.shards.emplace_back();
    shard.file = at["file"].file_name();
    shard.dataset = at["dataset"].dataset_name();
    shard.byte_offset = at["byte_offset"].count();
    shard.box = {at["offset"].shape(), at["shape"].shape()};
    shard.hash = at["xxh3_128"].hash();
    if (!lies_inside(shard.box, tensor.shape) || shard.box.shape.count() == 0) {
      at.fail(fmt::format("the box {} at {} is empty or lies outside of the shape {}",
                          shard.box.shape.text(), shard.box.offset.text(), tensor.shape.text()));
    }
  }
  return tensor;
}

bool meet(const Box& a, const Box& b) {
  for (int dim = 0; dim < a.shape.rank(); ++dim) {
    if (a.offset[dim] + a.shape[dim] <= b.offset[dim] ||
        b.offset[dim] + b.shape[dim] <= a.offset[dim])
      return false;
  }
  return true;
}

/// The dim along which the shards start at the most offsets: sweeping it compares the fewest pairs.
int sweep_dim(const ManifestTensor& tensor) {
  int best = 0;
  std::size_t starts_most = 0;
  for (int dim = 0; dim < tensor.shape.rank(); ++dim) {
    std::set<std::int64_t> starts;
    for (const ManifestShard& shard : tensor.shards) starts.insert(shard.box.offset[dim]);
    if (starts.size() > starts_most) {
      starts_most = starts.size();
      best = dim;
    }
  }
  return best;
}

/// Boxes inside the shape that do not meet and whose sizes add up to the whole cover it.
void check_tensor_coverage(const ManifestTensor& tensor, std::string_view source) {
  const auto fail = [&](std::string_view what) {
    throw DataError("{}: tensors.{}: {}", source, tensor.name, what);
  };
  std::vector<const Box*> boxes;
  for (const ManifestShard& shard : tensor.shards) boxes.push_back(&shard.box);
  const int dim = sweep_dim(tensor);
  if (tensor.shape.rank() > 0) {
    std::sort(boxes.begin(), boxes.end(),
              [&](const Box* a, const Box* b) { return a->offset[dim] < b->offset[dim]; });
  }
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Box& box = *boxes[i];
    for (std::size_t j = i + 1; j < boxes.size(); ++j) {
      if (tensor.shape.rank() > 0 && boxes[j]->offset[dim] >= box.offset[dim] + box.shape[dim])
        break;
      if (meet(box, *boxes[j])) {
        fail(fmt::format("the boxes at {} and {} overlap", box.offset.text(),
                         boxes[j]->offset.text()));
      }
    }
    covered += box.shape.count();
  }
  if (covered != tensor.shape.count()) {
    fail(fmt::format("its shards hold {} of {} elements", covered, tensor.shape.count()));
  }
}

Json json_of(const ManifestTensor& tensor) {
  Json shards = Json::array();
  for (const ManifestShard& shard : tensor.shards) {
    shards.push_back(Json::Object{{"file", shard.file},
                                  {"dataset", shard.dataset},
                                  {"byte_offset", shard.byte_offset},
                                  {"offset", json_of(shard.box.offset)},
                                  {"shape", json_of(shard.box.shape)},
                                  {"xxh3_128", shard.hash}});
  }
  return Json::Object{{"dtype", name_of(tensor.dtype)},
                      {"shape", json_of(tensor.shape)},
                      {"shards", std::move(shards)}};
}

/// Every shard lies inside of a file that the manifest knows.
void check_places(const Manifest& manifest, std::string_view source) {
  std::map<std::string_view, std::int64_t> bytes_of;
  for (const ManifestStore& store : manifest.stores) {
    if (!bytes_of.emplace(store.file, store.bytes).second)
      throw DataError("{}: stores: {} stands twice", source, store.file);
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const ManifestShard& shard : tensor.shards) {
      const auto store = bytes_of.find(shard.file);
      if (store == bytes_of.end()) {
        throw DataError("{}: tensors.{}: {} is not among the stores", source, tensor.name,
                        shard.file);
      }
      const std::int64_t bytes =
          shard.box.shape.count() * static_cast<std::int64_t>(size_of(tensor.dtype));
      if (bytes > store->second || shard.byte_offset > store->second - bytes) {
        throw DataError("{}: tensors.{}: {} bytes at {} are beyond the {} of {}", source,
                        tensor.name, bytes, shard.byte_offset, store->second, shard.file);
      }
    }
  }
}

template <class Items>
auto find_sorted(const Items& items, std::string_view name) -> const typename Items::value_type* {
  const auto found =
      std::lower_bound(items.begin(), items.end(), name,
                       [](const auto& item, std::string_view key) { return item.name < key; });
  return found != items.end() && found->name == name ? &*found : nullptr;
}

}  // namespace

Json json_of(const Shape& shape) {
  Json sizes = Json::array();
  for (const std::int64_t size : shape.sizes()) sizes.push_back(size);
  return sizes;
}

const ManifestTensor* Manifest::find(std::string_view name) const {
  return find_sorted(tensors, name);
}

const ManifestFile* Manifest::find_file(std::string_view file) const {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const ManifestFile& f) { return f.file == file; });
  return found == files.end() ? nullptr : &*found;
}

std::int64_t Manifest::bytes() const {
  return std::accumulate(
      tensors.begin(), tensors.end(), std::int64_t{0}, [](std::int64_t sum, const auto& tensor) {
        return sum + tensor.shape.count() * static_cast<std::int64_t>(size_of(tensor.dtype));
      });
}

std::string manifest_text(const Manifest& manifest) {
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back(
        Json::Object{{"file", file.file}, {"bytes", file.bytes}, {"xxh3_128", file.hash}});
  }
  Json stores = Json::array();
  for (const ManifestStore& store : manifest.stores) {
    stores.push_back(Json::Object{
        {"file", store.file}, {"bytes", store.bytes}, {"frame_xxh3_128", store.frame_hash}});
  }
  Json::Object tensors;
  for (const ManifestTensor& tensor : manifest.tensors)
    tensors.emplace_back(tensor.name, json_of(tensor));
  Json json = Json::Object{{"format_version", kManifestFormatVersion},
                           {"step", manifest.step},
                           {"consumed_samples", manifest.consumed_samples},
                           {"mesh", manifest.mesh},
                           {"zero_stage", manifest.zero_stage},
                           {"model", manifest.model},
                           {"tokenizer", manifest.tokenizer},
                           {"scalars", manifest.scalars},
                           {"versions", manifest.versions},
                           {"files", std::move(files)},
                           {"stores", std::move(stores)},
                           {"tensors", std::move(tensors)}};
  const std::string hash = xxh3_128_hex(json.dump());
  json[kHashKey] = hash;
  return json.dump(1) + "\n";
}

Manifest parse_manifest(std::string_view text, std::string_view source) {
  Json json = parse_json(text, source);
  const Member root{json, std::string(source), ""};
  const std::int64_t version = root["format_version"].count();
  if (version != kManifestFormatVersion) {
    throw DataError(
        "{}: format_version is {}, this program reads {}. Use the version that wrote it", source,
        version, kManifestFormatVersion);
  }
  Manifest manifest;
  manifest.step = root["step"].count();
  manifest.consumed_samples = root["consumed_samples"].count();
  manifest.zero_stage = root["zero_stage"].count();
  manifest.mesh = root["mesh"].object();
  manifest.model = root["model"].object();
  manifest.tokenizer = root["tokenizer"].object();
  manifest.scalars = root["scalars"].object();
  manifest.versions = root["versions"].object();
  if (json.find("files") != nullptr) {
    const Member files = root["files"];
    for (std::size_t i = 0; i < files.array().size(); ++i) {
      const Member at = files.at(i);
      manifest.files.push_back(
          {at["file"].file_name(), at["bytes"].count(), at["xxh3_128"].hash()});
    }
  }
  const Member stores = root["stores"];
  for (std::size_t i = 0; i < stores.array().size(); ++i) {
    const Member at = stores.at(i);
    manifest.stores.push_back(
        {at["file"].file_name(), at["bytes"].count(), at["frame_xxh3_128"].hash()});
  }
  const Member tensors = root["tensors"];
  for (const auto& [name, value] : tensors.object().as_object()) {
    manifest.tensors.push_back(parse_tensor(name, {value, std::string(source), "tensors." + name}));
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::int64_t bytes = 0;
  for (const ManifestTensor& tensor : manifest.tensors) {
    const std::int64_t more =
        tensor.shape.count() * static_cast<std::int64_t>(size_of(tensor.dtype));
    if (__builtin_add_overflow(bytes, more, &bytes)) root["tensors"].fail("are too large together");
  }
  check_coverage(manifest, source);
  check_places(manifest, source);
  if (json.find(kHashKey) != nullptr) {
    const std::string stored = root[kHashKey].hash();
    json.erase(kHashKey);
    if (xxh3_128_hex(json.dump()) != stored) {
      throw DataError("{}: its content does not match its own hash (it was changed or damaged)",
                      source);
    }
  }
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  Manifest manifest = parse_manifest(read_file(path), path.string());
  check_folder_name(folder, manifest);
  return manifest;
}

void check_folder_name(const std::filesystem::path& folder, const Manifest& manifest) {
  const std::string name = (folder / "").lexically_normal().parent_path().filename().string();
  const std::int64_t named = step_of_folder_name(name);
  if (named >= 0 && named != manifest.step) {
    throw DataError("{}: step is {}, but the folder is named {}", (folder / kManifestName).string(),
                    manifest.step, name);
  }
}

void check_coverage(const Manifest& manifest, std::string_view source) {
  for (const ManifestTensor& tensor : manifest.tensors) check_tensor_coverage(tensor, source);
}

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:08d}", step); }

std::int64_t step_of_folder_name(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return -1;
  std::int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kPrefix.size(), end, step);
  return result.ec == std::errc() && result.ptr == end && step >= 0 &&
                 step_folder_name(step) == name
             ? step
             : -1;
}

}  // namespace trireme
