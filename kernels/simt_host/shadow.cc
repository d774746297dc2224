// Checks of every load and store of a kernel against a shadow of shared and device memory.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

namespace {
bool g_instrumented = false;  // set by __tsan_init of an instrumented object file
}
void set_instrumented() { g_instrumented = true; }
bool instrumented() { return g_instrumented; }

bool ordered(const Worker& w, const Access& x, int me) {
  return x.clock != kInFlight && x.block == w.block && w.knows(me, x.thread, x.clock);
}

void check_cells(Worker& w, Cell* cells, uint32_t stamp, Allocation* a, unsigned char* p, size_t n,
                 int me, Kind kind, bool races) {
  Access now{w.block, w.clock[me], uint16_t(me)};
  for (size_t i = 0; i < n; ++i) {
    Cell& c = cells[i];
    if (c.stamp != stamp) c = Cell{}, c.stamp = stamp;
    bool initialised = a ? a->initialised[size_t(p + i - a->base)] : c.has_write;
    if (c.pending)
      fault(FaultKind::kAsyncCopy, std::string(kind == Kind::kRead ? "reads " : "writes ") +
                                       describe(w, p + i, a) + ", the target of a copy by " +
                                       describe(w, c.write) + " that is not complete");
    if (kind != Kind::kWrite && !initialised)
      fault(FaultKind::kUninitialised, describe(w, p + i, a));
    if (races && c.has_write && !(kind == Kind::kAtomic && c.write_atomic) &&
        !ordered(w, c.write, me)) {
      w.fault_other_pc = c.write_pc;
      if (c.write.thread >= w.count)
        fault(FaultKind::kAsyncCopy, std::string(kind == Kind::kRead ? "reads " : "writes ") +
                                         describe(w, p + i, a) + ", target of " +
                                         describe(w, c.write) + ", with no wait for it");
      fault(FaultKind::kRace, std::string(kind == Kind::kRead ? "reads " : "writes ") +
                                  describe(w, p + i, a) + ", written by " + describe(w, c.write) +
                                  " with no barrier between");
    }
    if (kind == Kind::kRead) {
      if (c.readers == 0 ||
          (c.readers == 1 && c.read.clock != kInFlight &&
           (c.read.thread == me || ordered(w, c.read, me)) && c.read.block == w.block)) {
        c.read = now, c.readers = 1;
      } else {
        if (c.readers == 1) {
          if (!c.list) c.list = uint32_t(w.reader_lists.size()), w.reader_lists.emplace_back();
          w.reader_lists[c.list].assign(1, c.read);
          c.readers = 2;
        }
        auto& l = w.reader_lists[c.list];
        bool found = false;
        for (auto& r : l)
          if (r.thread == me && r.block == w.block && r.clock != kInFlight) r = now, found = true;
        if (!found) l.push_back(now);
      }
      continue;
    }
    auto check_reader = [&](const Access& r) {
      if (!ordered(w, r, me))
        fault(FaultKind::kRace,
              "writes " + describe(w, p + i, a) +
                  (r.clock == kInFlight
                       ? ", which a TMA store or wgmma reads that " + describe(w, r) +
                             " did not wait for"
                       : ", read by " + describe(w, r) + " with no barrier between"));
    };
    if (races && c.readers == 1) check_reader(c.read);
    if (races && c.readers == 2)
      for (auto& r : w.reader_lists[c.list]) check_reader(r);
    c.readers = 0;
    c.write = now;
    c.has_write = true;
    c.write_atomic = kind == Kind::kAtomic;
    c.write_async = false;
    c.write_pc = t_pc;
    if (a) a->initialised[size_t(p + i - a->base)] = 1;
  }
}

namespace {

extern "C" char __executable_start, _end;

}  // namespace

void check(Worker& w, void* address, size_t n, int me, Kind kind, size_t align) {
  auto p = static_cast<unsigned char*>(address);
  kind == Kind::kWrite ? ++w.stats.stores : ++w.stats.loads;
  if (in(p, w.smem, w.smem + kSmemMax + 4096)) {
    if (p + n > w.smem + w.smem_bytes)
      fault(FaultKind::kOutOfBounds, std::to_string(n) + " bytes at " + describe(w, p, nullptr));
    if (align > 1 && reinterpret_cast<uintptr_t>(p) % align)
      fault(FaultKind::kMisaligned,
            std::to_string(n) + "-byte access to " + describe(w, p, nullptr));
    if (w.checking)
      check_cells(w, &w.smem_cells[size_t(p - w.smem)], w.block_stamp, nullptr, p, n, me, kind,
                  true);
    return;
  }
  auto& d = device_memory();
  if (in(p, d.lo, d.hi)) {
    Allocation* a = d.find(p);
    if (!a || p + n > a->base + a->size)
      fault(FaultKind::kOutOfBounds, std::to_string(n) + " bytes at byte " +
                                         (a ? std::to_string(p - a->base) + " of '" + a->name +
                                                  "' (" + std::to_string(a->size) + " bytes)"
                                            : "before any allocation"));
    if (!a->live) fault(FaultKind::kOutOfBounds, "'" + a->name + "' has been freed");
    if (align > 1 && reinterpret_cast<uintptr_t>(p) % align)
      fault(FaultKind::kMisaligned, std::to_string(n) + "-byte access to " + describe(w, p, a));
    if (!w.checking) return;
    if (a->cells.empty()) a->cells.resize(a->size);
    check_cells(w, &a->cells[size_t(p - a->base)], w.stamp, a, p, n, me, kind,
                w.opt.check_global_races);
    return;
  }
  if (in(p, w.stacks, w.stacks_end)) {
    Thread& t = w.threads[me];
    if (!in(p, t.stack_lo, t.stack_lo + w.stack_bytes))
      fault(FaultKind::kOutOfBounds, "access to another thread's local memory");
    return;
  }
  if (in(p, &__executable_start, &_end)) return;                                  // constant tables
  if (in(p, w.context, static_cast<char*>(w.context) + w.context_bytes)) return;  // arguments
  auto tls = reinterpret_cast<uintptr_t>(&threadIdx), q = reinterpret_cast<uintptr_t>(p);
  if (q > tls - (1 << 20) && q < tls + (1 << 16)) return;  // built-ins, static __shared__
  fault(FaultKind::kHostMemory,
        std::to_string(n) + " bytes at an address that is neither device, shared nor local memory");
}

