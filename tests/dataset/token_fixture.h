#pragma once
// Token files written by hand, byte by byte, so that a test can also write wrong ones.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/temporary_directory.h"

namespace trireme {

template <class T>
void append_bytes(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

/// The parts of a .bin/.idx pair; change one, then write.
struct TokenFile {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t code = 4;
  std::uint64_t sequences = 0, bounds_count = 0;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> offsets, bounds;
  std::string bin, surplus;

  [[nodiscard]] std::string idx() const {
    std::string out = magic;
    append_bytes(out, version);
    append_bytes(out, code);
    append_bytes(out, sequences);
    append_bytes(out, bounds_count);
    for (const auto value : lengths) append_bytes(out, value);
    for (const auto value : offsets) append_bytes(out, value);
    for (const auto value : bounds) append_bytes(out, value);
    return out + surplus;
  }
  /// Returns the prefix.
  std::string write(const TemporaryDirectory& folder, const std::string& name) const {
    folder.write(name + ".bin", bin);
    folder.write(name + ".idx", idx());
    return (folder / name).string();
  }
};

/// One sequence a document.
template <class T = std::int32_t>
TokenFile token_file(const std::vector<std::vector<std::int64_t>>& documents,
                     std::uint8_t code = 4) {
  TokenFile file;
  file.code = code;
  file.sequences = documents.size();
  file.bounds_count = documents.size() + 1;
  file.bounds.push_back(0);
  for (const auto& document : documents) {
    file.lengths.push_back(static_cast<std::int32_t>(document.size()));
    file.offsets.push_back(static_cast<std::int64_t>(file.bin.size()));
    for (const auto id : document) append_bytes(file.bin, static_cast<T>(id));
    file.bounds.push_back(static_cast<std::int64_t>(file.lengths.size()));
  }
  return file;
}

/// Documents of the given lengths that hold 0, 1, 2, ... throughout.
inline std::vector<std::vector<std::int64_t>> counting_documents(
    const std::vector<std::int64_t>& lengths) {
  std::vector<std::vector<std::int64_t>> documents;
  std::int64_t next = 0;
  for (const std::int64_t length : lengths) {
    auto& document = documents.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) document.push_back(next++);
  }
  return documents;
}

}  // namespace trireme
