// TMA of Hopper. A load arrives when no thread can run (Options::late_copies = false: at once;
// random order: now and then); until then its shared bytes are poisoned and "pending". A store
// reads shared memory at its wait.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

namespace {

constexpr uint64_t kMapMagic = 0x70616d2d72736e74;

struct TensorMap {  // in CUtensorMap::opaque
  uint64_t magic, base, dims[5], strides[4];
  uint16_t box[5];
  uint8_t rank, element_bytes;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

TensorMap decode(const CUtensorMap& m, const char* what) {
  TensorMap t;
  std::memcpy(&t, &m, sizeof t);
  if (t.magic != kMapMagic)
    fault(FaultKind::kTma, std::string(what) + ": the tensor map was not made by encode_tiled");
  return t;
}

// f(global address or null, shared offset, bytes) for a box's swizzled parts of at most 16 bytes.
template <class F>
void each_chunk(const TensorMap& m, const int* coordinate, uint32_t dst, F f) {
  const uint32_t inner = uint32_t(m.box[0]) * m.element_bytes;
  uint32_t rows = 1;
  for (int d = 1; d < m.rank; ++d) rows *= m.box[d];
  for (uint32_t r = 0; r < rows; ++r) {
    auto source = reinterpret_cast<unsigned char*>(m.base);
    bool inside = true;
    uint32_t rest = r;
    for (int d = 1; d < m.rank; ++d) {
      int64_t at = int64_t(coordinate[d]) + rest % m.box[d];
      rest /= m.box[d];
      inside = inside && at >= 0 && at < int64_t(m.dims[d]);
      if (inside) source += uint64_t(at) * m.strides[d - 1];
    }
    for (uint32_t c = 0; c < inner; c += 16) {
      uint32_t to = dst + r * inner + c, bytes = std::min(16u, inner - c);
      to = swizzled(to, inner);
      for (uint32_t e = 0; e < bytes;) {  // split where the tensor ends
        int64_t first = int64_t(coordinate[0]) + (c + e) / m.element_bytes;
        bool in_row = inside && first >= 0 && first < int64_t(m.dims[0]);
        uint32_t n = m.element_bytes;
        while (e + n < bytes) {
          int64_t x = int64_t(coordinate[0]) + (c + e + n) / m.element_bytes;
          if ((inside && x >= 0 && x < int64_t(m.dims[0])) != in_row) break;
          n += m.element_bytes;
        }
        f(in_row ? source + first * m.element_bytes : nullptr, to + e, n);
        e += n;
      }
    }
  }
}

// A box may begin outside of the tensor, but not between 16 bytes of a row: an H100 ends such an
// instruction as an illegal one, loads, stores and reductions.
void check_begin(const TensorMap& m, const int* coordinate, const char* what) {
  if (coordinate[0] * m.element_bytes % 16 != 0)
    fault(FaultKind::kTma, std::string(what) + " begins at element " +
                               std::to_string(coordinate[0]) +
                               " of a row, which is no multiple of 16 bytes");
}

uint32_t box_bytes(const TensorMap& m) {
  uint32_t n = m.element_bytes;
  for (int d = 0; d < m.rank; ++d) n *= m.box[d];
  return n;
}

}  // namespace

uint32_t swizzled(uint32_t offset, uint32_t row_bytes) {
  return offset ^ (offset >> 7 & (row_bytes / 16 - 1)) << 4;
}

void check_async_read(Worker& w, uint32_t offset, uint32_t bytes, int me, bool record,
                      const char* what) {
  if (offset % kSmemMax + bytes > w.smem_bytes)
    fault(FaultKind::kOutOfBounds,
          std::string(what) + " reads " + describe(w, w.smem + offset, nullptr));
  if (!w.checking) return;
  const auto report = [&](FaultKind kind, const Cell& c, size_t at, const std::string& before,
                          const std::string& after) {
    if (kind == FaultKind::kRace || kind == FaultKind::kProxyFence) w.fault_other_pc = pc_of(c);
    fault(kind, std::string(what) + " of " + thread_name(w, me) + " reads " +
                    describe(w, w.smem + at, nullptr) + before +
                    (before.empty() ? "" : describe(w, c.write())) + after);
  };
  each_smem_cell(w, offset, bytes, [&](Cell& c, size_t at, size_t) {
    if (c.pending)
      report(FaultKind::kAsyncCopy, c, at, ", the target of a copy by ", " that is not complete");
    if (!c.has_write) report(FaultKind::kUninitialised, c, at, "", "");
    if (!ordered(w, c.write(), me)) {
      if (c.write_thread >= w.count)
        report(FaultKind::kAsyncCopy, c, at, ", target of ", ", with no wait for it");
      report(FaultKind::kRace, c, at, ", written by ", " with no barrier between");
    }
    if (!c.write_async && w.threads[c.write_thread].fence_clock < c.write_clock)
      report(FaultKind::kProxyFence, c, at, ", written by ", " with no fence.proxy.async after it");
    if (!record) return;
    if (c.readers == Readers::kOne && c.read_thread == me && c.read_clock == kInFlight)
      return;  // two reads in flight end as one
    add_reader(w, c, w.smem_readers, {w.block, kInFlight, uint16_t(me)});
  });
}
void end_async_read(Worker& w, uint32_t offset, uint32_t bytes, int me) {
  if (!w.checking) return;
  const uint32_t now = w.clock[size_t(me)];
  each_smem_cell(w, offset, bytes, [&](Cell& c, size_t, size_t) {
    if (c.readers == Readers::kOne && c.read_thread == me && c.read_clock == kInFlight)
      c.read_clock = now;
    if (c.readers == Readers::kList)
      for (Access& r : w.smem_readers[c.read_block].reads)
        if (r.thread == me && r.clock == kInFlight) r.clock = now;
  });
}

bool deliver_tma(Worker& w) {
  if (w.tma_in_flight.empty()) return false;
  RuntimeScope scope;
  size_t pick = w.opt.order == Order::kRandom     ? w.rng() % w.tma_in_flight.size()
                : w.opt.order == Order::kBackward ? w.tma_in_flight.size() - 1
                                                  : 0;
  TmaLoad load = w.tma_in_flight[pick];
  w.tma_in_flight.erase(w.tma_in_flight.begin() + long(pick));
  TensorMap m = decode(load.map, "TMA load");
  Mbarrier& b = w.mbarriers[load.barrier];
  each_chunk(m, load.coordinate, uint32_t(load.dst - w.smem),
             [&](const unsigned char* from, uint32_t to, uint32_t n) {
               from ? std::memcpy(w.smem + to, from, n) : std::memset(w.smem + to, 0, n);
               if (!w.checking) return;
               each_smem_cell(w, to, n, [&](Cell& c, size_t, size_t) {
                 c.pending = false, c.write_clock = b.phase + 1;
               });
             });
  if (w.checking) {
    b.gathering.resize(size_t(w.width));
    b.gathering[size_t(w.count + load.barrier)] = b.phase + 1;
  }
  b.tx -= box_bytes(m);
  if (b.tx < 0 && b.pending == 0)
    fault(FaultKind::kMbarrier, "mbarrier #" + std::to_string(load.barrier) +
                                    " received more bytes than expect_tx announced");
  try_complete(w, b);
  return true;
}

void encode_tensor_map(CUtensorMap* out, int element_bytes, int rank, const void* base,
                       const uint64_t* dims, const uint64_t* strides, const uint32_t* box) {
  auto refuse = [](const std::string& s) { throw Fault(FaultKind::kTma, "encode_tiled: " + s); };
  if (rank < 1 || rank > 5) refuse("rank " + std::to_string(rank));
  if (reinterpret_cast<uintptr_t>(out) % 64) refuse("tensor map is not 64-byte aligned");
  if (reinterpret_cast<uintptr_t>(base) % 16) refuse("global address is not 16-byte aligned");
  TensorMap m{kMapMagic,
              reinterpret_cast<uint64_t>(base),
              {},
              {},
              {},
              uint8_t(rank),
              uint8_t(element_bytes)};
  uint64_t extent = 0;
  for (int d = 0; d < rank; ++d) {
    m.dims[d] = dims[d], m.box[d] = uint16_t(box[d]);
    if (dims[d] == 0 || dims[d] > uint64_t(1) << 32)
      refuse("dimension " + std::to_string(d) + " is " + std::to_string(dims[d]));
    if (box[d] == 0 || box[d] > 256)
      refuse("box dimension " + std::to_string(d) + " is " + std::to_string(box[d]) +
             ", allowed are 1 to 256");
    if (d == 0) {
      extent = dims[0] * uint64_t(element_bytes);
      continue;
    }
    uint64_t s = m.strides[d - 1] = strides[d - 1];
    if (s % 16 || s >= uint64_t(1) << 40)
      refuse("stride " + std::to_string(s) + " of dimension " + std::to_string(d) +
             " is not a multiple of 16 below 2^40");
    extent += (dims[d] - 1) * s;
  }
  uint32_t inner = box[0] * uint32_t(element_bytes);
  if (inner != 128 && inner != 64)
    refuse("inner box of " + std::to_string(inner) + " bytes, the swizzles want 128 or 64");
  device_check_range(base, extent, "encode_tiled");
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &m, sizeof m);
}

