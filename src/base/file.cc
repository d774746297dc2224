#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace trireme {

void FileDescriptorTraits::destroy(Raw descriptor) noexcept { ::close(descriptor); }

FileDescriptor open_file(const std::filesystem::path& path, int flags, unsigned mode) {
  int raw;
  do {
    raw = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (raw < 0 && errno == EINTR);
  if (raw < 0) throw DataError("{}: cannot open: {}", path.string(), errno_text(errno));
  return FileDescriptor(raw);
}

namespace {
std::size_t size_of_regular_file(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    throw DataError("{}: cannot read its size: {}", path.string(), errno_text(errno));
  }
  if (!S_ISREG(status.st_mode)) throw DataError("{}: is not a regular file", path.string());
  return static_cast<std::size_t>(status.st_size);
}
}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t bytes_max) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  const std::size_t size = size_of_regular_file(file.get(), path);
  if (size > bytes_max) {
    throw DataError("{}: {} bytes, more than the {} this reader accepts", path.string(), size,
                    bytes_max);
  }
  std::string content(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = ::read(file.get(), content.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError("{}: cannot read: {}", path.string(), errno_text(errno));
    if (count == 0) throw DataError("{}: became shorter while being read", path.string());
    done += static_cast<std::size_t>(count);
  }
  return content;
}

void write_all(int descriptor, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw DataError("{}: cannot write: {}", path.string(), errno_text(errno));
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void sync_path(const std::filesystem::path& path) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  if (::fsync(file.get()) != 0)
    throw DataError("{}: cannot fsync: {}", path.string(), errno_text(errno));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.tmp", ::getpid());
  try {
    const FileDescriptor file = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(file.get(), content, temporary);
    if (::fsync(file.get()) != 0) {
      throw DataError("{}: cannot fsync: {}", temporary.string(), errno_text(errno));
    }
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw DataError("{}: cannot rename to {}: {}", temporary.string(), path.string(),
                      errno_text(errno));
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_path(path.has_parent_path() ? path.parent_path() : ".");
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  size_ = size_of_regular_file(file.get(), path);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED)
    throw DataError("{}: cannot map: {}", path.string(), errno_text(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace trireme
