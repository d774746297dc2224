#pragma once
// The shadow of shared and device memory: who wrote and read each byte last.
//
// Cells stand for as many neighbouring bytes as the accesses of a launch move together (1 to 16):
// each chunk of 512 bytes starts with the granule of its first access and is refined by a smaller
// one. A float tensor has a cell for each element, and no other cells are touched.

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace trireme::simt {

struct Access {
  uint32_t block, clock;
  uint16_t thread;
};
/// Clock of a read by TMA or wgmma that was not waited for: ordered with nothing.
constexpr uint32_t kInFlight = ~0u;

enum class Readers : uint8_t {
  kNone,
  kOne,            // read_*
  kList,           // of one block; read_block holds its index
  kSeveralBlocks,  // whoever writes now races with one of them; read_* is the first
};

/// A cell of an older launch (or, in shared memory, block) has another stamp and is empty.
struct Cell {
  uint32_t stamp;
  uint32_t write_pc;  // from the beginning of the program
  uint32_t write_block, write_clock, read_block, read_clock;
  uint16_t write_thread, read_thread;
  bool has_write, write_atomic;
  bool pending : 1;      // the target of an asynchronous copy that is not complete
  bool write_async : 1;  // written by the async proxy (TMA)
  Readers readers;

  [[nodiscard]] Access write() const { return {write_block, write_clock, write_thread}; }
  [[nodiscard]] Access read() const { return {read_block, read_clock, read_thread}; }
  void set_write(const Access& a) {
    write_block = a.block, write_clock = a.clock, write_thread = a.thread, has_write = true;
  }
  void set_read(const Access& a) {
    read_block = a.block, read_clock = a.clock, read_thread = a.thread, readers = Readers::kOne;
  }
};
static_assert(sizeof(Cell) == 32);

/// Several threads of a block have read a cell since the last barrier of all threads.
struct ReaderList {
  uint32_t epoch;
  std::vector<Access> reads;
};
/// Lists by index; forgets all at once.
class ReaderLists {
 public:
  void clear() { used_ = 0; }
  uint32_t add(uint32_t epoch) {
    if (used_ == lists_.size()) lists_.emplace_back();
    lists_[used_].epoch = epoch;
    lists_[used_].reads.clear();
    return uint32_t(used_++);
  }
  ReaderList& operator[](uint32_t index) { return lists_[index]; }

 private:
  std::vector<ReaderList> lists_;
  size_t used_ = 0;
};

/// Zeroed memory whose pages exist once they are touched, and which goes back to the system.
template <class T>
class LazyArray {
 public:
  LazyArray() = default;
  explicit LazyArray(size_t count) : bytes_(count * sizeof(T)) {
    if (bytes_ == 0) return;
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(p);
  }
  LazyArray(LazyArray&& other) noexcept { swap(other); }
  LazyArray& operator=(LazyArray&& other) noexcept {
    LazyArray(std::move(other)).swap(*this);
    return *this;
  }
  ~LazyArray() {
    if (data_) munmap(data_, bytes_);
  }
  T* data() const { return data_; }
  [[nodiscard]] bool empty() const { return data_ == nullptr; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  void swap(LazyArray& other) { std::swap(data_, other.data_), std::swap(bytes_, other.bytes_); }
  T* data_ = nullptr;
  size_t bytes_ = 0;
};

class Shadow {
 public:
  Shadow() = default;
  explicit Shadow(size_t bytes)
      : cells_((bytes + kChunk - 1) / kChunk * kChunk), chunks_((bytes + kChunk - 1) / kChunk) {}
  [[nodiscard]] bool empty() const { return cells_.empty(); }

  /// f(Cell&, offset, bytes) for the cells of bytes [offset, offset + bytes). launch: the launch's
  /// stamp; in it granules only shrink. A cell of another stamp than `stamp` is emptied first.
  template <class F>
  void each(size_t offset, size_t bytes, uint32_t launch, uint32_t stamp, ReaderLists& lists, F f) {
    while (bytes > 0) {
      const size_t chunk = offset / kChunk, from = offset % kChunk;
      const size_t piece = bytes < kChunk - from ? bytes : kChunk - from;
      const int granule = __builtin_ctzll(from | piece | 16);  // log2 of 1 to 16
      Chunk& c = chunks_[chunk];
      if (c.launch != launch) c = {launch, granule};
      if (granule < c.granule) refine(chunk, granule, stamp, lists);
      Cell* cells = &cells_[chunk * kChunk];
      const size_t step = size_t(1) << c.granule;
      for (size_t at = from; at < from + piece; at += step) {
        Cell& cell = cells[at >> c.granule];
        if (cell.stamp != stamp) {
          cell = Cell{};
          cell.stamp = stamp;
        }
        f(cell, chunk * kChunk + at, step);
      }
      offset += piece, bytes -= piece;
    }
  }

 private:
  static constexpr size_t kChunk = 512;
  struct Chunk {
    uint32_t launch;
    int granule;  // log2 of a cell's bytes
  };

  void refine(size_t chunk, int granule, uint32_t stamp, ReaderLists& lists) {
    Cell* cells = &cells_[chunk * kChunk];
    const int shift = chunks_[chunk].granule - granule;
    for (size_t i = kChunk >> granule; i-- > 0;) {
      const Cell& from = cells[i >> shift];
      const bool shares_list =
          from.stamp == stamp && from.readers == Readers::kList && i % (1u << shift);
      cells[i] = from;
      if (!shares_list) continue;
      const uint32_t copy = lists.add(lists[from.read_block].epoch);
      lists[copy].reads = lists[cells[i].read_block].reads;
      cells[i].read_block = copy;
    }
    chunks_[chunk].granule = granule;
  }

  LazyArray<Cell> cells_;
  LazyArray<Chunk> chunks_;
};

// ---- device memory ----

struct Allocation {
  unsigned char* base = nullptr;
  size_t size = 0, taken = 0;  // with its red zone
  std::string name;
  bool live = false;
  LazyArray<uint8_t> initialised;  // one per byte; empty where nothing is checked
  Shadow shadow;                   // from the first access of a kernel on
};

constexpr size_t kArenaBytes = size_t(8) << 30, kArenaUnit = 256;
/// What a look-up needs; device_memory.cc owns it. Null before the first allocation.
struct ArenaTables {
  unsigned char* base = nullptr;
  const uint32_t* owners = nullptr;  // of each unit of the arena: slot + 1, 0 where it is free
  Allocation* const* slots = nullptr;
};
inline constinit ArenaTables g_arena;

inline bool in_arena(const void* p) {
  return size_t(static_cast<const unsigned char*>(p) - g_arena.base) < kArenaBytes && g_arena.base;
}
/// The allocation at or before p, if p lies in it, its red zone or what it was before it was freed.
inline Allocation* find_allocation(const void* p) {
  if (!in_arena(p)) return nullptr;
  const uint32_t owner =
      g_arena.owners[size_t(static_cast<const unsigned char*>(p) - g_arena.base) / kArenaUnit];
  return owner ? g_arena.slots[owner - 1] : nullptr;
}

}  // namespace trireme::simt