void tma_check_map(const CUtensorMap* map, const char* what) { decode(*map, what); }

namespace {

uint32_t check_tma(Worker& w, const TensorMap& m, int rank, const void* shared, const char* what) {
  if (m.rank != rank)
    fault(FaultKind::kTma, std::string(what) + " of rank " + std::to_string(rank) +
                               " with a map of rank " + std::to_string(m.rank));
  uint32_t offset = smem_offset(w, shared, what);
  const uint32_t rows = 8 * uint32_t(m.box[0]) * m.element_bytes;
  if (offset % rows)
    fault(FaultKind::kMisaligned, std::string(what) + ": shared byte " + std::to_string(offset) +
                                      " is not aligned to 8 rows of the swizzle, " +
                                      std::to_string(rows) + " bytes");
  if (offset % kSmemMax + box_bytes(m) > w.smem_bytes)
    fault(FaultKind::kOutOfBounds, std::string(what) + " of " + std::to_string(box_bytes(m)) +
                                       " bytes at " + describe(w, w.smem + offset, nullptr));
  return offset;
}

}  // namespace

namespace {

/// One copy on its way to `offset`, to complete on the mbarrier at `bar`.
void send(Worker& w, const CUtensorMap& map, const TensorMap& m, const int* coordinate,
          uint32_t offset, uint32_t bar) {
  const int me = w.current->linear;
  Mbarrier& b = find_mbarrier(w, bar, "TMA load");
  const int index = int(&b - w.mbarriers.data());
  if (!b.init_fenced)
    fault(FaultKind::kProxyFence,
          "TMA load on an mbarrier with no fence.mbarrier_init after mbarrier.init");
  const uint32_t bytes = box_bytes(m);
  check(w, w.smem + offset, bytes, me, Kind::kWrite, 1);
  std::memset(w.smem + offset, 0xff, bytes);
  if (w.checking)
    each_smem_cell(w, offset, bytes, [&](Cell& c, size_t, size_t) {
      c.pending = c.write_async = true;
      c.set_write({w.block, b.phase + 1, uint16_t(w.count + index)});
    });
  TmaLoad load{map, m.rank, {}, w.smem + offset, index, t_pc};
  std::copy_n(coordinate, m.rank, load.coordinate);
  w.tma_in_flight.push_back(load);
}

struct LoadTarget {
  void* dst;
  uint64_t* bar;
  uint32_t blocks;  // bit r: the cluster's block of rank r
};

void load_to(LoadTarget to, const CUtensorMap* map, int rank, const int* coordinate,
             const void* pc) {
  const auto [dst, bar, blocks] = to;
  Worker& w = *t_worker;
  RuntimeScope scope;
  t_pc = pc;
  const int me = w.current->linear;
  const TensorMap m = decode(*map, "TMA load");
  const uint32_t offset = check_tma(w, m, rank, dst, "TMA load");
  check_begin(m, coordinate, "TMA load");
  const uint32_t bar_offset = smem_offset(w, bar, "TMA load");
  ++w.stats.tma_loads;
  each_chunk(m, coordinate, offset, [&](unsigned char* from, uint32_t, uint32_t n) {
    if (from) check(w, from, n, me, Kind::kRead, 1);
  });
  for (int r = 0; r < 32; ++r)
    if (blocks >> r & 1)
      send(w, *map, m, coordinate, offset_in(w, offset, r, "TMA load"),
           offset_in(w, bar_offset, r, "TMA load"));
  t_pc = nullptr;
  if (!w.opt.late_copies)
    while (deliver_tma(w)) {
    }
}

}  // namespace

