// Device memory: exact sizes, red zones, poison, and which bytes have been written.

#include <sys/mman.h>

#include "kernels/simt_host/state.h"

namespace trireme::simt {

constexpr size_t kArenaBytes = size_t(8) << 30, kRedZone = 1024;

DeviceMemory& device_memory() {
  static DeviceMemory d;
  return d;
}

Allocation* DeviceMemory::find(const void* p) {
  auto q = static_cast<const unsigned char*>(p);
  if (cached && q >= cached->base && q < cached->base + cached->size) return cached;
  auto it = std::upper_bound(allocations.begin(), allocations.end(), q,
                             [](const unsigned char* v, auto& a) { return v < a->base; });
  if (it == allocations.begin()) return nullptr;
  return cached = (--it)->get();  // may still end before p
}

void* device_alloc(size_t bytes, const char* name) {
  auto& d = device_memory();
  std::lock_guard lock(d.mutex);
  if (!d.lo) {
    d.lo = d.next =
        static_cast<unsigned char*>(mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (d.lo == MAP_FAILED) throw std::bad_alloc();
    d.hi = d.lo + kArenaBytes;
#if SIMT_ASAN
    ASAN_POISON_MEMORY_REGION(d.lo, kRedZone);
#endif
    d.next += kRedZone;
  }
  size_t taken = ((bytes + 255) & ~size_t(255)) + kRedZone;
  if (d.next + taken > d.hi) return nullptr;
  unsigned char* p = d.next;
  d.next += taken;
  auto a = std::make_unique<Allocation>();
  a->base = p, a->size = bytes, a->name = name, a->live = true;
  a->initialised.assign(bytes, 0);
  std::memset(p, 0xff, bytes);
#if SIMT_ASAN
  ASAN_POISON_MEMORY_REGION(p + bytes, taken - bytes);
#endif
  d.allocations.push_back(std::move(a));
  return p;
}

void device_free(void* p) {
  if (!p) return;
  auto& d = device_memory();
  std::lock_guard lock(d.mutex);
  Allocation* a = d.find(p);
  if (!a || a->base != p || !a->live)
    throw Fault(FaultKind::kOutOfBounds, "device_free of an address that was not allocated");
  a->live = false;  // never reused: later accesses are found
  a->initialised = {}, a->cells = {};
  // Only pages that are its own: the first and the last may hold neighbours too.
  constexpr uintptr_t kPage = 4096;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(a->base) + kPage - 1) / kPage * kPage;
  const uintptr_t end = reinterpret_cast<uintptr_t>(a->base + a->size) / kPage * kPage;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
#if SIMT_ASAN
  ASAN_POISON_MEMORY_REGION(a->base, a->size);
#endif
}

bool is_device_memory(const void* p) {
  auto& d = device_memory();
  return in(p, d.lo, d.hi);
}

void device_check_range(const void* p, size_t n, const char* what) {
  auto& d = device_memory();
  std::lock_guard lock(d.mutex);
  auto q = static_cast<const unsigned char*>(p);
  Allocation* a = in(p, d.lo, d.hi) ? d.find(p) : nullptr;
  if (!a || !a->live || q + n > a->base + a->size)
    throw Fault(FaultKind::kOutOfBounds,
                std::string(what) + ": range is not inside one allocation");
}

void device_mark_initialised(const void* p, size_t n) {
  auto& d = device_memory();
  std::lock_guard lock(d.mutex);
  Allocation* a = d.find(p);
  std::fill_n(a->initialised.begin() + (static_cast<const unsigned char*>(p) - a->base), n, 1);
}

}  // namespace trireme::simt
