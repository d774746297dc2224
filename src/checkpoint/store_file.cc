#include "checkpoint/store_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/hash.h"

namespace trireme {

StoreFile::StoreFile(std::filesystem::path path) : path_(std::move(path)) {
  RegularFile file = open_regular_file(path_);
  descriptor_ = std::move(file.descriptor);
  bytes_ = static_cast<std::int64_t>(file.bytes);
}

void StoreFile::read(std::int64_t begin, std::span<std::byte> out) const {
  if (begin < 0 || begin > bytes_ || static_cast<std::int64_t>(out.size()) > bytes_ - begin) {
    throw DataError("{}: ends at byte {}, before {} bytes at {} (it was cut or is another file)",
                    path_.string(), bytes_, out.size(), begin);
  }
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor_.get(), out.data(), out.size(), begin);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError("{}: cannot read: {}", path_.string(), errno_text(errno));
    if (count == 0) throw DataError("{}: became shorter while being read", path_.string());
    out = out.subspan(static_cast<std::size_t>(count));
    begin += count;
  }
}

std::string StoreFile::frame_hash(std::vector<Extent> extents) const {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  extents.push_back({bytes_, 0});
  constexpr std::int64_t kBlockBytes = 1 << 20;
  std::vector<std::byte> block;
  StreamingHash hash;
  std::int64_t at = 0;
  for (const Extent& extent : extents) {
    while (at < extent.begin) {
      block.resize(static_cast<std::size_t>(std::min(kBlockBytes, extent.begin - at)));
      read(at, block);
      hash.update(block);
      at += static_cast<std::int64_t>(block.size());
    }
    at = std::max(at, extent.begin + extent.size);
  }
  return hash.hex();
}

}  // namespace trireme
