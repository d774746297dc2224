#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/file.h"
#include "base/hash.h"
#include "base/math.h"
#include "checkpoint/boxes.h"

namespace trireme {

namespace {

constexpr std::string_view kHashKey = "manifest_xxh3_128";
constexpr std::string_view kStepPrefix = "step-";

/// The number between prefix and suffix where `name_of` would give it this very name, else -1.
std::int64_t number_of_name(std::string_view name, std::string_view prefix, std::string_view suffix,
                            std::string (*name_of)(std::int64_t)) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return -1;
  const std::string_view digits = name.substr(prefix.size());
  std::int64_t number = -1;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = result.ec == std::errc() && number >= 0 && name_of(number) == name;
  return whole ? number : -1;
}

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
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kU8}) {
    if (member.text() == name_of(dtype)) return dtype;
  }
  member.fail(fmt::format("\"{}\" is not a type of stored tensors (fp32, bf16, fp64, int32)",
                          member.text()));
}

/// A box of a tensor.
Box parse_box(const Member& at, const Shape& shape) {
  Box box{at["offset"].shape(), at["shape"].shape()};
  if (!lies_inside(box, shape) || box.shape.count() == 0) {
    at.fail(fmt::format("the box {} at {} is empty or lies outside of the shape {}",
                        box.shape.text(), box.offset.text(), shape.text()));
  }
  return box;
}

ManifestShard parse_shard(const Member& at, const Shape& shape) {
  return {at["file"].file_name(), at["dataset"].dataset_name(), at["byte_offset"].count(),
          parse_box(at, shape), at["xxh3_128"].hash()};
}

ManifestRun parse_run(const Member& at, const Shape& shape) {
  ManifestRun run{parse_box(at, shape), at["rank"].count(), at["stride"].count(),
                  at["count"].count()};
  const bool rows = run.box.shape.rank() > 0 && run.count > 0 && run.box.shape[0] % run.count == 0;
  std::int64_t last = 0;
  const bool ranks = multiply_checked(run.stride, run.count - 1, &last) &&
                     !__builtin_add_overflow(last, run.rank, &last);
  if (run.count != 1 && !(rows && run.stride > 0 && ranks)) {
    at.fail(fmt::format("{} shards cannot hold equal rows of the box {}, each on a rank of its own",
                        run.count, run.box.shape.text()));
  }
  return run;
}

ManifestTensor parse_tensor(const std::string& name, const Member& member, bool split) {
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
  const Member list = member[split ? "runs" : "shards"];
  for (std::size_t i = 0; i < list.array().size(); ++i) {
    if (split) {
      tensor.runs.push_back(parse_run(list.at(i), tensor.shape));
    } else {
      tensor.shards.push_back(parse_shard(list.at(i), tensor.shape));
    }
  }
  return tensor;
}

ManifestStore parse_store(const Member& at, bool split) {
  ManifestStore store{at["file"].file_name(), at["bytes"].count(), at["frame_xxh3_128"].hash()};
  if (!split) return store;
  const Member index = at["index"];
  store.index = {index["byte_offset"].count(), index["bytes"].count(), index["xxh3_128"].hash()};
  if (store.index->bytes > store.bytes ||
      store.index->byte_offset > store.bytes - store.index->bytes) {
    index.fail(fmt::format("lies beyond the {} bytes of the file", store.bytes));
  }
  if (rank_of_store_name(store.file) < 0)
    at["file"].fail(fmt::format("\"{}\" is no rank's", store.file));
  return store;
}

