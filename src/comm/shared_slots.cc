#include "comm/shared_slots.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace trireme {

namespace {
constexpr std::size_t kPage = 4096, kMarkStride = 64;  // a cache line for each mark
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// Where the memory is, as its maker sees it. All zeros: there is none.
struct Offer {
  std::array<char, 40> boot{};  ///< of this host's kernel, since its start
  std::int64_t process = 0;
  std::int64_t descriptor = 0;
  std::uint64_t device = 0, file = 0, bytes = 0;
};

std::array<char, 40> boot_id() {
  std::array<char, 40> id{};
  const FileDescriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (file && ::read(file.get(), id.data(), id.size() - 1) < 0) id = {};
  return id;
}

Offer offer_of(int descriptor, std::size_t bytes) {
  struct stat found {};
  if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0 ||
      ::fstat(descriptor, &found) != 0) {
    return {};
  }
  return {boot_id(), ::getpid(), descriptor, found.st_dev, found.st_ino, bytes};
}

/// The maker's descriptor, opened anew by way of /proc; none where it is not the maker's.
FileDescriptor open_offer(const Offer& offer) {
  if (offer.bytes == 0 || offer.boot != boot_id()) return {};
  const std::string path = fmt::format("/proc/{}/fd/{}", offer.process, offer.descriptor);
  struct stat found {};
  // Looked at before opening: in a container the number may be another process's, which waits.
  if (::stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode) ||
      found.st_dev != offer.device || found.st_ino != offer.file ||
      static_cast<std::uint64_t>(found.st_size) != offer.bytes) {
    return {};
  }
  return FileDescriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
}
}  // namespace

std::unique_ptr<SharedSlots> SharedSlots::open(Communicator& group, std::size_t slots,
                                               std::size_t area_bytes) {
  const auto ranks = static_cast<std::size_t>(group.size());
  area_bytes = pages(area_bytes);
  const std::size_t bytes = pages(slots * ranks * kMarkStride) + slots * ranks * area_bytes;
  const bool maker = group.rank() == 0;
  const FileDescriptor made(maker ? ::memfd_create("trireme-transfers", MFD_CLOEXEC) : -1);
  Offer offer = maker ? offer_of(made.get(), bytes) : Offer{};
  group.broadcast(std::as_writable_bytes(std::span(&offer, 1)), 0);
  const FileDescriptor opened = open_offer(offer);
  void* const mapped =
      opened ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened.get(), 0)
             : MAP_FAILED;
  std::unique_ptr<SharedSlots> found;
  if (mapped != MAP_FAILED) {
    found.reset(new SharedSlots(static_cast<std::byte*>(mapped), slots, ranks, area_bytes));
  }
  // The maker keeps its descriptor until the last rank has said whether it has come.
  std::int64_t missing[] = {found ? 0 : 1};
  group.maximum(missing);
  return missing[0] == 0 ? std::move(found) : nullptr;
}

SharedSlots::SharedSlots(std::byte* memory, std::size_t slots, std::size_t ranks,
                         std::size_t area_bytes)
    : memory_(memory), slots_(slots), ranks_(ranks), area_bytes_(area_bytes) {}

SharedSlots::~SharedSlots() {
  ::munmap(memory_, pages(slots_ * ranks_ * kMarkStride) + slots_ * ranks_ * area_bytes_);
}

std::byte* SharedSlots::area(std::size_t slot, int rank) const {
  return memory_ + pages(slots_ * ranks_ * kMarkStride) +
         (slot * ranks_ + static_cast<std::size_t>(rank)) * area_bytes_;
}

std::atomic<std::uint64_t>& SharedSlots::mark_of(std::size_t slot, std::size_t rank) const {
  // Zero pages are atomics of value zero.
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_ +
                                                        (slot * ranks_ + rank) * kMarkStride);
}

void SharedSlots::mark(std::size_t slot, int rank, std::uint64_t value) {
  mark_of(slot, static_cast<std::size_t>(rank)).store(value, std::memory_order_release);
}

bool SharedSlots::all_reached(std::size_t slot, std::uint64_t value) const {
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (mark_of(slot, rank).load(std::memory_order_acquire) < value) return false;
  }
  return true;
}

}  // namespace trireme
