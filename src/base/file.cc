#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace trireme {

bool is_there(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::exists(path, none);
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::is_directory(path, none);
}

void FileDescriptorTraits::destroy(Raw descriptor) noexcept { ::close(descriptor); }

FileDescriptor open_file(const std::filesystem::path& path, int flags, unsigned mode) {
  int raw;
  do {
    raw = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (raw < 0 && errno == EINTR);
  if (raw < 0) throw DataError("{}: cannot open: {}", path.string(), errno_text(errno));
  return FileDescriptor(raw);
}

RegularFile open_regular_file(const std::filesystem::path& path) {
  RegularFile file{open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY)};
  struct stat status {};
  if (::fstat(file.descriptor.get(), &status) != 0) {
    throw DataError("{}: cannot read its size: {}", path.string(), errno_text(errno));
  }
  if (!S_ISREG(status.st_mode)) throw DataError("{}: is not a regular file", path.string());
  file.bytes = static_cast<std::uint64_t>(status.st_size);
  return file;
}

std::string read_file(const std::filesystem::path& path, std::size_t bytes_max) {
  const auto [file, size] = open_regular_file(path);
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

namespace {

/// What the handler of SIGBUS knows of a mapping. A slot is taken by its `path` and speaks from
/// when `begin` is set; only lock-free atomics, as a handler may meet any state.
struct Mapping {
  std::atomic<const char*> path{nullptr};
  std::atomic<std::uintptr_t> begin{0}, size{0};
};
constexpr std::size_t kMappingsMax =
    1024;  // those beyond are read as well, their fault has no name
std::array<Mapping, kMappingsMax> mappings;
static_assert(std::atomic<const char*>::is_always_lock_free);

void say(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

extern "C" void on_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    if (address - mapping.begin.load() >= mapping.size.load()) continue;
    say("error: ");
    say(mapping.path.load());
    say(": cannot be read any more: it was cut while it was in use, or its disk fails\n"
        "train: exit 74 (data or file system)\n");
    ::_exit(static_cast<int>(ExitCode::kData));
  }
  ::signal(SIGBUS, SIG_DFL);  // no file of ours: the access is repeated and ends the process
}

void install_bus_handler() {
  static const bool done = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  (void)done;
}

void note_mapping(const void* address, std::size_t size, const std::filesystem::path& path) {
  install_bus_handler();
  const char* name = ::strdup(path.c_str());
  for (Mapping& mapping : mappings) {
    const char* none = nullptr;
    if (name == nullptr || !mapping.path.compare_exchange_strong(none, name)) continue;
    mapping.size = size;
    mapping.begin = reinterpret_cast<std::uintptr_t>(address);
    return;
  }
  std::free(const_cast<char*>(name));
}

void forget_mapping(const void* address) {
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load() != reinterpret_cast<std::uintptr_t>(address)) continue;
    mapping.size = 0;
    mapping.begin = 0;
    std::free(const_cast<char*>(mapping.path.exchange(nullptr)));
    return;
  }
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto [file, bytes] = open_regular_file(path);
  size_ = bytes;
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED)
    throw DataError("{}: cannot map: {}", path.string(), errno_text(errno));
  data_ = static_cast<const std::byte*>(address);
  note_mapping(data_, size_, path);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace trireme
