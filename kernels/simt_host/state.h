#pragma once
// What the files of this folder share: the state of a block under execution, and the functions by
// which they call each other. Nothing outside the folder includes this file.
//
// clang-format off
//   launch.cc       options, launches, blocks, OS threads   scheduler.cc   fibers
//   collectives.cc  barriers, warp collectives              cp_async.cc    copies of sm_80
//   mbarrier.cc, tma.cc, wgmma.cc  Hopper                   ptx.cc         mma.sync, ldmatrix
//   shadow.cc       checks of loads and stores              report.cc      faults and their texts
//   device_memory.cc  allocations                           streams.cc, graphs.cc, cudart.cc
// clang-format on

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <unordered_map>
#include <vector>

#include "kernels/simt_host/shadow.h"
#include "kernels/simt_host/simt.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SIMT_ASAN 1
#else
#define SIMT_ASAN 0
#endif

namespace trireme::simt {

inline bool in(const void* p, const void* lo, const void* hi) { return p >= lo && p < hi; }

enum class Kind { kRead, kWrite, kAtomic };

// ---- a thread, a block ----

enum class State : uint8_t { kReady, kWaiting, kDone };

struct Copy {  // cp.async
  unsigned char* dst;
  const unsigned char* src;
  int bytes, source_bytes;
  const void* pc;
};

struct WgmmaOp {
  WgmmaShape shape;
  bool a_in_registers;
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
  bool done, adds;
  float* add_to = nullptr;  // a reduction that has no map
  uint32_t add_bytes = 0;
};

struct Thread {
  std::vector<WgmmaOp> wgmma_open;
  std::deque<std::vector<WgmmaOp>> wgmma_groups;
  std::vector<Accumulator> accumulators;
  int accumulators_in_flight = 0;
  bool wgmma_fenced = false;
  std::vector<BulkStore> bulk_open;
  std::deque<std::vector<BulkStore>> bulk_groups;
  const int* turn = nullptr;   // the count of the turn that has begun
  bool turn_unfenced = false;  // no proxy fence followed its beginning
  bool bulk_unfenced = false;  // nor the completion of reductions
  uint32_t fence_clock = 0;    // generic writes up to this clock are visible to the async proxy
  void* sp = nullptr;
  uint3 index{};
  int linear = 0;
  State state = State::kReady;
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
  int arrived = 0, expected = 0, first = 0;
  Loc loc;
  std::vector<int> waiting, arrivals;
};

struct Mbarrier {
  uint32_t offset = 0, phase = 0;  // phase counts completed phases
  int count = 0, pending = 0, init_thread = 0;
  uint32_t init_clock = 0;
  int64_t tx = 0;
  bool live = false, init_fenced = false;
  // Of the arrivals of this phase, of all earlier ones.
  std::vector<uint32_t> gathering;
  std::shared_ptr<const std::vector<uint32_t>> complete;
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
/// Each is a virtual thread of the vector clocks: the async proxy writing for it.
constexpr int kMaxMbarriers = 64;

/// Of one block; those of a cluster stand as far apart.
constexpr size_t kSmemMax = 256 << 10;
constexpr int kClusterMax = 2;
/// Barriers of a block: 0 is __syncthreads, 16 that of the cluster (the first block has it).
constexpr int kBarriers = 17, kClusterBarrier = 16;

/// What a thread knows of others; shared by threads that met, never changed.
using Clocks = std::shared_ptr<const std::vector<uint32_t>>;
/// The greater of each; null stands for zeros.
Clocks joined(const Clocks&, const Clocks&);

/// What a thread knew of its block when it ended a turn: up to which clock, by thread.
struct HandedOn {
  uint32_t block;
  std::vector<uint32_t> clocks;
};
using TurnsEnded = std::vector<std::shared_ptr<const HandedOn>>;
/// A turn's beginning: those who know the thread at that clock know what earlier turns handed on.
struct TurnBegun {
  int thread;
  uint32_t clock;
  TurnsEnded earlier;
};

/// An OS thread that executes blocks.
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
  uint32_t spinning = 0;        // threads that wait for a turn, the current one among them
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
  Barrier barrier[kClusterMax][kBarriers];
  int cluster = 1, block_threads = 0, block_live[kClusterMax] = {};
  uint3 block_index[kClusterMax] = {};
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
  std::vector<Clocks> row;  // null: nothing beyond base
  uint32_t epoch = 0;       // counts barriers of all threads; what was read before one is ordered
  std::unordered_map<const int*, TurnsEnded> turns_ended;  // of this launch, by their count
  std::vector<TurnBegun> turns_begun;                      // of this block
  Shadow smem_shadow;
  ReaderLists smem_readers, device_readers;  // of this block, of this launch
  // report
  bool faulted = false;
  FaultKind fault_kind{};
  std::string fault_text;
  std::string fault_at;  // of a built-in; else fault_pc says where
  const void *fault_pc = nullptr, *fault_other_pc = nullptr;

