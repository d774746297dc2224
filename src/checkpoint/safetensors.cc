#include "checkpoint/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/json.h"
#include "base/math.h"
#include "base/parallel_for.h"
#include "base/progress.h"
#include "checkpoint/boxes.h"

namespace trireme {

namespace {

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;             // the format's own limit
constexpr std::int64_t kBlockElementsMax = std::int64_t{1} << 20;  // two huge pages of fp32
constexpr std::int64_t kConvertedAtOnce = std::int64_t{1} << 16;
constexpr std::string_view kMetadataName = "__metadata__";

struct StoredType {
  std::string_view name;
  int bits;
};
constexpr std::array kStoredTypes = {
    StoredType{"BOOL", 8},    StoredType{"F4", 4},          StoredType{"F6_E2M3", 6},
    StoredType{"F6_E3M2", 6}, StoredType{"U8", 8},          StoredType{"I8", 8},
    StoredType{"F8_E5M2", 8}, StoredType{"F8_E4M3", 8},     StoredType{"F8_E8M0", 8},
    StoredType{"I16", 16},    StoredType{"F8_E4M3FNUZ", 8}, StoredType{"F8_E5M2FNUZ", 8},
    StoredType{"U16", 16},    StoredType{"F16", 16},        StoredType{"BF16", 16},
    StoredType{"I32", 32},    StoredType{"U32", 32},        StoredType{"F32", 32},
    StoredType{"C64", 64},    StoredType{"F64", 64},        StoredType{"I64", 64},
    StoredType{"U64", 64}};

void read_at(const FileDescriptor& file, std::uint64_t offset, std::span<std::byte> out,
             const std::filesystem::path& path) {
  while (!out.empty()) {
    const ssize_t count = ::pread(file.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError("{}: cannot read: {}", path.string(), errno_text(errno));
    if (count == 0) throw DataError("{}: became shorter while being read", path.string());
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

std::int64_t count_of(const Json& json, const std::string& place) {
  if (!json.is_integer() || json.as_integer() < 0) {
    throw DataError("{} must be an integer of 0 or more", place);
  }
  return json.as_integer();
}

const Json& member(const Json& object, std::string_view key, const std::string& place) {
  const Json* found = object.find(key);
  if (found == nullptr) throw DataError("{}: {} is missing", place, key);
  return *found;
}

const Json::Array& array_of(const Json& json, const std::string& place) {
  if (!json.is_array()) throw DataError("{} must be an array, found {}", place, json.kind_name());
  return json.as_array();
}

int bits_of(const std::string& dtype, const std::string& place) {
  const auto found = std::find_if(kStoredTypes.begin(), kStoredTypes.end(),
                                  [&](const StoredType& type) { return type.name == dtype; });
  if (found == kStoredTypes.end()) throw DataError("{}: unknown dtype \"{}\"", place, dtype);
  return found->bits;
}

SafetensorsTensor parse_tensor(const std::string& name, const Json& json,
                               const std::string& place) {
  if (!json.is_object()) throw DataError("{} must be an object, found {}", place, json.kind_name());
  SafetensorsTensor tensor;
  tensor.name = name;
  const Json& dtype = member(json, "dtype", place);
  if (!dtype.is_string()) throw DataError("{}: dtype must be a string", place);
  tensor.dtype = dtype.as_string();
  std::int64_t bits = bits_of(tensor.dtype, place);
  const std::string shape_place = place + ": shape";
  for (const Json& size : array_of(member(json, "shape", place), shape_place)) {
    tensor.shape.push_back(count_of(size, shape_place));
    if (!multiply_checked(bits, tensor.shape.back(), &bits)) {
      throw DataError("{}: its shape is too large", place);
    }
  }
  if (bits % 8 != 0) throw DataError("{}: its {} bits do not fill bytes", place, bits);
  const std::string offsets_place = place + ": data_offsets";
  const Json::Array& offsets = array_of(member(json, "data_offsets", place), offsets_place);
  if (offsets.size() != 2) throw DataError("{} must be two integers", offsets_place);
  const std::int64_t begin = count_of(offsets[0], offsets_place);
  const std::int64_t end = count_of(offsets[1], offsets_place);
  if (end < begin || end - begin != bits / 8) {
    throw DataError("{}: {} takes {} bytes, data_offsets [{}, {}] do not hold them", place,
                    tensor.text(), bits / 8, begin, end);
  }
  tensor.begin = static_cast<std::uint64_t>(begin);
  tensor.end = static_cast<std::uint64_t>(end);
  return tensor;
}

void check_metadata(const Json& json, const std::string& place) {
  if (!json.is_object()) throw DataError("{} must be an object", place);
  for (const auto& [key, value] : json.as_object()) {
    if (!value.is_string()) throw DataError("{}: {} must be a string", place, key);
  }
}

/// Tensors lie one behind the other from 0 to the end of the file.
void check_layout(const std::vector<SafetensorsTensor>& tensors, std::uint64_t data_bytes,
                  const std::string& path) {
  std::vector<const SafetensorsTensor*> order;
  for (const SafetensorsTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (const SafetensorsTensor* tensor : order) {
    if (tensor->begin != covered) {
      throw DataError("{}: {}: its data begin at {}, the tensor before ends at {} ({})", path,
                      tensor->name, tensor->begin, covered,
                      tensor->begin < covered ? "they overlap" : "a hole");
    }
    if (tensor->end > data_bytes) {
      throw DataError("{}: {}: its data end at {}, past the end of the file's {} bytes of data",
                      path, tensor->name, tensor->end, data_bytes);
    }
    covered = tensor->end;
  }
  if (covered != data_bytes) {
    throw DataError("{}: {} bytes behind the last tensor", path, data_bytes - covered);
  }
}

/// Exact: every half is an fp32 number. Branch-free, so that it vectorises.
float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t rest = half & 0x7fffU;
  // The exponent is rebiased by a product, which also makes subnormal halves normal.
  const float scaled = std::bit_cast<float>(rest << 13) * 0x1p112F;
  const std::uint32_t special = rest >= 0x7c00U ? 0x7f800000U : 0U;
  return std::bit_cast<float>(sign | special | std::bit_cast<std::uint32_t>(scaled));
}

void convert(std::string_view dtype, std::span<const std::uint16_t> stored, float* out) {
  const std::size_t count = stored.size();
  if (dtype == "F16") {
    for (std::size_t i = 0; i < count; ++i) out[i] = half_to_float(stored[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) out[i] = to_float(BFloat16{stored[i]});
  }
}

}  // namespace

std::string SafetensorsTensor::text() const {
  std::string sizes;
  for (const std::int64_t size : shape)
    sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", size);
  return fmt::format("{} [{}]", dtype, sizes);
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  RegularFile file = open_regular_file(path_);
  file_ = std::move(file.descriptor);
  const std::uint64_t file_bytes = file.bytes;
  std::uint64_t header_bytes = 0;
  if (file_bytes < sizeof header_bytes) {
    throw DataError("{}: {} bytes are too few for a safetensors file", path_.string(), file_bytes);
  }
  read_at(file_, 0, std::as_writable_bytes(std::span(&header_bytes, 1)), path_);
  if (header_bytes > kHeaderBytesMax || header_bytes > file_bytes - sizeof header_bytes) {
    throw DataError("{}: says that its header has {} bytes, the file has {} (at most {} are legal)",
                    path_.string(), header_bytes, file_bytes, kHeaderBytesMax);
  }
  std::string header(header_bytes, '\0');
  read_at(file_, sizeof header_bytes, std::as_writable_bytes(std::span(header)), path_);
  if (!header.starts_with('{')) {
    throw DataError("{}: its header does not begin with {{", path_.string());
  }
  const Json json = parse_json(header, path_.string() + ": header");
  for (const auto& [name, value] : json.as_object()) {
    const std::string place = path_.string() + ": " + name;
    if (name == kMetadataName) {
      check_metadata(value, place);
    } else {
      tensors_.push_back(parse_tensor(name, value, place));
    }
  }
  data_offset_ = sizeof header_bytes + header_bytes;
  check_layout(tensors_, file_bytes - data_offset_, path_.string());
}

Box SafetensorsFile::rows_of(const SafetensorsTensor& tensor, const Box& box) const {
  const std::string place = path_.string() + ": " + tensor.name;
  if (tensor.dtype != "F32" && tensor.dtype != "BF16" && tensor.dtype != "F16") {
    throw DataError("{}: is {} (weights are read from F32, BF16 and F16)", place, tensor.dtype);
  }
  if (tensor.shape.size() > static_cast<std::size_t>(Shape::kRankMax)) {
    throw DataError("{}: has {} dims, at most {} are known", place, tensor.shape.size(),
                    Shape::kRankMax);
  }
  Box rows = whole(Shape(tensor.shape));
  expect(lies_inside(box, rows.shape), "{}: a box outside of {}", place, rows.shape.text());
  if (rows.shape.rank() > 0) {
    rows.offset.set(0, box.offset[0]);
    rows.shape.set(0, box.shape[0]);
  }
  return rows;
}

void SafetensorsFile::read_block(const SafetensorsTensor& tensor, const Box& block, const Box& box,
                                 float* out) const {
  const std::int64_t stored_bytes = tensor.dtype == "F32" ? 4 : 2, count = block.shape.count();
  const Box wanted = intersect(block, box);
  const auto target = contiguous_offset(box, wanted);
  const bool direct = wanted == block && target;  // whole rows need no place in between
  std::uint64_t begin = data_offset_ + tensor.begin +
                        static_cast<std::uint64_t>(
                            *contiguous_offset(whole(Shape(tensor.shape)), block) * stored_bytes);
  std::vector<float> values;
  if (!direct) values.resize(static_cast<std::size_t>(count));
  float* place = direct ? out + *target : values.data();
  if (stored_bytes == 4) {
    read_at(file_, begin, std::as_writable_bytes(std::span(place, static_cast<std::size_t>(count))),
            path_);
  } else {
    std::vector<std::uint16_t> stored(
        static_cast<std::size_t>(std::min(count, kConvertedAtOnce)));  // stays in the cache
    for (std::int64_t done = 0; done < count; done += kConvertedAtOnce) {
      const auto part = std::span(stored).first(
          static_cast<std::size_t>(std::min(kConvertedAtOnce, count - done)));
      read_at(file_, begin, std::as_writable_bytes(part), path_);
      begin += part.size_bytes();
      convert(tensor.dtype, part, place + done);
    }
  }
  if (direct) return;
  copy_box({reinterpret_cast<const std::byte*>(values.data()), block},
           {reinterpret_cast<std::byte*>(out), box}, wanted, sizeof(float));
}

void SafetensorsFile::read_bytes(const SafetensorsTensor& tensor, std::span<std::byte> out) const {
  expect(out.size() == tensor.end - tensor.begin, "{}: {}: another number of bytes", path_.string(),
         tensor.name);
  read_at(file_, data_offset_ + tensor.begin, out, path_);
}

void SafetensorsFile::read_fp32(const SafetensorsTensor& tensor, const Box& box, float* out) const {
  for (const Box& block : cut_box(rows_of(tensor, box), kBlockElementsMax)) {
    read_block(tensor, block, box, out);
  }
}

void SafetensorsReads::add(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                           const Box& box, float* out) {
  for (const Box& block : cut_box(file.rows_of(tensor, box), kBlockElementsMax)) {
    blocks_.push_back({&file, &tensor, block, box, out});
  }
}

void SafetensorsReads::add(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                           const TensorPart& part, const Box& box, float* out) {
  Box stored = whole(Shape(tensor.shape));
  stored.offset.set(0, part.index);
  stored.shape.set(0, 1);
  for (const Box& block : cut_box(file.rows_of(tensor, stored), kBlockElementsMax))
    blocks_.push_back({&file, &tensor, block, box, out, part});
}

void SafetensorsReads::read(const Block& block) {
  if (!block.part) return block.file->read_block(*block.tensor, block.block, block.box, block.out);
  std::vector<float> values(static_cast<std::size_t>(block.block.shape.count()));
  block.file->read_block(*block.tensor, block.block, block.block, values.data());
  block.part->take(block.block, values.data(), block.box, block.out);
}

void SafetensorsReads::run() const {
  Progress progress("reading weights, block", static_cast<std::int64_t>(blocks_.size()),
                    ProgressUnit::kItems);
  parallel_for(static_cast<std::int64_t>(blocks_.size()), [&](std::int64_t index) {
    read(blocks_[static_cast<std::size_t>(index)]);
    progress.add(1);
  });
}

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) {
  const std::filesystem::path single = folder / "model.safetensors";
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  if (is_there(single)) {
    add(*files_.emplace_back(std::make_unique<SafetensorsFile>(single)));
    return;
  }
  if (!is_there(index)) {
    throw DataError(
        "{}: holds neither model.safetensors nor model.safetensors.index.json (other "
        "weight files are not read). Save the model with transformers' save_pretrained",
        folder.string());
  }
  const std::string source = index.string();
  const Json json = parse_json(read_file(index), source);
  const Json& map = member(json, "weight_map", source);
  if (!map.is_object()) throw DataError("{}: weight_map must be an object", source);
  std::map<std::string, std::string> file_of;
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, file] : map.as_object()) {
    if (!file.is_string()) throw DataError("{}: weight_map: {} must be a string", source, name);
    const std::string& text = file.as_string();
    if (text.empty() || text == "." || text == ".." ||
        text.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      throw DataError("{}: weight_map: {}: \"{}\" is not the name of a file in this folder", source,
                      name, text);
    }
    file_of[name] = text;
    const SafetensorsFile*& known = opened[text];
    if (known == nullptr) {
      known = files_.emplace_back(std::make_unique<SafetensorsFile>(folder / text)).get();
      add(*known);
    }
  }
  for (const auto& [name, file] : file_of) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || found->second.file != opened[file]) {
      throw DataError("{}: {} is not in {}, as the index says", source, name, file);
    }
  }
  for (const auto& [name, located] : tensors_) {
    if (!file_of.contains(name)) {
      throw DataError("{}: {} is not in the index", located.file->path().string(), name);
    }
  }
}

void SafetensorsFolder::add(const SafetensorsFile& file) {
  for (const SafetensorsTensor& tensor : file.tensors()) {
    const auto [place, added] = tensors_.try_emplace(tensor.name, Located{&file, &tensor});
    if (!added) {
      throw DataError("{}: {} also stands in {}", file.path().string(), tensor.name,
                      place->second.file->path().string());
    }
  }
}

}  // namespace trireme
