#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>

#include "base/json.h"
#include "base/math.h"
#include "checkpoint/retention.h"
#include "checkpoint/safetensors.h"

namespace trireme {

namespace {

std::string_view text_of(const void* data, std::size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path folder, DType dtype,
                                     std::vector<Tensor> tensors, std::int64_t file_bytes_max)
    : folder_(std::move(folder)), dtype_(dtype), tensors_(std::move(tensors)) {
  expect(dtype == DType::kF32 || dtype == DType::kBF16, "safetensors of {}", name_of(dtype));
  expect(std::is_sorted(tensors_.begin(), tensors_.end(),
                        [](const Tensor& a, const Tensor& b) { return a.name < b.name; }),
         "tensors of an export out of order");
  std::int64_t part_bytes = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::int64_t bytes = bytes_of(tensors_[i]);
    if (parts_.empty() || part_bytes + bytes > file_bytes_max) {
      parts_.push_back({"", i, i});
      part_bytes = 0;
    }
    parts_.back().end = i + 1;
    part_bytes += bytes;
    bytes_ += bytes;
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].name = parts_.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, parts_.size());
  }
}

SafetensorsWriter::~SafetensorsWriter() { give_up(); }

void SafetensorsWriter::give_up() noexcept {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

std::string SafetensorsWriter::dtype_of(const Tensor& tensor) const {
  if (!tensor.dtype.empty()) return tensor.dtype;
  return dtype_ == DType::kBF16 ? "BF16" : "F32";
}

std::int64_t SafetensorsWriter::bytes_of(const Tensor& tensor) const {
  const std::string dtype = dtype_of(tensor);
  expect(dtype == "F32" || dtype == "BF16" || dtype == "F16", "safetensors of {}", dtype);
  return tensor.shape.count() * (dtype == "F32" ? 4 : 2);
}

std::string SafetensorsWriter::header_of(const Part& part) const {
  Json header = Json::object();
  header["__metadata__"] = Json::Object{{"format", "pt"}};
  std::int64_t offset = 0;
  for (std::size_t i = part.begin; i < part.end; ++i) {
    Json shape = Json::array();
    for (const std::int64_t size : tensors_[i].shape.sizes()) shape.push_back(size);
    const std::int64_t end = offset + bytes_of(tensors_[i]);
    header.as_object().emplace_back(
        tensors_[i].name, Json::Object{{"dtype", dtype_of(tensors_[i])},
                                       {"shape", std::move(shape)},
                                       {"data_offsets", Json::Array{Json(offset), Json(end)}}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(text.size()), 8)), ' ');
  return text;
}

void SafetensorsWriter::open_part() {
  const std::filesystem::path temporary =
      folder_ / fmt::format(".{}.tmp-{}", parts_[part_].name, unique_suffix());
  file_ = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL);
  temporary_ = temporary;
  const std::string header = header_of(parts_[part_]);
  const std::uint64_t header_bytes = header.size();
  write_all(file_.get(), text_of(&header_bytes, sizeof header_bytes), temporary_);
  write_all(file_.get(), header, temporary_);
}

void SafetensorsWriter::close_part() {
  const std::filesystem::path path = folder_ / parts_[part_].name;
  if (::fsync(file_.get()) != 0) {
    throw DataError("{}: cannot fsync: {}", temporary_.string(), errno_text(errno));
  }
  file_.reset();
  if (::rename(temporary_.c_str(), path.c_str()) != 0) {
    throw DataError("{}: cannot rename to {}: {}", temporary_.string(), path.string(),
                    errno_text(errno));
  }
  temporary_.clear();
  ++part_;
}

void SafetensorsWriter::go_to(std::size_t part) {
  expect(temporary_.empty() && part < parts_.size(), "an export leaves a file half written");
  part_ = part;
  next_ = parts_[part].begin;
}

void SafetensorsWriter::begin_tensor() {
  if (next_ == parts_[part_].begin) open_part();
}

void SafetensorsWriter::end_tensor() {
  if (++next_ == parts_[part_].end) close_part();
}

void SafetensorsWriter::write_bytes(std::string_view bytes) {
  expect(next_ < tensors_.size() &&
             static_cast<std::int64_t>(bytes.size()) == bytes_of(tensors_[next_]),
         "a tensor of {} bytes that an export does not expect", bytes.size());
  begin_tensor();
  write_all(file_.get(), bytes, temporary_);
  end_tensor();
}

void SafetensorsWriter::write(std::span<const float> values) {
  expect(next_ < tensors_.size() && written_ == 0 &&
             static_cast<std::int64_t>(values.size()) == tensors_[next_].shape.count(),
         "a tensor of {} elements that an export does not expect", values.size());
  write_slice(values);
}

void SafetensorsWriter::write_slice(std::span<const float> values) {
  const auto taken = [&](const Tensor& tensor) {
    return tensor.dtype.empty() || tensor.dtype == "F32";
  };
  const auto count = static_cast<std::int64_t>(values.size());
  expect(next_ < tensors_.size() && taken(tensors_[next_]) &&
             written_ + count <= tensors_[next_].shape.count(),
         "a slice of {} elements that an export does not expect", count);
  if (written_ == 0) begin_tensor();
  written_ += count;
  if (dtype_of(tensors_[next_]) == "F32") {
    write_all(file_.get(), text_of(values.data(), values.size_bytes()), temporary_);
  } else {
    constexpr std::size_t kBlock = std::size_t{1} << 20;
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
      const auto block = values.subspan(begin, std::min(kBlock, values.size() - begin));
      block_.resize(block.size());
      std::transform(block.begin(), block.end(), block_.begin(), to_bfloat16);
      write_all(file_.get(), text_of(block_.data(), block_.size() * sizeof(BFloat16)), temporary_);
    }
  }
  if (written_ < tensors_[next_].shape.count()) return;
  written_ = 0;
  end_tensor();
}

void SafetensorsWriter::finish() {
  for (const Part& part : parts_) {
    expect(std::filesystem::exists(folder_ / part.name), "an export ends without its {}",
           part.name);
  }
  if (parts_.size() == 1) return;
  Json map = Json::object();
  std::int64_t parameters = 0;
  for (const Part& part : parts_) {
    for (std::size_t i = part.begin; i < part.end; ++i) {
      map.as_object().emplace_back(tensors_[i].name, part.name);
      parameters += tensors_[i].shape.count();
    }
  }
  Json index = Json::object();
  index["metadata"] = Json::Object{{"total_parameters", parameters}, {"total_size", bytes_}};
  index["weight_map"] = std::move(map);
  write_file_atomically(folder_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace trireme
