// Scheduler, shadow memory and reports of simt.h. This file is never instrumented.
#include "kernels/simt_host/simt.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SIMT_ASAN 1
#else
#define SIMT_ASAN 0
#endif

// Saves the callee-saved registers on the old stack, restores them from the new one.
extern "C" void simt_switch(void** save_sp, void* load_sp);
asm(R"(
.text
.globl simt_switch
.type simt_switch,@function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch,.-simt_switch
)");

namespace trireme::simt {

Options& options() {
  static Options o;
  return o;
}
Stats& stats() {
  static Stats s{};
  return s;
}

const char* name_of(FaultKind k) {
  switch (k) {
    case FaultKind::divergent_barrier:
      return "divergent barrier";
    case FaultKind::deadlock:
      return "deadlock";
    case FaultKind::bad_collective:
      return "bad warp collective";
    case FaultKind::uninitialised:
      return "read of uninitialised memory";
    case FaultKind::out_of_bounds:
      return "out-of-bounds access";
    case FaultKind::misaligned:
      return "misaligned access";
    case FaultKind::race:
      return "race";
    case FaultKind::async_copy:
      return "asynchronous result used before it was waited for";
    case FaultKind::host_memory:
      return "access to host memory";
    case FaultKind::launch_config:
      return "launch refused";
    case FaultKind::stack_overflow:
      return "stack overflow";
    case FaultKind::mbarrier:
      return "mbarrier misuse";
    case FaultKind::tma:
      return "TMA refused";
    case FaultKind::wgmma:
      return "wgmma misuse";
    case FaultKind::proxy_fence:
      return "missing fence.proxy.async";
  }
  return "?";
}

namespace {

// ----------------------------------------------------------------------------------------------
// shadow memory

struct Access {
  uint32_t block, clock;
  uint16_t thread;
};

// One per byte of shared and device memory. A cell of an older launch (or, in shared memory, block)
// is empty.
struct Cell {
  uint32_t stamp = 0;
  Access write{}, read{};
  bool has_write = false, write_atomic = false, pending = false,
       write_async = false;  // async: by the async proxy (TMA)
  uint8_t readers = 0;       // 0, 1, 2 = see list
  uint32_t list = 0;
  const void* write_pc = nullptr;
};

struct Allocation {
  unsigned char* base;
  size_t size;
  std::string name;
  bool live;
  std::vector<uint8_t> initialised;
  std::vector<Cell> cells;
};

constexpr size_t kArenaBytes = size_t(8) << 30, kRedZone = 1024;

struct DeviceMemory {
  unsigned char *lo = nullptr, *hi = nullptr, *next = nullptr;
  std::vector<std::unique_ptr<Allocation>> allocations;  // by rising base
  std::mutex mutex;
  Allocation* cached = nullptr;

  Allocation* find(const void* p) {
    auto q = static_cast<const unsigned char*>(p);
    if (cached && q >= cached->base && q < cached->base + cached->size) return cached;
    auto it = std::upper_bound(allocations.begin(), allocations.end(), q,
                               [](const unsigned char* v, auto& a) { return v < a->base; });
    if (it == allocations.begin()) return nullptr;
    return cached = (--it)->get();  // may still end before p
  }
};
DeviceMemory& device_memory() {
  static DeviceMemory d;
  return d;
}

bool g_instrumented = false;  // set by __tsan_init of an instrumented object file
std::atomic<uint32_t> g_stamp{0};

// ----------------------------------------------------------------------------------------------
// execution state

enum class State : uint8_t { ready, waiting, done };

struct Copy {
  unsigned char* dst;
  const unsigned char* src;
  int bytes, source_bytes;
  const void* pc;
};

struct WgmmaOp {
  int n;
  bool accumulate, a_in_registers;
  uint64_t a, b;
  uint32_t a_registers[4];
  float* d;
  Loc loc;
};
struct Accumulator {  // the true value lives here while the registers are poisoned
  float* d;
  int n, in_flight;
  std::vector<float> value;
};
struct BulkStore {
  CUtensorMap map;
  int rank, coordinate[5];
  unsigned char* src;
  bool done;
};

struct Thread {
  std::vector<WgmmaOp> wgmma_open;
  std::deque<std::vector<WgmmaOp>> wgmma_groups;
  std::vector<Accumulator> accumulators;
  int accumulators_in_flight = 0;
  bool wgmma_fenced = false;
  std::vector<BulkStore> bulk_open;
  std::deque<std::vector<BulkStore>> bulk_groups;
  uint32_t fence_clock = 0;  // generic writes up to this clock are visible to the async proxy
  void* sp = nullptr;
  uint3 index{};
  int linear = 0;
  State state = State::ready;
  const char* wait_what = "";
  Loc wait_loc;
  std::vector<Copy> open_group;
  std::deque<std::vector<Copy>> groups;
  void* fake_stack = nullptr;
  unsigned char* stack_lo = nullptr;
};

struct Rendezvous {
  uint32_t mask = 0, arrived = 0;
  Collective fn = nullptr;
  const char* what = "";
  Loc loc;
  void* args[32];
};

struct Barrier {
  int arrived = 0, expected = 0, first = 0, reduce = 0, result = 0, op = 0;
  Loc loc;
  std::vector<int> waiting, arrivals;
};

struct Mbarrier {
  uint32_t offset = 0, phase = 0;  // phase counts completed phases
  int count = 0, pending = 0, init_thread = 0;
  uint32_t init_clock = 0;
  int64_t tx = 0;
  bool live = false, init_fenced = false;
  std::vector<uint32_t> gathering,
      complete;  // vector clocks of the arrivals of this phase, of all earlier ones
  std::vector<int> waiting;
};
struct TmaLoad {
  CUtensorMap map;
  int rank, coordinate[5];
  unsigned char* dst;
  int barrier;
  const void* pc;
};
struct Warpgroup {
  int arrived = 0, left = 0, registers = 0;
  Loc loc;
};
constexpr int kMaxMbarriers =
    64;  // each is a virtual thread of the vector clocks: the async proxy writing for it

struct Worker {
  std::vector<Mbarrier> mbarriers;
  std::deque<TmaLoad> tma_in_flight;
  std::vector<Warpgroup> warpgroups;
  std::vector<int> registers;  // per warp, 0: setmaxnreg never used
  int width = 0;               // of vector clocks: threads, then mbarriers
  // scheduling
  std::vector<Thread> threads;
  unsigned char *stacks = nullptr, *stacks_end = nullptr;
  size_t stack_bytes = 0, stack_count = 0;
  std::vector<uint16_t> ring;
  uint32_t head = 0, tail = 0;  // ring positions, modulo ring.size()
  Thread* current = nullptr;
  void* main_sp = nullptr;
  void* main_fake_stack = nullptr;
  const void* main_stack = nullptr;
  size_t main_stack_size = 0;
  int live = 0, count = 0;
  std::mt19937_64 rng;
  // block
  uint32_t block = 0, stamp = 0, block_stamp = 0;
  std::vector<std::vector<Rendezvous>> warps;
  Barrier barrier[16];
  unsigned char* smem = nullptr;
  size_t smem_bytes = 0;
  // launch
  void (*body)(void*) = nullptr;
  void* context = nullptr;
  size_t context_bytes = 0;
  const LaunchShape* shape = nullptr;
  Options opt;
  Stats stats{};
  // happens-before: thread t knows thread o up to max(base[o], row[t][o])
  bool checking = false;
  std::vector<uint32_t> clock, base;
  std::vector<std::vector<uint32_t>> row;
  std::vector<Cell> smem_cells;
  std::vector<std::vector<Access>> reader_lists;
  // report
  bool faulted = false;
  FaultKind fault_kind{};
  std::string fault_text;
  const void *fault_pc = nullptr, *fault_other_pc = nullptr;

