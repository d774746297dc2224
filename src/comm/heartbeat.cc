#include "comm/heartbeat.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <new>
#include <span>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace trireme {

/// Two versions of a beat: a rank stopped while writing one leaves the other whole.
struct Heartbeat::Entry {
  static constexpr std::size_t kWords = sizeof(Beat) / sizeof(std::uint64_t);
  static_assert(sizeof(Beat) % sizeof(std::uint64_t) == 0 && std::is_trivially_copyable_v<Beat>);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");
  using Words = std::array<std::uint64_t, kWords>;

  // How often; its lowest bit says which version is current.
  std::atomic<std::uint64_t> published{0};
  std::atomic<std::uint64_t> standing{0};
  std::atomic<std::uint64_t> host_word{0};  // the first entry's is used
  std::array<std::array<std::atomic<std::uint64_t>, kWords>, 2> versions{};

  void write(const Beat& beat) noexcept {
    const std::uint64_t next = published.load(std::memory_order_relaxed) + 1;
    const Words words = std::bit_cast<Words>(beat);
    // Release, so that a reader who meets one of these words also sees the count before it.
    for (std::size_t i = 0; i < kWords; ++i)
      versions[next % 2][i].store(words[i], std::memory_order_release);
    published.store(next, std::memory_order_release);
  }

  [[nodiscard]] Beat read() const noexcept {
    Words words;
    // Whole where nothing was published meanwhile; a writer comes a few times a second.
    for (int tries = 0; tries < 10000; ++tries) {
      const std::uint64_t before = published.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < kWords; ++i)
        words[i] = versions[before % 2][i].load(std::memory_order_acquire);
      if (published.load(std::memory_order_relaxed) == before) break;
    }
    Beat beat = std::bit_cast<Beat>(words);
    beat.standing = unpack_standing(standing.load(std::memory_order_relaxed));
    return beat;
  }
};

namespace {

/// A new file of `bytes` zeros in shared memory; its path, "" where there is no room or right.
std::string make_shared_file(std::size_t bytes) {
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    std::string path = std::string(folder) + "/trireme-heartbeat-XXXXXX";
    const FileDescriptor file(::mkostemp(path.data(), O_CLOEXEC));
    if (!file) continue;
    // Reserved now: a page that is missing later would end the process with SIGBUS.
    if (::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)) == 0) return path;
    ::unlink(path.c_str());
  }
  return "";
}

void* map(int descriptor, std::size_t bytes, int flags) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  return address == MAP_FAILED ? nullptr : address;
}

/// The same memory in every process of the host, or nullptr in every one.
void* share_memory(Communicator& host, std::size_t bytes) {
  const std::string path = host.broadcast_text(host.rank() == 0 ? make_shared_file(bytes) : "", 0);
  void* address = nullptr;
  if (!path.empty()) {
    const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (file) address = map(file.get(), bytes, MAP_SHARED);
  }
  std::int64_t failed[] = {address == nullptr};
  host.maximum(failed);
  if (host.rank() == 0 && !path.empty()) ::unlink(path.c_str());
  if (failed[0] == 0) return address;
  if (address != nullptr) ::munmap(address, bytes);
  return nullptr;
}

}  // namespace

Heartbeat::Heartbeat(const Launch& launch)
    : mine_(launch.local_rank()), count_(launch.local_size()) {
  bytes_ = sizeof(Entry) * static_cast<std::size_t>(count_);
  void* address = count_ > 1 ? share_memory(launch.host(), bytes_) : nullptr;
  if (address == nullptr) {
    if (count_ > 1) {
      log_warning(
          "{}: /dev/shm and /tmp hold no shared file (after a hang, the report will not name the "
          "rank).",
          launch.host_name());
    }
    shared_ = count_ == 1;
    mine_ = 0;
    count_ = 1;
    bytes_ = sizeof(Entry);
    address = map(-1, bytes_, MAP_PRIVATE | MAP_ANONYMOUS);
    if (address == nullptr)
      throw EnvironmentError("cannot map {} bytes: {}", bytes_, errno_text(errno));
  }
  entries_ = static_cast<Entry*>(address);
  // The mapping is zero, which is an Entry as constructed.
}

Heartbeat::~Heartbeat() { ::munmap(entries_, bytes_); }

std::atomic<std::uint64_t>& Heartbeat::standing() noexcept { return entries_[mine_].standing; }

std::atomic<std::uint64_t>* Heartbeat::host_word() noexcept {
  return shared_ ? &entries_->host_word : nullptr;
}

void Heartbeat::publish(const Beat& beat) noexcept { entries_[mine_].write(beat); }

std::vector<Beat> Heartbeat::read() const {
  std::vector<Beat> beats;
  for (int i = 0; i < count_; ++i) beats.push_back(entries_[i].read());
  return beats;
}

}  // namespace trireme
