#include "device/host_memory.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/error.h"

namespace trireme {

HostBuffer::HostBuffer(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    throw OutOfMemory("cannot allocate {} bytes of memory: {}", bytes, errno_text(errno));
  }
  data_ = static_cast<std::byte*>(address);
  // A core file without tensors is small; and resident_bytes() knows them by this.
  ::madvise(address, bytes, MADV_DONTDUMP);
  // Large buffers are read in long runs: fewer TLB misses. If refused, nothing is lost.
  if (bytes >= (std::size_t{1} << 22)) ::madvise(address, bytes, MADV_HUGEPAGE);
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace trireme