  bool knows(int t, int other, uint32_t c) const {
    return t == other || c <= base[other] || (!row[t].empty() && c <= row[t][other]);
  }
};

thread_local Worker* W = nullptr;
thread_local const void* t_pc = nullptr;  // program counter of the access being checked
// The runtime's own accesses are not a kernel's: instrumented copies of std:: templates reach the
// callbacks from here too.
thread_local int t_in_runtime = 0;
struct RuntimeScope {
  RuntimeScope() { ++t_in_runtime; }
  ~RuntimeScope() { --t_in_runtime; }
};

void push_back(Worker& w, int t) { w.ring[w.tail++ & (w.ring.size() - 1)] = uint16_t(t); }
void push_front(Worker& w, int t) { w.ring[--w.head & (w.ring.size() - 1)] = uint16_t(t); }

Thread* pop(Worker& w) {
  if (w.head == w.tail) return nullptr;
  size_t mask = w.ring.size() - 1;
  if (w.opt.order == Order::random) {
    uint32_t n = w.tail - w.head, pick = w.head + uint32_t(w.rng() % n);
    std::swap(w.ring[pick & mask], w.ring[w.head & mask]);
  }
  return &w.threads[w.ring[w.head++ & mask]];
}

// Threads that a warp collective releases run next (their stacks are hot); those of a barrier queue
// up.
void wake(Worker& w, int t, bool soon) {
  w.threads[t].state = State::ready;
  soon ? push_front(w, t) : push_back(w, t);
}

void switch_stack(Worker& w, void** save_sp, void** save_fake, Thread* to) {
#if SIMT_ASAN
  if (to)
    __sanitizer_start_switch_fiber(save_fake, to->stack_lo, w.stack_bytes);
  else
    __sanitizer_start_switch_fiber(save_fake, w.main_stack, w.main_stack_size);
#else
  (void)save_fake;
#endif
  simt_switch(save_sp, to ? to->sp : w.main_sp);
}

void finish_switch([[maybe_unused]] void* fake, [[maybe_unused]] bool first_of_fiber) {
#if SIMT_ASAN
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(fake, &bottom, &size);
  if (first_of_fiber && W->main_stack == nullptr) W->main_stack = bottom, W->main_stack_size = size;
#endif
}

void resume(Worker& w, Thread& t) {
  w.current = &t;
  threadIdx = t.index;
  ++w.stats.switches;
}

std::string where(const Loc& l) {
  std::string f = l.file_name();
  return f.substr(f.rfind('/') + 1) + ":" + std::to_string(l.line());
}

std::string thread_name(const Worker& w, int t) {
  auto& i = w.threads[t].index;
  char s[64];
  if (w.shape->block.y * w.shape->block.z > 1)
    std::snprintf(s, sizeof s, "thread (%u,%u,%u)", i.x, i.y, i.z);
  else
    std::snprintf(s, sizeof s, "thread %u", i.x);
  return s;
}

[[noreturn]] void report_deadlock(Worker& w) {
  std::map<std::string, std::vector<int>> groups;
  for (auto& t : w.threads)
    if (t.linear < w.count)
      groups[t.state == State::done
                 ? std::string("has left the kernel")
                 : std::string("waits in ") + t.wait_what + " at " + where(t.wait_loc)]
          .push_back(t.linear);
  std::string s = "no thread can run:";
  for (auto& [k, v] : groups)
    s += "\n    " + std::to_string(v.size()) + (v.size() == 1 ? " thread " : " threads ") +
         "(first: " + std::to_string(v[0]) + ") " + k;
  for (auto& b : w.mbarriers)
    if (b.live)
      s += "\n    mbarrier #" + std::to_string(&b - w.mbarriers.data()) + " at shared byte " +
           std::to_string(b.offset) + ": phase " + std::to_string(b.phase) + " lacks " +
           std::to_string(b.pending) + " of " + std::to_string(b.count) + " arrivals and " +
           std::to_string(b.tx) + " bytes";
  fault(FaultKind::deadlock, s);
}

bool deliver_tma(Worker& w);

// Asynchronous copies arrive when no thread can run (as late as can be); in random order also now
// and then before.
Thread* next_thread(Worker& w) {
  if (w.opt.order == Order::random && !w.tma_in_flight.empty() && w.rng() % 8 == 0) deliver_tma(w);
  Thread* t;
  while (!(t = pop(w)) && deliver_tma(w)) {
  }
  return t;
}

// Gives up the processor until woken.
void wait_here(Worker& w, const char* what, const Loc& loc) {
  Thread& me = *w.current;
  me.state = State::waiting;
  me.wait_what = what;
  me.wait_loc = loc;
  Thread* next = next_thread(w);
  if (!next) report_deadlock(w);
  if (next == &me) return resume(w, me);
  resume(w, *next);
  switch_stack(w, &me.sp, &me.fake_stack, next);
  finish_switch(me.fake_stack, false);
}

void hopper_exit(Worker&, Thread&);

void thread_exit(Worker& w) {
  Thread& me = *w.current;
  me.state = State::done;
  --w.live;
  for (auto& g : me.groups)
    for (auto& c : g)
      (void)c,
          fault(FaultKind::async_copy, "thread leaves with cp.async copies it never waited for");
  if (!me.open_group.empty())
    fault(FaultKind::async_copy, "thread leaves with cp.async copies it never committed");
  int lane = me.linear % 32;
  for (auto& r : w.warps[me.linear / 32])
    if (r.arrived && (r.mask >> lane & 1))
      fault(FaultKind::bad_collective, "lane leaves the kernel while its warp waits for it in " +
                                           std::string(r.what) + " at " + where(r.loc));
  for (int b = 1; b < 16; ++b)
    for (int t : w.barrier[b].arrivals)
      if (t == me.linear && !w.live)
        fault(FaultKind::divergent_barrier,
              "block ends with an incomplete named barrier " + std::to_string(b));
  if (w.barrier[0].arrived)
    fault(FaultKind::divergent_barrier,
          "thread leaves the kernel while " + std::to_string(w.barrier[0].arrived) +
              " threads wait for it in __syncthreads at " + where(w.barrier[0].loc));
  hopper_exit(w, me);
  Thread* next = next_thread(w);
  if (!next && w.live) report_deadlock(w);
  if (next) resume(w, *next);
  switch_stack(w, &me.sp, nullptr, next);
  __builtin_unreachable();
}

void entry() {
  Worker& w = *W;
  finish_switch(nullptr, true);
  w.body(w.context);
  thread_exit(*W);
}

void prepare_stacks(Worker& w, int count) {
  size_t bytes = (w.opt.stack_bytes + 4095) & ~size_t(4095);
  if (w.stack_count >= size_t(count) && w.stack_bytes == bytes) return;
  if (w.stacks) munmap(w.stacks, size_t(w.stacks_end - w.stacks));
  size_t stride = bytes + 4096;
  w.stacks = static_cast<unsigned char*>(
      mmap(nullptr, stride * count, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0));
  if (w.stacks == MAP_FAILED) throw std::bad_alloc();
  w.stacks_end = w.stacks + stride * count;
  for (int i = 0; i < count; ++i) mprotect(w.stacks + stride * i, 4096, PROT_NONE);
  w.stack_bytes = bytes;
  w.stack_count = count;
}

void prepare_threads(Worker& w) {
  dim3 b = w.shape->block;
  size_t stride = w.stack_bytes + 4096;
  w.count = w.live = int(b.x * b.y * b.z);
  w.threads.resize(w.stack_count);
  int i = 0;
  for (unsigned z = 0; z < b.z; ++z)
    for (unsigned y = 0; y < b.y; ++y)
      for (unsigned x = 0; x < b.x; ++x, ++i) {
        Thread& t = w.threads[i];
        t.index = {x, y, z};
        t.linear = i;
        t.state = State::ready;
        t.open_group.clear();
        t.groups.clear();
        t.wgmma_open.clear(), t.wgmma_groups.clear(), t.accumulators.clear(), t.bulk_open.clear(),
            t.bulk_groups.clear();
        t.accumulators_in_flight = 0, t.wgmma_fenced = false, t.fence_clock = 0;
        t.fake_stack = nullptr;
        t.stack_lo = w.stacks + stride * i + 4096;
#if SIMT_ASAN
        ASAN_UNPOISON_MEMORY_REGION(t.stack_lo, w.stack_bytes);
#endif
        // Colour the tops: equal offsets in every stack would fight for the same cache sets.
        auto top = reinterpret_cast<uintptr_t>(t.stack_lo + w.stack_bytes) - 192 * size_t(i % 21);
        top &= ~uintptr_t(15);
        auto sp = reinterpret_cast<void**>(top) - 8;
        for (int k = 0; k < 6; ++k) sp[k] = nullptr;
        sp[6] = reinterpret_cast<void*>(&entry);
        sp[7] = nullptr;
        t.sp = sp;
      }
}

void check_launch(const LaunchShape& s, const Options& o) {
  auto refuse = [&](const std::string& t) {
    throw Fault(FaultKind::launch_config, std::string(s.name) + ": launch refused: " + t);
  };
  size_t threads = size_t(s.block.x) * s.block.y * s.block.z;
  if (threads == 0 || threads > 1024) refuse("block of " + std::to_string(threads) + " threads");
  if (s.block.z > 64) refuse("block.z above 64");
  if (!s.grid.x || !s.grid.y || !s.grid.z) refuse("empty grid");
  if (s.grid.x > 2147483647u || s.grid.y > 65535 || s.grid.z > 65535)
    refuse("grid too large in y or z");
  if (s.smem_bytes > o.max_smem_bytes)
    refuse(std::to_string(s.smem_bytes) + " bytes of shared memory, the device has " +
           std::to_string(o.max_smem_bytes));
}

void run_block(Worker& w, uint32_t block) {
  dim3 g = w.shape->grid;
  w.block = block;
  blockIdx = {block % g.x, block / g.x % g.y, block / g.x / g.y};
  prepare_threads(w);
  if (w.smem_bytes) std::memset(w.smem, 0xff, w.smem_bytes);  // NaN in fp32, bf16 and fp8
  w.warps.resize((w.count + 31) / 32);
  for (auto& v : w.warps) v.clear();
  for (auto& b : w.barrier) b = Barrier{};
  w.mbarriers.clear();
  w.tma_in_flight.clear();
  w.warpgroups.assign((w.count + 127) / 128, {});
  w.registers.assign((w.count + 31) / 32, 0);
  w.width = w.count + kMaxMbarriers;
  w.head = w.tail = 0;
  for (int i = 0; i < w.count; ++i)
    push_back(w, w.opt.order == Order::backward ? w.count - 1 - i : i);
  if (w.checking) {
    w.block_stamp = ++g_stamp;
    w.clock.assign(w.count, 1);
    w.base.assign(w.width, 0);
    w.row.assign(w.count, {});
  }
  ++w.stats.blocks;
  w.stats.threads += w.count;
  Thread* first = pop(w);
  resume(w, *first);
  t_in_runtime = 0;  // an earlier fault abandoned its scopes
  W = &w;
  void* fake = nullptr;
  switch_stack(w, &w.main_sp, &fake, first);
  finish_switch(fake, false);
  W = nullptr;
}

std::string symbol(const void* pc) {
  Dl_info info;
  if (!pc || !dladdr(pc, &info)) return "?";
  char command[4200], line[1024] = "";
  std::snprintf(
      command, sizeof command, "addr2line -Cfpi -e %s 0x%lx 2>/dev/null", info.dli_fname,
      (unsigned long)(static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase) - 1));
  std::string out;
  if (FILE* f = popen(command, "r")) {
    while (std::fgets(line, sizeof line, f)) {
      std::string s = line;
      while (!s.empty() && s.back() == '\n') s.pop_back();
      // keep "file.cu:12" of each inlined frame
      auto at = s.rfind(" at ");
      if (at == std::string::npos) continue;
      s = s.substr(at + 4);
      s = s.substr(s.rfind('/') + 1);
      if (s.rfind("kernels/simt_host/simt.h", 0) == 0) continue;
      if (auto d = s.find(" (disc"); d != std::string::npos) s = s.substr(0, d);
      out += (out.empty() ? "" : " < ") + s;
    }
    pclose(f);
  }
  return out.empty() ? "?" : out;
}

void merge(Stats& a, const Stats& b) {
  a.blocks += b.blocks, a.threads += b.threads, a.switches += b.switches, a.barriers += b.barriers;
  a.collectives += b.collectives, a.atomics += b.atomics, a.float_atomics += b.float_atomics;
  a.loads += b.loads, a.stores += b.stores, a.async_copies += b.async_copies;
  a.tma_loads += b.tma_loads, a.tma_stores += b.tma_stores, a.wgmmas += b.wgmmas,
      a.mbarrier_phases += b.mbarrier_phases;
  a.proxy_fences += b.proxy_fences;
}

Worker& worker_of_this_thread() {
  static thread_local std::unique_ptr<Worker> w;
  if (!w) w = std::make_unique<Worker>();
  return *w;
}

constexpr size_t kSmemMax = 256 << 10;

void run_some(const LaunchShape& shape, const Options& opt, void (*body)(void*), void* context,
              size_t context_bytes, const std::vector<uint32_t>& blocks, std::atomic<size_t>& next,
              std::atomic<bool>& stop, uint32_t stamp, Worker& w) {
  w.opt = opt;
  w.shape = &shape;
  w.body = body;
  w.context = context;
  w.context_bytes = context_bytes;
  w.faulted = false;
  w.fault_pc = w.fault_other_pc = t_pc = nullptr;
  w.stats = {};
  w.stamp = stamp;
  w.rng.seed(opt.seed);
  w.reader_lists.assign(1, {});  // cells of device memory name lists for the whole launch
  w.checking = g_instrumented && opt.check_memory && opt.workers == 1;
  int count = int(shape.block.x * shape.block.y * shape.block.z);
  prepare_stacks(w, count);
  w.ring.resize(2048);
  if (!w.smem) {
    // The block's bytes end where an inaccessible page begins only for page multiples; the shadow
    // checks the rest.
    w.smem = static_cast<unsigned char*>(mmap(nullptr, kSmemMax + 8192, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    mprotect(w.smem + kSmemMax, 4096, PROT_NONE);
  }
#if SIMT_ASAN
  ASAN_POISON_MEMORY_REGION(w.smem, kSmemMax);
  ASAN_UNPOISON_MEMORY_REGION(w.smem, shape.smem_bytes);
#endif
  w.smem_bytes = shape.smem_bytes;
  if (w.checking && w.smem_cells.size() < w.smem_bytes) w.smem_cells.resize(w.smem_bytes);
  blockDim = shape.block;
  gridDim = shape.grid;
  while (!stop) {
    size_t i = next++;
    if (i >= blocks.size()) break;
    run_block(w, blocks[i]);
    if (w.faulted) stop = true;
  }
}

}  // namespace

void run_grid(const LaunchShape& shape, void (*body)(void*), void* context, size_t context_bytes) {
  const Options& opt = options();
  check_launch(shape, opt);
  if (W) throw Fault(FaultKind::launch_config, "launch inside a kernel");
  std::vector<uint32_t> blocks(size_t(shape.grid.x) * shape.grid.y * shape.grid.z);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = uint32_t(i);
  if (opt.order == Order::backward) std::reverse(blocks.begin(), blocks.end());
  if (opt.order == Order::random)
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(opt.seed));
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  uint32_t stamp = ++g_stamp;
  int n = std::max(1, std::min<int>(opt.workers, int(blocks.size())));
  std::vector<Worker*> workers(n);
  std::vector<std::unique_ptr<Worker>> owned(n);
  std::vector<std::thread> pool;
  workers[0] = &worker_of_this_thread();
  for (int i = 1; i < n; ++i) {
    owned[i] = std::make_unique<Worker>();
    workers[i] = owned[i].get();
    pool.emplace_back([&, i] {
      run_some(shape, opt, body, context, context_bytes, blocks, next, stop, stamp, *workers[i]);
    });
  }
  run_some(shape, opt, body, context, context_bytes, blocks, next, stop, stamp, *workers[0]);
  for (auto& t : pool) t.join();
  for (auto* w : workers) merge(stats(), w->stats);
  for (auto* w : workers)
    if (w->faulted) {
      std::string s =
          std::string(shape.name) + ": " + name_of(w->fault_kind) + ": " + w->fault_text;
      if (w->fault_pc) s += "\n    at " + symbol(w->fault_pc);
      if (w->fault_other_pc) s += "\n    the other access at " + symbol(w->fault_other_pc);
      throw Fault(w->fault_kind, s);
    }
}

void fault(FaultKind kind, const std::string& text) {
  Worker* w = W;
  if (!w) throw Fault(kind, text);
  if (!w->faulted) {
    w->faulted = true;
    w->fault_kind = kind;
    dim3 b = blockIdx;
    char at[96];
    std::snprintf(at, sizeof at, "block (%u,%u,%u) ", b.x, b.y, b.z);
    w->fault_text = at + thread_name(*w, w->current->linear) + ": " + text;
    w->fault_pc = t_pc;
  }
  // The other fibers are abandoned: a kernel owns nothing that needs a destructor.
  switch_stack(*w, &w->current->sp, nullptr, nullptr);
  __builtin_unreachable();
}

// ----------------------------------------------------------------------------------------------
// barriers, collectives

void shuffle_source_fault(int lane) {
  fault(FaultKind::bad_collective,
        "shuffle reads lane " + std::to_string(lane) + ", which is not in the mask");
}

int lane_id() { return W->current->linear & 31; }

unsigned char* dynamic_smem(size_t needed, Loc loc) {
  Worker& w = *W;
  if (needed > w.smem_bytes)
    fault(FaultKind::out_of_bounds, "smem<T>() at " + where(loc) + " needs " +
                                        std::to_string(needed) + " bytes, the launch gave " +
                                        std::to_string(w.smem_bytes));
  return w.smem;
}

namespace {

void order_all(Worker& w) {
  if (!w.checking) return;
  for (int i = 0; i < w.count; ++i) w.base[i] = w.clock[i]++;
  for (auto& r : w.row) {
    for (size_t i = size_t(w.count); i < r.size(); ++i) w.base[i] = std::max(w.base[i], r[i]);
    r.clear();
  }
}

template <class Each>
void order_some(Worker& w, Each each) {
  if (!w.checking) return;
  std::vector<uint32_t> joined(w.width, 0);
  each([&](int t) {
    if (!w.row[t].empty())
      for (int i = 0; i < w.width; ++i) joined[i] = std::max(joined[i], w.row[t][i]);
    joined[t] = std::max(joined[t], w.clock[t]);
  });
  each([&](int t) { w.row[t] = joined, ++w.clock[t]; });
}

int barrier_arrive(int id, int expected, int op, int value, bool wait, Loc loc) {
  Worker& w = *W;
  Barrier& b = w.barrier[id];
  int me = w.current->linear;
  if (id == 0 && w.live < w.count)
    fault(FaultKind::divergent_barrier,
          std::to_string(w.count - w.live) +
              " threads have left the kernel before __syncthreads at " + where(loc));
  if (b.arrived == 0) {
    b.loc = loc, b.first = me, b.expected = expected, b.op = op, b.reduce = op == 1;
  } else {
    if (id == 0 && (b.loc.line() != loc.line() || std::strcmp(b.loc.file_name(), loc.file_name())))
      fault(FaultKind::divergent_barrier, "waits in __syncthreads at " + where(loc) + " while " +
                                              thread_name(w, b.first) + " waits at " +
                                              where(b.loc));
    if (b.expected != expected)
      fault(FaultKind::divergent_barrier,
            "barrier " + std::to_string(id) + " used with two thread counts");
  }
  if (op == 0) b.reduce += value != 0;
  if (op == 1) b.reduce &= value != 0;
  if (op == 2) b.reduce |= value != 0;
  b.arrivals.push_back(me);
  if (++b.arrived == expected) {
    ++w.stats.barriers;
    b.arrived = 0;
    b.result = b.reduce;
    if (id == 0)
      order_all(w);
    else
      order_some(w, [&](auto f) {
        for (int t : b.arrivals) f(t);
      });
    b.arrivals.clear();
    if (w.opt.order == Order::backward)
      for (auto it = b.waiting.rbegin(); it != b.waiting.rend(); ++it) wake(w, *it, false);
    else
      for (int t : b.waiting) wake(w, t, false);
    b.waiting.clear();
  } else if (wait) {
    b.waiting.push_back(me);
    wait_here(w, id == 0 ? "__syncthreads" : "a named barrier", loc);
  }
  return w.barrier[id].result;
}

}  // namespace

void block_barrier(Loc loc) { barrier_arrive(0, W->count, 0, 0, true, loc); }
int block_barrier_reduce(int op, int value, Loc loc) {
  return barrier_arrive(0, W->count, op, value, true, loc);
}
void named_barrier(int id, int threads, bool wait, Loc loc) {
  if (id < 1 || id > 15 || threads % 32 || threads <= 0 || threads > W->count)
    fault(FaultKind::bad_collective,
          "named barrier " + std::to_string(id) + " with " + std::to_string(threads) + " threads");
  barrier_arrive(id, threads, 0, 0, wait, loc);
}

void warp_collective(uint32_t mask, Collective fn, void* arg, const char* what, Loc loc) {
  Worker& w = *W;
  Thread& me = *w.current;
  int lane = me.linear & 31, warp = me.linear >> 5;
  auto& open = w.warps[warp];
  if (!(mask >> lane & 1))
    fault(FaultKind::bad_collective,
          std::string(what) + " at " + where(loc) + ": the mask lacks the calling lane");
  Rendezvous* r = nullptr;
  for (auto& o : open) {
    if (!o.arrived) {
      if (!r) r = &o;
      continue;
    }
    if (o.mask == mask) {
      r = &o;
      break;
    }
    if (o.mask & mask)
      fault(FaultKind::bad_collective, std::string(what) + " at " + where(loc) +
                                           " overlaps another mask, of " + o.what + " at " +
                                           where(o.loc));
  }
  if (!r) r = &open.emplace_back();
  size_t index = size_t(r - open.data());
  if (r->arrived == 0) {
    r->mask = mask, r->fn = fn, r->what = what, r->loc = loc;
    uint32_t rest = warp == (w.count - 1) / 32 && w.count % 32 ? (1u << w.count % 32) - 1 : ~0u;
    if (mask & ~rest)
      fault(FaultKind::bad_collective,
            std::string(what) + " at " + where(loc) + " names lanes the block does not have");
    for (int l = 0; l < 32; ++l)
      if ((mask >> l & 1) && w.threads[warp * 32 + l].state == State::done)
        fault(FaultKind::bad_collective, std::string(what) + " at " + where(loc) + " names lane " +
                                             std::to_string(l) + ", which has left the kernel");
  } else if (r->fn != fn || r->loc.line() != loc.line() ||
             std::strcmp(r->loc.file_name(), loc.file_name())) {
    fault(FaultKind::bad_collective,
          std::string("lane ") + std::to_string(lane) + " is in " + what + " at " + where(loc) +
              ", other lanes of its warp are in " + r->what + " at " + where(r->loc));
  }
  r->args[lane] = arg;
  r->arrived |= 1u << lane;
  if (r->arrived != mask) {
    wait_here(w, what, loc);
    return;
  }
  ++w.stats.collectives;
  if (fn) {
    RuntimeScope scope;
    fn(mask, r->args);
  }
  r = &w.warps[warp][index];
  r->arrived = 0;
  bool backward = w.opt.order == Order::backward;
  for (int k = 31; k >= 0; --k) {
    int l = backward ? 31 - k : k;
    if (l != lane && (mask >> l & 1)) wake(w, warp * 32 + l, true);
  }
}

void warp_barrier(uint32_t mask, Loc loc) {
  warp_collective(
      mask,
      [](uint32_t m, void* const*) {
        Worker& w = *W;
        int warp = w.current->linear >> 5;
        order_some(w, [&](auto f) {
          for (int l = 0; l < 32; ++l)
            if (m >> l & 1) f(warp * 32 + l);
        });
      },
      nullptr, "__syncwarp", loc);
}

void yield() {
  Worker& w = *W;
  if (w.head == w.tail) deliver_tma(w);
  push_back(w, w.current->linear);
  wait_here(w, "a spin loop", Loc::current());
}

// ----------------------------------------------------------------------------------------------
// memory checks

namespace {

std::string describe(Worker& w, const void* p, Allocation* a) {
  auto q = static_cast<const unsigned char*>(p);
  if (a)
    return "byte " + std::to_string(q - a->base) + " of '" + a->name + "' (" +
           std::to_string(a->size) + " bytes)";
  return "byte " + std::to_string(q - w.smem) + " of shared memory (" +
         std::to_string(w.smem_bytes) + " bytes)";
}

std::string describe(const Worker& w, const Access& x) {
  if (x.thread >= w.count)
    return "a TMA load that completes on mbarrier #" + std::to_string(x.thread - w.count);
  std::string s = thread_name(w, x.thread);
  if (x.block != w.block) s += " of block " + std::to_string(x.block);
  return s;
}

enum class Kind { read, write, atomic };

// Before the caller's access: is an earlier one unordered with it?
constexpr uint32_t kInFlight =
    ~0u;  // clock of a read by TMA or wgmma that was not waited for: ordered with nothing
bool ordered(Worker& w, const Access& x, int me) {
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
      fault(FaultKind::async_copy, std::string(kind == Kind::read ? "reads " : "writes ") +
                                       describe(w, p + i, a) + ", the target of a copy by " +
                                       describe(w, c.write) + " that is not complete");
    if (kind != Kind::write && !initialised) fault(FaultKind::uninitialised, describe(w, p + i, a));
    if (races && c.has_write && !(kind == Kind::atomic && c.write_atomic) &&
        !ordered(w, c.write, me)) {
      w.fault_other_pc = c.write_pc;
      if (c.write.thread >= w.count)
        fault(FaultKind::async_copy, std::string(kind == Kind::read ? "reads " : "writes ") +
                                         describe(w, p + i, a) + ", target of " +
                                         describe(w, c.write) + ", with no wait for it");
      fault(FaultKind::race, std::string(kind == Kind::read ? "reads " : "writes ") +
                                 describe(w, p + i, a) + ", written by " + describe(w, c.write) +
                                 " with no barrier between");
    }
    if (kind == Kind::read) {
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
        fault(FaultKind::race,
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
    c.write_atomic = kind == Kind::atomic;
    c.write_async = false;
    c.write_pc = t_pc;
    if (a) a->initialised[size_t(p + i - a->base)] = 1;
  }
}

extern "C" char __executable_start, _end;

bool in(const void* p, const void* lo, const void* hi) { return p >= lo && p < hi; }

void check(Worker& w, void* address, size_t n, int me, Kind kind, size_t align) {
  auto p = static_cast<unsigned char*>(address);
  kind == Kind::write ? ++w.stats.stores : ++w.stats.loads;
  if (in(p, w.smem, w.smem + kSmemMax + 4096)) {
    if (p + n > w.smem + w.smem_bytes)
      fault(FaultKind::out_of_bounds, std::to_string(n) + " bytes at " + describe(w, p, nullptr));
    if (align > 1 && reinterpret_cast<uintptr_t>(p) % align)
      fault(FaultKind::misaligned,
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
      fault(FaultKind::out_of_bounds, std::to_string(n) + " bytes at byte " +
                                          (a ? std::to_string(p - a->base) + " of '" + a->name +
                                                   "' (" + std::to_string(a->size) + " bytes)"
                                             : "before any allocation"));
    if (!a->live) fault(FaultKind::out_of_bounds, "'" + a->name + "' has been freed");
    if (align > 1 && reinterpret_cast<uintptr_t>(p) % align)
      fault(FaultKind::misaligned, std::to_string(n) + "-byte access to " + describe(w, p, a));
    if (!w.checking) return;
    if (a->cells.empty()) a->cells.resize(a->size);
    check_cells(w, &a->cells[size_t(p - a->base)], w.stamp, a, p, n, me, kind,
                w.opt.check_global_races);
    return;
  }
  if (in(p, w.stacks, w.stacks_end)) {
    Thread& t = w.threads[me];
    if (!in(p, t.stack_lo, t.stack_lo + w.stack_bytes))
      fault(FaultKind::out_of_bounds, "access to another thread's local memory");
    return;
  }
  if (in(p, &__executable_start, &_end)) return;                                  // constant tables
  if (in(p, w.context, static_cast<char*>(w.context) + w.context_bytes)) return;  // arguments
  auto tls = reinterpret_cast<uintptr_t>(&threadIdx), q = reinterpret_cast<uintptr_t>(p);
  if (q > tls - (1 << 20) && q < tls + (1 << 16)) return;  // built-ins, static __shared__
  fault(FaultKind::host_memory,
        std::to_string(n) + " bytes at an address that is neither device, shared nor local memory");
}

void check_accumulators(Worker& w, const void* p, Kind kind) {
  for (auto& a : w.current->accumulators)
    if (a.in_flight && in(p, a.d, a.d + a.n / 2))
      fault(FaultKind::wgmma, std::string(kind == Kind::read ? "reads" : "writes") +
                                  " accumulator register " +
                                  std::to_string(static_cast<const float*>(p) - a.d) +
                                  " of a wgmma that was not waited for");
}

void hook(const void* p, size_t n, Kind kind, size_t align, const void* pc) {
  Worker* w = W;
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

void complete(Worker& w, Copy& c) {
  int me = w.current->linear;
  if (w.opt.late_copies) {
    std::memcpy(c.dst, c.src, size_t(c.source_bytes));
    std::memset(c.dst + c.source_bytes, 0, size_t(c.bytes - c.source_bytes));
  }
  if (!w.checking) return;
  Cell* cells = &w.smem_cells[size_t(c.dst - w.smem)];
  for (int i = 0; i < c.bytes; ++i) cells[i].pending = false, cells[i].write.clock = w.clock[me];
}

}  // namespace

void note_read(const void* p, size_t n, int thread) {
  if (W)
    check(*W, const_cast<void*>(p), n, thread < 0 ? W->current->linear : thread, Kind::read, 1);
}
void note_write(void* p, size_t n, int thread) {
  if (W) check(*W, p, n, thread < 0 ? W->current->linear : thread, Kind::write, 1);
}
void note_atomic(void* p, size_t n, bool is_float) {
  if (!W) return;
  ++W->stats.atomics;
  W->stats.float_atomics += is_float;
  check(*W, p, n, W->current->linear, Kind::atomic, n);
}

void async_issue(void* dst, const void* src, int bytes, int source_bytes) {
  Worker& w = *W;
  int me = w.current->linear;
  auto d = static_cast<unsigned char*>(dst);
  ++w.stats.async_copies;
  t_pc = __builtin_return_address(0);
  if (source_bytes < 0 || source_bytes > bytes)
    fault(FaultKind::async_copy, "cp.async with " + std::to_string(source_bytes) + " source bytes");
  if (!in(d, w.smem, w.smem + kSmemMax))
    fault(FaultKind::out_of_bounds, "cp.async target is not in shared memory");
  if (reinterpret_cast<uintptr_t>(dst) % bytes || reinterpret_cast<uintptr_t>(src) % bytes)
    fault(FaultKind::misaligned,
          "cp.async needs both sides " + std::to_string(bytes) + "-byte aligned");
  if (source_bytes) check(w, const_cast<void*>(src), size_t(source_bytes), me, Kind::read, 1);
  check(w, dst, size_t(bytes), me, Kind::write, 1);
  if (w.opt.late_copies) {
    std::memset(dst, 0xff, size_t(bytes));
  } else {
    std::memcpy(dst, src, size_t(source_bytes));
    std::memset(d + source_bytes, 0, size_t(bytes - source_bytes));
  }
  if (w.checking)
    for (int i = 0; i < bytes; ++i) w.smem_cells[size_t(d + i - w.smem)].pending = true;
  w.current->open_group.push_back(
      {d, static_cast<const unsigned char*>(src), bytes, source_bytes, t_pc});
  t_pc = nullptr;
}

void check_alignment(const void* p, size_t bytes) {
  if (W && reinterpret_cast<uintptr_t>(p) % bytes)
    fault(FaultKind::misaligned, std::to_string(bytes) + "-byte access");
}

void async_commit() {
  Thread& t = *W->current;
  t.groups.push_back(std::move(t.open_group));
  t.open_group.clear();
}

void async_wait(int left) {
  Thread& t = *W->current;
  while (int(t.groups.size()) > left) {
    for (auto& c : t.groups.front()) complete(*W, c);
    t.groups.pop_front();
  }
}

#include "kernels/simt_host/hopper.inc"

// ----------------------------------------------------------------------------------------------
// device memory

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
    throw Fault(FaultKind::out_of_bounds, "device_free of an address that was not allocated");
  a->live = false;  // never reused: later accesses are found
  a->initialised = {}, a->cells = {};
  madvise(a->base, a->size, MADV_DONTNEED);
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
    throw Fault(FaultKind::out_of_bounds,
                std::string(what) + ": range is not inside one allocation");
}

void device_mark_initialised(const void* p, size_t n) {
  auto& d = device_memory();
  std::lock_guard lock(d.mutex);
  Allocation* a = d.find(p);
  std::fill_n(a->initialised.begin() + (static_cast<const unsigned char*>(p) - a->base), n, 1);
}

}  // namespace trireme::simt

unsigned __ballot_sync(unsigned mask, int predicate, trireme::simt::Loc loc) {
  struct Arg {
    int predicate;
    unsigned result;
  } a{predicate, 0};
  trireme::simt::warp_collective(
      mask,
      [](uint32_t m, void* const* lanes) {
        unsigned r = 0;
        for (int l = 0; l < 32; ++l)
          if ((m >> l & 1) && static_cast<Arg*>(lanes[l])->predicate) r |= 1u << l;
        for (int l = 0; l < 32; ++l)
          if (m >> l & 1) static_cast<Arg*>(lanes[l])->result = r;
      },
      &a, "__ballot_sync", loc);
  return a.result;
}

// ----------------------------------------------------------------------------------------------
// -fsanitize=thread callbacks

extern "C" {
#define SIMT_PC __builtin_return_address(0)
#define SIMT_SIZE(N)                                                   \
  void __tsan_read##N(void* p) {                                       \
    trireme::simt::hook(p, N, trireme::simt::Kind::read, N, SIMT_PC);  \
  }                                                                    \
  void __tsan_write##N(void* p) {                                      \
    trireme::simt::hook(p, N, trireme::simt::Kind::write, N, SIMT_PC); \
  }                                                                    \
  void __tsan_unaligned_read##N(void* p) {                             \
    trireme::simt::hook(p, N, trireme::simt::Kind::read, 1, SIMT_PC);  \
  }                                                                    \
  void __tsan_unaligned_write##N(void* p) {                            \
    trireme::simt::hook(p, N, trireme::simt::Kind::write, 1, SIMT_PC); \
  }                                                                    \
  void __tsan_volatile_read##N(void* p) {                              \
    trireme::simt::hook(p, N, trireme::simt::Kind::read, N, SIMT_PC);  \
  }                                                                    \
  void __tsan_volatile_write##N(void* p) {                             \
    trireme::simt::hook(p, N, trireme::simt::Kind::write, N, SIMT_PC); \
  }
SIMT_SIZE(1)
SIMT_SIZE(2) SIMT_SIZE(4) SIMT_SIZE(8) SIMT_SIZE(16) void __tsan_read_range(void* p, size_t n) {
  trireme::simt::hook(p, n, trireme::simt::Kind::read, 1, SIMT_PC);
}
void __tsan_write_range(void* p, size_t n) {
  trireme::simt::hook(p, n, trireme::simt::Kind::write, 1, SIMT_PC);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() { trireme::simt::g_instrumented = true; }
}