namespace {

void check_accumulators(Worker& w, const void* p, Kind kind) {
  for (auto& a : w.current->accumulators)
    if (a.in_flight && in(p, a.d, a.d + a.n / 2))
      fault(FaultKind::kWgmma, std::string(kind == Kind::kRead ? "reads" : "writes") +
                                   " accumulator register " +
                                   std::to_string(static_cast<const float*>(p) - a.d) +
                                   " of a wgmma that was not waited for");
}

void hook(const void* p, size_t n, Kind kind, size_t align, const void* pc) {
  Worker* w = t_worker;
  if (!w || !w->checking || t_in_runtime) return;
  RuntimeScope scope;
  t_pc = pc;
  if (in(p, w->stacks, w->stacks_end) &&
      in(p, w->current->stack_lo, w->current->stack_lo + w->stack_bytes)) {
    if (w->current->accumulators_in_flight) check_accumulators(*w, p, kind);
    return;
  }
  check(*w, const_cast<void*>(p), n, w->current->linear, kind, align);
  t_pc = nullptr;
}

}  // namespace

void note_read(const void* p, size_t n, int thread) {
  if (t_worker)
    check(*t_worker, const_cast<void*>(p), n, thread < 0 ? t_worker->current->linear : thread,
          Kind::kRead, 1);
}
void note_write(void* p, size_t n, int thread) {
  if (t_worker)
    check(*t_worker, p, n, thread < 0 ? t_worker->current->linear : thread, Kind::kWrite, 1);
}
void note_atomic(void* p, size_t n, bool is_float, Loc loc) {
  if (!t_worker) return;
  const LocScope scope(loc);
  ++t_worker->stats.atomics;
  t_worker->stats.float_atomics += is_float;
  check(*t_worker, p, n, t_worker->current->linear, Kind::kAtomic, n);
}

void check_alignment(const void* p, size_t bytes) {
  if (!t_worker || reinterpret_cast<uintptr_t>(p) % bytes == 0) return;
  t_pc = __builtin_return_address(0);
  fault(FaultKind::kMisaligned, std::to_string(bytes) + "-byte access");
}

}  // namespace trireme::simt

// ---- what -fsanitize=thread calls ----

extern "C" {
#define SIMT_PC __builtin_return_address(0)
#define SIMT_SIZE(N)                                                    \
  void __tsan_read##N(void* p) {                                        \
    trireme::simt::hook(p, N, trireme::simt::Kind::kRead, N, SIMT_PC);  \
  }                                                                     \
  void __tsan_write##N(void* p) {                                       \
    trireme::simt::hook(p, N, trireme::simt::Kind::kWrite, N, SIMT_PC); \
  }                                                                     \
  void __tsan_unaligned_read##N(void* p) {                              \
    trireme::simt::hook(p, N, trireme::simt::Kind::kRead, 1, SIMT_PC);  \
  }                                                                     \
  void __tsan_unaligned_write##N(void* p) {                             \
    trireme::simt::hook(p, N, trireme::simt::Kind::kWrite, 1, SIMT_PC); \
  }                                                                     \
  void __tsan_volatile_read##N(void* p) {                               \
    trireme::simt::hook(p, N, trireme::simt::Kind::kRead, N, SIMT_PC);  \
  }                                                                     \
  void __tsan_volatile_write##N(void* p) {                              \
    trireme::simt::hook(p, N, trireme::simt::Kind::kWrite, N, SIMT_PC); \
  }
SIMT_SIZE(1)
SIMT_SIZE(2) SIMT_SIZE(4) SIMT_SIZE(8) SIMT_SIZE(16) void __tsan_read_range(void* p, size_t n) {
  trireme::simt::hook(p, n, trireme::simt::Kind::kRead, 1, SIMT_PC);
}
void __tsan_write_range(void* p, size_t n) {
  trireme::simt::hook(p, n, trireme::simt::Kind::kWrite, 1, SIMT_PC);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() { trireme::simt::set_instrumented(); }
}