void tma_load_multicast(void* dst, const CUtensorMap* map, int rank, const int* coordinate,
                        uint64_t* bar, uint32_t blocks, Loc) {
  load_to({dst, bar, blocks}, map, rank, coordinate, __builtin_return_address(0));
}
void tma_load(void* dst, const CUtensorMap* map, int rank, const int* coordinate, uint64_t* bar,
              Loc) {
  load_to({dst, bar, 1u << t_worker->rank()}, map, rank, coordinate, __builtin_return_address(0));
}

namespace {

void add_floats(float* to, const unsigned char* from, uint32_t bytes) {
  for (uint32_t at = 0; at < bytes; at += 4, ++to) {
    float value;
    std::memcpy(&value, from + at, 4);
    auto* bits = reinterpret_cast<uint32_t*>(to);
    uint32_t old = __atomic_load_n(bits, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(bits, &old,
                                        std::bit_cast<uint32_t>(std::bit_cast<float>(old) + value),
                                        false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }
}

/// Bytes of a box on their way to global memory.
void put(unsigned char* to, const unsigned char* from, uint32_t bytes, bool adds) {
  if (adds) {
    add_floats(reinterpret_cast<float*>(to), from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void check_turn_fenced(const Worker& w) {
  if (w.current->turn_unfenced)
    fault(FaultKind::kProxyFence,
          "bulk copy in a turn with no fence.proxy.async after its beginning");
}

/// A copy to a box of global memory, or a sum with what stands there.
void store_box(const CUtensorMap* map, const void* src, int rank, const int* coordinate, bool adds,
               const void* pc) {
  Worker& w = *t_worker;
  RuntimeScope scope;
  t_pc = pc;
  const char* what = adds ? "TMA reduction" : "TMA store";
  int me = w.current->linear;
  TensorMap m = decode(*map, what);
  uint32_t offset = check_tma(w, m, rank, src, what);
  check_begin(m, coordinate, what);
  if (adds && m.element_bytes != 4)
    fault(FaultKind::kTma, "TMA reduction of f32 with a map of " + std::to_string(m.element_bytes) +
                               " bytes an element");
  check_turn_fenced(w);
  ++w.stats.tma_stores;
  check_async_read(w, offset, box_bytes(m), me, true, what);
  each_chunk(m, coordinate, offset, [&](unsigned char* to, uint32_t from, uint32_t n) {
    if (!to) return;
    check(w, to, n, me, adds ? Kind::kAtomic : Kind::kWrite, adds ? 4 : 1);
    if (adds) w.stats.atomics += n / 4, w.stats.float_atomics += n / 4;
    if (!w.opt.late_copies) put(to, w.smem + from, n, adds);
  });
  BulkStore s{*map, rank, {}, w.smem + offset, false, adds};
  std::copy_n(coordinate, rank, s.coordinate);
  w.current->bulk_open.push_back(s);
  t_pc = nullptr;
}
/// What a store has still to do; the bytes that it read.
uint32_t perform(const Worker& w, const BulkStore& s) {
  const bool late = w.opt.late_copies;
  if (s.add_to) {
    if (late) add_floats(s.add_to, s.src, s.add_bytes);
    return s.add_bytes;
  }
  const TensorMap m = decode(s.map, "TMA store");
  if (late)
    each_chunk(m, s.coordinate, uint32_t(s.src - w.smem),
               [&](unsigned char* to, uint32_t from, uint32_t n) {
                 if (to) put(to, w.smem + from, n, s.adds);
               });
  return box_bytes(m);
}

}  // namespace

void tma_store(const CUtensorMap* map, const void* src, int rank, const int* coordinate, Loc) {
  store_box(map, src, rank, coordinate, false, __builtin_return_address(0));
}
void tma_add(const CUtensorMap* map, const void* src, int rank, const int* coordinate, Loc) {
  store_box(map, src, rank, coordinate, true, __builtin_return_address(0));
}

void bulk_add(float* to, const float* from, int bytes, Loc) {
  Worker& w = *t_worker;
  RuntimeScope scope;
  t_pc = __builtin_return_address(0);
  const int me = w.current->linear;
  const uint32_t offset = smem_offset(w, from, "bulk reduction"), size = uint32_t(bytes);
  if (offset % 16 || reinterpret_cast<uintptr_t>(to) % 16 || bytes % 16 || bytes <= 0)
    fault(FaultKind::kMisaligned, "bulk reduction of " + std::to_string(bytes) + " bytes from " +
                                      "shared byte " + std::to_string(offset) +
                                      ": addresses and size are multiples of 16");
  check_turn_fenced(w);
  w.stats.atomics += size / 4, w.stats.float_atomics += size / 4;
  check_async_read(w, offset, size, me, true, "bulk reduction");
  check(w, to, size, me, Kind::kAtomic, 4);
  if (!w.opt.late_copies) add_floats(to, w.smem + offset, size);
  BulkStore s{};
  s.src = w.smem + offset, s.adds = true, s.add_to = to, s.add_bytes = size;
  w.current->bulk_open.push_back(s);
  t_pc = nullptr;
}

void bulk_commit() {
  Thread& t = *t_worker->current;
  t.bulk_groups.push_back(std::move(t.bulk_open));
  t.bulk_open.clear();
}
void bulk_wait(int left, bool read_only, Loc) {
  Worker& w = *t_worker;
  RuntimeScope scope;
  Thread& t = *w.current;
  for (int g = 0; g < int(t.bulk_groups.size()) - left; ++g)
    for (auto& s : t.bulk_groups[g]) {
      if (s.done) continue;
      const uint32_t bytes = perform(w, s);
      end_async_read(w, uint32_t(s.src - w.smem), bytes, t.linear);
      s.done = true;
    }
  if (read_only) return;
  for (; int(t.bulk_groups.size()) > left; t.bulk_groups.pop_front())
    t.bulk_unfenced |= !t.bulk_groups.front().empty();
}

}  // namespace trireme::simt
