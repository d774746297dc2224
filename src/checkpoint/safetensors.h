#pragma once
// safetensors files (https://github.com/huggingface/safetensors, "Format"): an 8-byte little-endian
// header size, a JSON header, then the bytes of all tensors without holes. Reading refuses every
// header whose claims the file does not bear out before anything of that size is allocated.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"
#include "checkpoint/tensor_parts.h"

namespace trireme {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;  ///< as the file says: "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;        ///< in the data area
  [[nodiscard]] std::string text() const;  ///< "F32 [2, 3]"
};

/// One file. Throws DataError naming file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

  /// The bytes of a tensor as they stand there, whatever its type.
  void read_bytes(const SafetensorsTensor& tensor, std::span<std::byte> out) const;
  /// A box of a tensor as fp32 (F32, BF16, F16; exact), row-major. Reads the box's rows in blocks.
  void read_fp32(const SafetensorsTensor& tensor, const Box& box, float* out) const;

 private:
  friend class SafetensorsReads;
  /// The whole rows that a box needs; throws where the tensor cannot be read.
  [[nodiscard]] Box rows_of(const SafetensorsTensor& tensor, const Box& box) const;
  /// The part of one block of rows that lies in the box.
  void read_block(const SafetensorsTensor& tensor, const Box& block, const Box& box,
                  float* out) const;

  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t data_offset_ = 0;
  std::vector<SafetensorsTensor> tensors_;
};

/// Many boxes at once, by threads: one alone copies the page cache too slowly.
class SafetensorsReads {
 public:
  /// As SafetensorsFile::read_fp32. File, tensor and `out` must live until run() has returned.
  void add(const SafetensorsFile& file, const SafetensorsTensor& tensor, const Box& box,
           float* out);
  /// A box of a part of the tensor.
  void add(const SafetensorsFile& file, const SafetensorsTensor& tensor, const TensorPart& part,
           const Box& box, float* out);
  void run() const;

 private:
  struct Block {
    const SafetensorsFile* file;
    const SafetensorsTensor* tensor;
    Box block, box;
    float* out;
    std::optional<TensorPart> part = {};
  };
  static void read(const Block& block);
  std::vector<Block> blocks_;
};

/// A directory with model.safetensors, or the files of its index.json, each tensor in one.
class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::filesystem::path& folder);
  struct Located {
    const SafetensorsFile* file = nullptr;
    const SafetensorsTensor* tensor = nullptr;
  };
  [[nodiscard]] const std::map<std::string, Located, std::less<>>& tensors() const {
    return tensors_;
  }

 private:
  void add(const SafetensorsFile& file);
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Located, std::less<>> tensors_;
};

/// Writes model.safetensors, or model-00001-of-0000N.safetensors with their index where one file
/// would hold more than `file_bytes_max` of tensors. A reader sees each file whole or not at all.
/// Several writers of the same list may share out the files.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    Shape shape;
    std::string dtype = "";  ///< "F32", "BF16" or "F16" where it is not that of the writer
  };
  /// A file and the tensors [begin, end) that it holds.
  struct Part {
    std::string name;
    std::size_t begin, end;
  };
  static constexpr std::int64_t kFileBytesMax = 5'000'000'000;  ///< transformers' "5GB"

  /// `tensors` are sorted by name; they come in that order. kF32 or kBF16. All throw DataError.
  SafetensorsWriter(std::filesystem::path folder, DType dtype, std::vector<Tensor> tensors,
                    std::int64_t file_bytes_max = kFileBytesMax);
  ~SafetensorsWriter();

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  /// Between two files: the next tensor is the first of this one.
  void go_to(std::size_t part);
  /// Removes the file that is half written, where there is one. Nothing comes behind it.
  void give_up() noexcept;
  /// The next tensor, whole, of the writer's type; rounded to nearest even for bf16.
  void write(std::span<const float> values);
  /// The same in slices, which follow each other.
  void write_slice(std::span<const float> values);
  /// The next tensor, whole, as its bytes are to stand in the file.
  void write_bytes(std::string_view bytes);
  /// When every file is there: the index, where there is more than one.
  void finish();
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::string dtype_of(const Tensor& tensor) const;
  [[nodiscard]] std::int64_t bytes_of(const Tensor& tensor) const;
  void begin_tensor();
  void end_tensor();
  [[nodiscard]] std::string header_of(const Part& part) const;
  void open_part();
  void close_part();

  std::filesystem::path folder_;
  DType dtype_;
  std::vector<Tensor> tensors_;
  std::vector<Part> parts_;
  std::size_t part_ = 0, next_ = 0;
  std::int64_t bytes_ = 0, written_ = 0;  // written_: elements of the next tensor
  std::filesystem::path temporary_;
  FileDescriptor file_;
  std::vector<BFloat16> block_;
};

}  // namespace trireme
