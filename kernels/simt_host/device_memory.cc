// Device memory: exact sizes, red zones, poison, and which bytes have been written. Places of freed
// memory are given away again only after a while, so that a late access is found; its pages and its
// shadow go back to the system at once.

#include <deque>
#include <map>

#include "kernels/simt_host/state.h"

namespace trireme::simt {

namespace {

constexpr size_t kRedZone = 1024, kUnit = kArenaUnit;
constexpr size_t kQuarantineBytes = size_t(2) << 30, kQuarantineCount = 4096;

class Arena {
 public:
  static Arena& get() {
    static Arena arena;
    return arena;
  }

  unsigned char* allocate(size_t bytes, const char* name) {
    const size_t taken = (bytes + kUnit - 1) / kUnit * kUnit + kRedZone;
    size_t place = take(taken);
    while (place == kNone && !quarantine_.empty()) {
      release_oldest();
      place = take(taken);
    }
    if (place == kNone) return nullptr;
    if (unused_.empty()) {
      unused_.push_back(uint32_t(slots_.size()));
      allocations_.push_back(std::make_unique<Allocation>());
      slots_.push_back(allocations_.back().get());
      g_arena = {lo_, owners_.data(), slots_.data()};
    }
    const uint32_t slot = unused_.back();
    unused_.pop_back();
    Allocation& a = *slots_[slot];
    a.base = lo_ + place, a.size = bytes, a.taken = taken, a.name = name, a.live = true;
    live_bytes_ += bytes;
    if (instrumented()) a.initialised = LazyArray<uint8_t>(bytes);
    std::fill_n(&owners_[place / kUnit], taken / kUnit, slot + 1);
#if SIMT_ASAN
    ASAN_UNPOISON_MEMORY_REGION(a.base, bytes);
    ASAN_POISON_MEMORY_REGION(a.base + bytes, taken - bytes);
#endif
    std::memset(a.base, 0xff, bytes);  // NaN in fp32, bf16 and fp8
    return a.base;
  }

  [[nodiscard]] size_t live_bytes() const { return live_bytes_; }

  void free(Allocation& a) {
    a.live = false;
    live_bytes_ -= a.size;
    a.initialised = {}, a.shadow = {};
    // Only pages that are its own: the first and the last may hold neighbours too.
    constexpr uintptr_t kPage = 4096;
    const uintptr_t first = (reinterpret_cast<uintptr_t>(a.base) + kPage - 1) / kPage * kPage;
    const uintptr_t end = reinterpret_cast<uintptr_t>(a.base + a.size) / kPage * kPage;
    if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
#if SIMT_ASAN
    ASAN_POISON_MEMORY_REGION(a.base, a.size);
#endif
    quarantine_.push_back(owners_[size_t(a.base - lo_) / kUnit] - 1);
    quarantined_ += a.taken;
    while (quarantined_ > kQuarantineBytes || quarantine_.size() > kQuarantineCount)
      release_oldest();
  }

 private:
  static constexpr size_t kNone = ~size_t(0);

  Arena() : owners_(kArenaBytes / kUnit) {
    void* p = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    lo_ = static_cast<unsigned char*>(p);
    free_[kRedZone] = kArenaBytes - kRedZone;  // what is before the first allocation is found too
#if SIMT_ASAN
    ASAN_POISON_MEMORY_REGION(lo_, kRedZone);
#endif
  }

  size_t take(size_t bytes) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const auto [place, size] = *it;
      free_.erase(it);
      if (size > bytes) free_[place + bytes] = size - bytes;
      return place;
    }
    return kNone;
  }

  void release_oldest() {
    const uint32_t slot = quarantine_.front();
    quarantine_.pop_front();
    Allocation& a = *slots_[slot];
    quarantined_ -= a.taken;
    auto it = free_.emplace(size_t(a.base - lo_), a.taken).first;
    const auto next = std::next(it);
    if (next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it != free_.begin()) {
      const auto before = std::prev(it);
      if (before->first + before->second == it->first) {
        before->second += it->second;
        free_.erase(it);
      }
    }
    std::fill_n(&owners_[size_t(a.base - lo_) / kUnit], a.taken / kUnit, 0);
    unused_.push_back(slot);
  }

  unsigned char* lo_ = nullptr;
  LazyArray<uint32_t> owners_;  // of each unit of the arena: slot + 1, 0 where it is free
  std::vector<std::unique_ptr<Allocation>> allocations_;
  std::vector<Allocation*> slots_;
  std::vector<uint32_t> unused_;
  std::map<size_t, size_t> free_;    // place -> bytes
  std::deque<uint32_t> quarantine_;  // slots of freed allocations, oldest first
  size_t quarantined_ = 0, live_bytes_ = 0;
};

/// Allocation and freeing while kernels run on other threads, whose look-ups take no lock.
std::mutex& arena_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

bool is_device_memory(const void* p) { return in_arena(p); }

void* device_alloc(size_t bytes, const char* name) {
  std::lock_guard lock(arena_mutex());
  return Arena::get().allocate(bytes, name);
}

void device_free(void* p) {
  if (!p) return;
  std::lock_guard lock(arena_mutex());
  Allocation* a = find_allocation(p);
  if (!a || a->base != p || !a->live)
    throw Fault(FaultKind::kOutOfBounds, "cudaFree of an address that is not allocated");
  Arena::get().free(*a);
}

size_t device_bytes() {
  std::lock_guard lock(arena_mutex());
  return Arena::get().live_bytes();
}

void device_check_range(const void* p, size_t n, const char* what) {
  const auto* q = static_cast<const unsigned char*>(p);
  const Allocation* a = find_allocation(p);
  if (a && !a->live)
    throw Fault(FaultKind::kOutOfBounds, std::string(what) + ": '" + a->name + "' has been freed");
  if (!a || q + n > a->base + a->size)
    throw Fault(FaultKind::kOutOfBounds,
                std::string(what) + ": range is not inside one allocation");
}

void device_mark_initialised(const void* p, size_t n) {
  Allocation* a = find_allocation(p);
  if (a->initialised.empty()) return;
  std::memset(&a->initialised[size_t(static_cast<const unsigned char*>(p) - a->base)], 1, n);
}

void device_copy_initialised(const void* to, const void* from, size_t n) {
  Allocation *a = find_allocation(to), *b = find_allocation(from);
  if (a->initialised.empty()) return;
  std::memcpy(&a->initialised[size_t(static_cast<const unsigned char*>(to) - a->base)],
              &b->initialised[size_t(static_cast<const unsigned char*>(from) - b->base)], n);
}

}  // namespace trireme::simt
