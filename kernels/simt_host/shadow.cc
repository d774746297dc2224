// Checks of every load and store of a kernel against a shadow of shared and device memory.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

namespace {
bool g_instrumented = false;  // set by __tsan_init of an instrumented object file
}
void set_instrumented() { g_instrumented = true; }
bool instrumented() { return g_instrumented; }

bool ordered(const Worker& w, const Access& x, int me) {
  if (x.clock == kInFlight) return false;
  return x.block == w.block ? w.knows(me, x.thread, x.clock) : handed_on(w, x, me);
}

extern "C" char __executable_start, _end;

const void* pc_of(const Cell& c) { return c.write_pc ? &__executable_start + c.write_pc : nullptr; }

namespace {

const char* verb(Kind kind) { return kind == Kind::kRead ? "reads " : "writes "; }

[[noreturn]] void report_pending(Worker& w, const Cell& c, const std::string& what, Kind kind) {
  fault(FaultKind::kAsyncCopy, verb(kind) + what + ", the target of a copy by " +
                                   describe(w, c.write()) + " that is not complete");
}

[[noreturn]] void report_writer(Worker& w, const Cell& c, const std::string& what, Kind kind) {
  w.fault_other_pc = pc_of(c);
  if (c.write_thread >= w.count)
    fault(FaultKind::kAsyncCopy,
          verb(kind) + what + ", target of " + describe(w, c.write()) + ", with no wait for it");
  fault(FaultKind::kRace,
        verb(kind) + what + ", written by " + describe(w, c.write()) + " with no barrier between");
}

[[noreturn]] void report_reader(Worker& w, const Access& r, const std::string& what) {
  fault(FaultKind::kRace,
        "writes " + what +
            (r.clock == kInFlight
                 ? ", which a TMA store or wgmma reads that " + describe(w, r) + " did not wait for"
                 : ", read by " + describe(w, r) + " with no barrier between"));
}

/// Faults where a reader of the cell is unordered with a write by thread me.
void check_readers(Worker& w, const Cell& c, ReaderLists& lists, int me, const unsigned char* p,
                   const Allocation* a) {
  switch (c.readers) {
    case Readers::kNone:
      return;
    case Readers::kOne:
      if (!ordered(w, c.read(), me)) report_reader(w, c.read(), describe(w, p, a));
      return;
    case Readers::kList:
      for (const Access& r : lists[c.read_block].reads)
        if (!ordered(w, r, me)) report_reader(w, r, describe(w, p, a));
      return;
    case Readers::kSeveralBlocks:
      fault(FaultKind::kRace, "writes " + describe(w, p, a) +
                                  ", read by several blocks of this launch, first by " +
                                  describe(w, c.read()));
  }
}

/// `a`: the allocation that `p` is of; nullptr: shared memory.
void check_cell(Worker& w, Cell& c, unsigned char* p, const Allocation* a, const Access& now,
                Kind kind) {
  const int me = now.thread;
  ReaderLists& lists = a ? w.device_readers : w.smem_readers;
  const bool races = !a || w.opt.check_global_races;
  if (c.pending) [[unlikely]]
    report_pending(w, c, describe(w, p, a), kind);
  if (!a && kind != Kind::kWrite && !c.has_write) [[unlikely]]
    fault(FaultKind::kUninitialised, describe(w, p, a));
  if (c.has_write && races && !(kind == Kind::kAtomic && c.write_atomic) &&
      !ordered(w, c.write(), me)) [[unlikely]]
    report_writer(w, c, describe(w, p, a), kind);
  if (kind == Kind::kRead) {
    if (c.readers == Readers::kNone)
      c.set_read(now);
    else
      add_reader(w, c, lists, now);
    return;
  }
  if (races) check_readers(w, c, lists, me, p, a);
  c.readers = Readers::kNone;
  c.set_write(now);
  c.write_atomic = kind == Kind::kAtomic;
  c.write_async = false;
  c.write_pc = t_pc ? uint32_t(static_cast<const char*>(t_pc) - &__executable_start) : 0;
}

void check_smem(Worker& w, unsigned char* p, size_t n, int me, Kind kind) {
  const Access now{w.block, w.clock[size_t(me)], uint16_t(me)};
  each_smem_cell(w, size_t(p - w.smem), n, [&](Cell& c, size_t at, size_t) {
    check_cell(w, c, w.smem + at, nullptr, now, kind);
  });
}

void check_device(Worker& w, Allocation& a, unsigned char* p, size_t n, int me, Kind kind) {
  const auto offset = size_t(p - a.base);
  uint8_t* initialised = &a.initialised[offset];
  if (kind == Kind::kWrite) {
    std::memset(initialised, 1, n);
  } else {
    size_t first = 0;
    while (first < n && initialised[first]) ++first;
    if (first < n) fault(FaultKind::kUninitialised, describe(w, p + first, &a));
  }
  if (a.shadow.empty()) a.shadow = Shadow(a.size);
  const Access now{w.block, w.clock[size_t(me)], uint16_t(me)};
  a.shadow.each(offset, n, w.stamp, w.stamp, w.device_readers,
                [&](Cell& c, size_t at, size_t) { check_cell(w, c, a.base + at, &a, now, kind); });
}

}  // namespace