/// Stores and tensors.
void parse_contents(const Member& root, Manifest& manifest) {
  const Member stores = root["stores"];
  for (std::size_t i = 0; i < stores.array().size(); ++i)
    manifest.stores.push_back(parse_store(stores.at(i), manifest.split));
  const Member tensors = root["tensors"];
  for (const auto& [name, value] : tensors.object().as_object()) {
    manifest.tensors.push_back(
        parse_tensor(name, {value, root.source, "tensors." + name}, manifest.split));
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

bool parse_split(const Member& root) {
  const std::int64_t version = root["format_version"].count();
  if (version != kListedManifestVersion && version != kSplitManifestVersion) {
    throw DataError(
        "{}: format_version is {}, this program reads {} and {}. Use the version that wrote it",
        root.source, version, kListedManifestVersion, kSplitManifestVersion);
  }
  return version == kSplitManifestVersion;
}

bool meet(const Box& a, const Box& b) {
  for (int dim = 0; dim < a.shape.rank(); ++dim) {
    if (a.offset[dim] + a.shape[dim] <= b.offset[dim] ||
        b.offset[dim] + b.shape[dim] <= a.offset[dim])
      return false;
  }
  return true;
}

/// The dim along which the boxes start at the most offsets: sweeping it compares the fewest pairs.
int sweep_dim(const std::vector<const Box*>& boxes, int dims) {
  int best = 0;
  std::size_t starts_most = 0;
  for (int dim = 0; dim < dims; ++dim) {
    std::set<std::int64_t> starts;
    for (const Box* box : boxes) starts.insert(box->offset[dim]);
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
  for (const ManifestRun& run : tensor.runs) boxes.push_back(&run.box);
  const int dim = sweep_dim(boxes, tensor.shape.rank());
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

Json json_of(const ManifestTensor& tensor, bool split) {
  Json list = Json::array();
  for (const ManifestShard& shard : tensor.shards) {
    list.push_back(Json::Object{{"file", shard.file},
                                {"dataset", shard.dataset},
                                {"byte_offset", shard.byte_offset},
                                {"offset", json_of(shard.box.offset)},
                                {"shape", json_of(shard.box.shape)},
                                {"xxh3_128", shard.hash}});
  }
  for (const ManifestRun& run : tensor.runs) {
    list.push_back(Json::Object{{"offset", json_of(run.box.offset)},
                                {"shape", json_of(run.box.shape)},
                                {"rank", run.rank},
                                {"stride", run.stride},
                                {"count", run.count}});
  }
  return Json::Object{{"dtype", name_of(tensor.dtype)},
                      {"shape", json_of(tensor.shape)},
                      {split ? "runs" : "shards", std::move(list)}};
}

Json json_of(const ManifestStore& store) {
  Json json = Json::Object{
      {"file", store.file}, {"bytes", store.bytes}, {"frame_xxh3_128", store.frame_hash}};
  if (store.index) {
    json["index"] = Json::Object{{"byte_offset", store.index->byte_offset},
                                 {"bytes", store.index->bytes},
                                 {"xxh3_128", store.index->hash}};
  }
  return json;
}

std::int64_t version_of(const Manifest& manifest) {
  return manifest.split ? kSplitManifestVersion : kListedManifestVersion;
}

/// Adds stores and tensors.
void add_contents(Json& json, const Manifest& manifest) {
  Json stores = Json::array();
  for (const ManifestStore& store : manifest.stores) stores.push_back(json_of(store));
  Json::Object tensors;
  for (const ManifestTensor& tensor : manifest.tensors)
    tensors.emplace_back(tensor.name, json_of(tensor, manifest.split));
  json["stores"] = std::move(stores);
  json["tensors"] = std::move(tensors);
}

/// Every shard lies inside of a file that the manifest knows.
void check_places(const Manifest& manifest, std::string_view source) {
  std::unordered_map<std::string_view, std::int64_t> bytes_of;
  std::unordered_set<std::int64_t> ranks;  // of a split manifest: millions of shards ask for them
  for (const ManifestStore& store : manifest.stores) {
    if (!bytes_of.emplace(store.file, store.bytes).second)
      throw DataError("{}: stores: {} stands twice", source, store.file);
    if (manifest.split) ranks.insert(rank_of_store_name(store.file));
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    const auto not_stored = [&](std::string_view file) {
      return DataError("{}: tensors.{}: {} is not among the stores", source, tensor.name, file);
    };
    for (const ManifestShard& shard : tensor.shards) {
      const auto store = bytes_of.find(shard.file);
      if (store == bytes_of.end()) throw not_stored(shard.file);
      const std::int64_t bytes =
          shard.box.shape.count() * static_cast<std::int64_t>(size_of(tensor.dtype));
      if (bytes > store->second || shard.byte_offset > store->second - bytes) {
        throw DataError("{}: tensors.{}: {} bytes at {} are beyond the {} of {}", source,
                        tensor.name, bytes, shard.byte_offset, store->second, shard.file);
      }
    }
    for (const ManifestRun& run : tensor.runs) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        if (!ranks.contains(run.rank_of(i))) throw not_stored(store_name(run.rank_of(i)));
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
  Json json = Json::Object{{"format_version", version_of(manifest)},
                           {"step", manifest.step},
                           {"consumed_samples", manifest.consumed_samples},
                           {"mesh", manifest.mesh},
                           {"zero_stage", manifest.zero_stage},
                           {"model", manifest.model},
                           {"tokenizer", manifest.tokenizer},
                           {"scalars", manifest.scalars},
                           {"versions", manifest.versions},
                           {"files", std::move(files)}};
  add_contents(json, manifest);
  const std::string hash = xxh3_128_hex(json.dump());
  json[kHashKey] = hash;
  return json.dump(1) + "\n";
}

Manifest parse_manifest(std::string_view text, std::string_view source) {
  Json json = parse_json(text, source);
  const Member root{json, std::string(source), ""};
  Manifest manifest;
  manifest.split = parse_split(root);
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
  parse_contents(root, manifest);
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

std::string contents_text(const Manifest& manifest) {
  Json json = Json::Object{{"format_version", version_of(manifest)}};
  add_contents(json, manifest);
  return json.dump();
}

Manifest parse_contents(std::string_view text, std::string_view source) {
  const Json json = parse_json(text, source);
  const Member root{json, std::string(source), ""};
  Manifest manifest;
  manifest.split = parse_split(root);
  parse_contents(root, manifest);
  return manifest;
}

std::string store_name(std::int64_t rank) {
  return fmt::format("{}{:05d}{}", kStorePrefix, rank, kStoreSuffix);
}

std::int64_t rank_of_store_name(std::string_view name) {
  return number_of_name(name, kStorePrefix, kStoreSuffix, store_name);
}

std::string step_folder_name(std::int64_t step) {
  return fmt::format("{}{:08d}", kStepPrefix, step);
}

std::int64_t step_of_folder_name(std::string_view name) {
  return number_of_name(name, kStepPrefix, "", step_folder_name);
}

}  // namespace trireme