  /// Nobody is ready but threads that wait for a turn.
  bool only_spins() const { return tail - head < spinning; }
  /// Of the current thread in its cluster.
  int rank() const { return current->linear / block_threads; }
  bool knows(int t, int other, uint32_t c) const {
    return t == other || c <= base[other] || (row[t] && c <= (*row[t])[other]);
  }
};

/// The worker whose kernel runs on this OS thread; null outside kernels.
inline constinit thread_local Worker* t_worker = nullptr;
/// Program counter of the access being checked.
inline constinit thread_local const void* t_pc = nullptr;
/// Where the kernel called a built-in that is being checked; otherwise null.
inline constinit thread_local const Loc* t_loc = nullptr;
struct LocScope {
  explicit LocScope(const Loc& loc) { t_loc = &loc; }
  ~LocScope() { t_loc = nullptr; }
};
/// The runtime's own accesses: instrumented std:: templates reach shadow.cc from here too.
inline constinit thread_local int t_in_runtime = 0;
struct RuntimeScope {
  RuntimeScope() { ++t_in_runtime; }
  ~RuntimeScope() { --t_in_runtime; }
};

// ---- scheduler.cc ----
void prepare_stacks(Worker&, int count);
void prepare_threads(Worker&);
/// Runs the fibers of a prepared block until all have left or one has faulted.
void run_fibers(Worker&);
/// Gives up the processor until woken.
void wait_here(Worker&, const char* what, const Loc&);
/// soon: before all others (stacks are hot), as after a warp collective; else at the queue's end.
void wake(Worker&, int thread, bool soon);
/// Back to run_fibers, abandoning all fibers: a kernel owns nothing that needs a destructor.
[[noreturn]] void leave_for_launch(Worker&);
void enqueue_thread(Worker&, int thread);

/// Compares the pointers first: mostly they are the same.
inline bool same_place(const Loc& a, const Loc& b) {
  return a.line() == b.line() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

// ---- report.cc ----
std::string where(const Loc&);
std::string thread_name(const Worker&, int thread);
std::string describe(const Worker&, const void* p, const Allocation*);
std::string describe(const Worker&, const Access&);
/// "file.cu:12 < caller.cu:30" of a program counter.
std::string symbol(const void* pc);
[[noreturn]] void report_deadlock(Worker&);

// ---- shadow.cc ----
/// Whether a file of kernels was compiled with -fsanitize=thread.
bool instrumented();
void set_instrumented();
bool ordered(const Worker&, const Access&, int me);
/// Whether thread me knows it of another block, by turns.
bool handed_on(const Worker&, const Access&, int me);
/// Of the last write.
const void* pc_of(const Cell&);
void check(Worker&, void* address, size_t, int me, Kind, size_t align);
/// The cells of shared memory, as Shadow::each.
template <class F>
void each_smem_cell(Worker& w, size_t offset, size_t bytes, F f) {
  w.smem_shadow.each(offset, bytes, w.stamp, w.block_stamp, w.smem_readers, f);
}
void add_reader(Worker&, Cell&, ReaderLists&, const Access&);

// ---- collectives.cc ----
/// After a barrier among some threads each knows what each of them knew.
void order_some(Worker&, const std::vector<int>& threads);

// ---- mbarrier.cc, tma.cc, wgmma.cc ----
uint32_t smem_offset(Worker&, const void*, const char* what);
/// In rows of 128 or 64 bytes: 16-byte parts of 1024 or 512 bytes, exchanged inside each row.
uint32_t swizzled(uint32_t offset, uint32_t row_bytes);
Mbarrier& find_mbarrier(Worker&, const uint64_t* bar, const char* what);
Mbarrier& find_mbarrier(Worker&, uint32_t offset, const char* what);
/// The same place in the shared memory of a block of the cluster, which must not have left.
uint32_t offset_in(Worker&, uint32_t offset, int rank, const char* what);
void try_complete(Worker&, Mbarrier&);
/// Checks an async proxy's read (TMA store, wgmma) for thread me, until end_async_read.
void check_async_read(Worker&, uint32_t offset, uint32_t bytes, int me, bool record,
                      const char* what);
void end_async_read(Worker&, uint32_t offset, uint32_t bytes, int me);
/// One TMA load arrives; false where none is under way.
bool deliver_tma(Worker&);
/// What a thread may not leave behind: copies, stores and products under way.
void check_copies_at_exit(const Thread&);
void check_hopper_at_exit(Worker&, const Thread&);

}  // namespace trireme::simt