void add_reader(Worker& w, Cell& c, ReaderLists& lists, const Access& now) {
  const auto replaces = [&](const Access& old) {
    return old.clock != kInFlight && old.block == now.block &&
           (old.thread == now.thread || w.knows(now.thread, old.thread, old.clock));
  };
  switch (c.readers) {
    case Readers::kNone:
      return c.set_read(now);
    case Readers::kOne: {
      if (replaces(c.read())) return c.set_read(now);
      if (c.read_block != now.block) {
        c.readers = Readers::kSeveralBlocks;
        return;
      }
      const Access first = c.read();
      c.read_block = lists.add(w.epoch);
      c.readers = Readers::kList;
      lists[c.read_block].reads = {first, now};
      return;
    }
    case Readers::kList: {
      ReaderList& list = lists[c.read_block];
      const Access first = list.reads.front();
      if (first.block != now.block) {
        c.set_read(first);
        c.readers = Readers::kSeveralBlocks;
        return;
      }
      if (list.epoch != w.epoch) {  // reads of before the barrier are ordered with all to come
        list.epoch = w.epoch;
        std::erase_if(list.reads, [](const Access& r) { return r.clock != kInFlight; });
      }
      if (!list.reads.empty() && replaces(list.reads.back())) {
        list.reads.back() = now;
        return;
      }
      if (list.reads.size() >= 2 * size_t(w.count) + 64) {  // one entry a thread is enough
        std::vector<Access> last;
        std::vector<bool> seen(size_t(w.width), false);
        for (auto r = list.reads.rbegin(); r != list.reads.rend(); ++r)
          if (r->clock == kInFlight || !seen[r->thread]) {
            if (r->clock != kInFlight) seen[r->thread] = true;
            last.push_back(*r);
          }
        list.reads = std::move(last);
      }
      list.reads.push_back(now);
      return;
    }
    case Readers::kSeveralBlocks:
      return;
  }
}

void check(Worker& w, void* address, size_t n, int me, Kind kind, size_t align) {
  auto p = static_cast<unsigned char*>(address);
  kind == Kind::kWrite ? ++w.stats.stores : ++w.stats.loads;
  if (in(p, w.smem, w.smem + kClusterMax * kSmemMax + 4096)) {
    if (size_t(p - w.smem) % kSmemMax + n > w.smem_bytes)
      fault(FaultKind::kOutOfBounds, std::to_string(n) + " bytes at " + describe(w, p, nullptr));
    if (align > 1 && reinterpret_cast<uintptr_t>(p) % align)
      fault(FaultKind::kMisaligned,
            std::to_string(n) + "-byte access to " + describe(w, p, nullptr));
    if (w.checking) check_smem(w, p, n, me, kind);
    return;
  }
  if (in_arena(p)) {
    Allocation* a = find_allocation(p);
    if (!a || p + n > a->base + a->size)
      fault(FaultKind::kOutOfBounds, std::to_string(n) + " bytes at byte " +
                                         (a ? std::to_string(p - a->base) + " of '" + a->name +
                                                  "' (" + std::to_string(a->size) + " bytes)"
                                            : "outside any allocation"));
    if (!a->live) fault(FaultKind::kOutOfBounds, "'" + a->name + "' has been freed");
    if (align > 1 && reinterpret_cast<uintptr_t>(p) % align)
      fault(FaultKind::kMisaligned, std::to_string(n) + "-byte access to " + describe(w, p, a));
    if (w.checking) check_device(w, *a, p, n, me, kind);
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
