// Keeps the index of a megatron order in a file: building it reads every sequence's length, for
// minutes. Layout: Header, then sample_position, document_index, sample_offset, shuffle_index.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "dataset/megatron_order.h"

namespace trireme {
namespace {
namespace fs = std::filesystem;

constexpr char kMagic[] = "trireme order 1\n";

struct Header {
  char magic[16];
  char key[32];   // what the index was made from
  char hash[32];  // XXH3-128 of all that follows the header
  std::uint64_t documents, samples;
};
static_assert(sizeof(Header) == 96);

std::span<const std::byte> payload(const MappedFile& file) {
  return file.bytes().subspan(sizeof(Header));
}

/// Everything the order depends on.
std::string key_of(const IndexedFile& file, const MegatronRequest& request) {
  return xxh3_128_hex(fmt::format("{} [{}, {}) T {} samples {} seed {}", file.index_hash(),
                                  request.range.begin, request.range.end, request.length,
                                  request.samples, request.seed));
}

/// Held until destroyed, or not at all without file locks: then two build, and one's file stays.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& path) {
    file_ = open_file(path, O_RDWR | O_CREAT);
    while (::flock(file_.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
  }

 private:
  FileDescriptor file_;
};

}  // namespace

std::unique_ptr<MegatronIndex> MegatronIndex::load(const fs::path& path, const std::string& key) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return nullptr;
  auto index = std::make_unique<MegatronIndex>();
  index->mapped_ = MappedFile(path);
  const std::span<const std::byte> bytes = index->mapped_.bytes();
  Header header;
  if (bytes.size() < sizeof(header)) return nullptr;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(header.magic)) != 0) return nullptr;
  if (std::string_view(header.key, sizeof(header.key)) != key) return nullptr;
  const std::uint64_t limit = bytes.size();  // no count that passes can overflow the sum below
  if (header.documents > limit || header.samples > limit) return nullptr;
  const std::uint64_t bounds = header.samples + 1;
  if (payload(index->mapped_).size() != bounds * 12 + header.documents * 4 + header.samples * 4)
    return nullptr;
  if (std::string_view(header.hash, sizeof(header.hash)) != xxh3_128_hex(payload(index->mapped_)))
    return nullptr;

  const std::byte* at = bytes.data() + sizeof(header);
  const auto take = [&at]<class T>(std::span<const T>& array, std::uint64_t count) {
    array = {reinterpret_cast<const T*>(at), count};
    at += array.size_bytes();
  };
  take(index->sample_position, bounds);
  take(index->document_index, header.documents);
  take(index->sample_offset, bounds);
  take(index->shuffle_index, header.samples);
  return index;
}

void MegatronIndex::store(const fs::path& path, const std::string& key) const {
  const std::span<const std::byte> arrays[] = {
      std::as_bytes(sample_position), std::as_bytes(document_index), std::as_bytes(sample_offset),
      std::as_bytes(shuffle_index)};
  StreamingHash hash;
  for (const auto array : arrays) hash.update(array);
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(header.magic));
  std::memcpy(header.key, key.data(), sizeof(header.key));
  std::memcpy(header.hash, hash.hex().data(), sizeof(header.hash));
  header.documents = document_index.size();
  header.samples = shuffle_index.size();

  fs::path temporary = path;
  char host[64] = "host";
  ::gethostname(host, sizeof(host) - 1);
  temporary += fmt::format(".{}.{}.tmp", host, ::getpid());
  try {
    const FileDescriptor file = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(file.get(), {reinterpret_cast<const char*>(&header), sizeof(header)}, temporary);
    for (const auto array : arrays) {
      write_all(file.get(), {reinterpret_cast<const char*>(array.data()), array.size()}, temporary);
    }
    if (::fsync(file.get()) != 0)
      throw DataError("{}: cannot fsync: {}", temporary.string(), errno_text(errno));
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw DataError("{}: cannot rename to {}: {}", temporary.string(), path.string(),
                      errno_text(errno));
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

std::unique_ptr<MegatronIndex> cached_megatron_index(const IndexedFile& file,
                                                     const MegatronRequest& request,
                                                     std::span<const fs::path> folders) {
  const std::string key = key_of(file, request);
  const std::string name = fs::path(file.prefix()).filename().string() + "." + key + ".order";
  for (const fs::path& folder : folders) {
    if (auto index = MegatronIndex::load(folder / name, key)) return index;
  }
  std::string reason;
  std::unique_ptr<MegatronIndex> built;
  for (const fs::path& folder : folders) {
    try {
      std::error_code ignored;
      fs::create_directories(folder, ignored);  // the lock file says what is wrong
      const FolderLock lock(folder / (name + ".lock"));
      const auto remove_lock = [&] { ::unlink((folder / (name + ".lock")).c_str()); };
      // Another run may have built it while this one waited, and removed the lock before this one
      // made it again.
      if (auto index = MegatronIndex::load(folder / name, key)) {
        remove_lock();
        return index;
      }
      if (is_there(folder / name)) {
        log_warning("{}: is damaged and is built again", (folder / name).string());
      }
      if (built == nullptr)
        built = std::make_unique<MegatronIndex>(MegatronIndex::build(file, request));
      built->store(folder / name, key);
      remove_lock();
      return built;
    } catch (const DataError& error) {
      reason = error.what();
    }
  }
  log_warning("{}: the sample order cannot be kept ({}) and is built by each rank", file.prefix(),
              reason);
  if (built == nullptr)
    built = std::make_unique<MegatronIndex>(MegatronIndex::build(file, request));
  return built;
}

}  // namespace trireme
