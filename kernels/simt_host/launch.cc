// Options, launches, the blocks of a launch and the OS threads that take them.

#include <sys/mman.h>

#include <cstdlib>
#include <thread>

#include "kernels/simt_host/state.h"
#include "kernels/simt_host/streams.h"

namespace trireme::simt {

int capability() {
  const char* wanted = std::getenv("TRIREME_SIMT_CAPABILITY");
  return wanted != nullptr ? std::atoi(wanted) : 90;
}

Options& options() {
  static Options o = [] {
    Options of;
    const int gpu = capability();
    if (gpu == 80) of.max_smem_bytes = 163 << 10;
    if ((gpu > 80 && gpu < 90) || gpu >= 120) of.max_smem_bytes = 99 << 10;
    return of;
  }();
  return o;
}
Stats& stats() {
  static Stats s{};
  return s;
}

namespace {

/// Of launches and, with shared memory, of blocks: shadow cells with another stamp are empty.
std::atomic<uint32_t> g_stamp{0};

void check_launch(const LaunchShape& s, const Options& o) {
  auto refuse = [&](const std::string& t) {
    throw Fault(FaultKind::kLaunchConfig, std::string(s.name) + ": launch refused: " + t);
  };
  size_t threads = size_t(s.block.x) * s.block.y * s.block.z;
  if (threads == 0 || threads > 1024) refuse("block of " + std::to_string(threads) + " threads");
  if (s.block.z > 64) refuse("block.z above 64");
  if (!s.grid.x || !s.grid.y || !s.grid.z) refuse("empty grid");
  if (s.grid.x > 2147483647u || s.grid.y > 65535 || s.grid.z > 65535)
    refuse("grid too large in y or z");
  if (s.cluster < 1 || s.cluster > kClusterMax || s.grid.x % unsigned(s.cluster) ||
      (s.cluster > 1 && threads % 128))
    refuse("clusters of " + std::to_string(s.cluster) + " blocks");
  if (s.cluster > 1 && capability() < 90) refuse("a cluster, before Hopper");
  if (s.smem_bytes > o.max_smem_bytes)
    refuse(std::to_string(s.smem_bytes) + " bytes of shared memory, the device has " +
           std::to_string(o.max_smem_bytes));
}

/// The blocks of a cluster at the same time, as one with as many more threads; `block`: the first.
void run_block(Worker& w, uint32_t block) {
  dim3 g = w.shape->grid;
  w.block = block;
  w.cluster = w.shape->cluster;
  prepare_threads(w);
  for (int r = 0; r < w.cluster; ++r) {
    w.block_index[r] = {block % g.x + unsigned(r), block / g.x % g.y, block / g.x / g.y};
    w.block_live[r] = w.block_threads;
    if (w.smem_bytes)  // NaN in fp32, bf16 and fp8
      std::memset(w.smem + size_t(r) * kSmemMax, 0xff, w.smem_bytes);
  }
  w.warps.resize((w.count + 31) / 32);
  for (auto& v : w.warps) v.clear();
  for (auto& of_block : w.barrier)
    for (auto& b : of_block) b = Barrier{};
  w.mbarriers.clear();
  w.tma_in_flight.clear();
  w.warpgroups.assign((w.count + 127) / 128, {});
  w.registers.assign((w.count + 31) / 32, 0);
  w.width = w.count + kMaxMbarriers;
  w.head = w.tail = 0;
  for (int i = 0; i < w.count; ++i)
    enqueue_thread(w, w.opt.order == Order::kBackward ? w.count - 1 - i : i);
  if (w.checking) {
    w.block_stamp = ++g_stamp;
    w.smem_readers.clear();
    w.epoch = 0;
    w.clock.assign(w.count, 1);
    w.base.assign(w.width, 0);
    w.row.assign(w.count, {});
    w.turns_begun.clear();
  }
  w.stats.blocks += unsigned(w.cluster);
  w.stats.threads += w.count;
  run_fibers(w);
}

void merge(Stats& a, const Stats& b) {
  a.blocks += b.blocks, a.threads += b.threads, a.switches += b.switches, a.barriers += b.barriers;
  a.collectives += b.collectives, a.atomics += b.atomics, a.float_atomics += b.float_atomics;
  a.loads += b.loads, a.stores += b.stores, a.async_copies += b.async_copies;
  a.tma_loads += b.tma_loads, a.tma_stores += b.tma_stores, a.wgmmas += b.wgmmas,
      a.mbarrier_phases += b.mbarrier_phases;
  a.proxy_fences += b.proxy_fences;
}

/// Workers keep their stacks and shared memory from launch to launch.
class WorkerPool {
 public:
  static std::unique_ptr<Worker> take() {
    std::lock_guard lock(mutex());
    if (idle().empty()) return std::make_unique<Worker>();
    auto w = std::move(idle().back());
    idle().pop_back();
    return w;
  }
  static void give_back(std::unique_ptr<Worker> w) {
    std::lock_guard lock(mutex());
    idle().push_back(std::move(w));
  }

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::vector<std::unique_ptr<Worker>>& idle() {
    static std::vector<std::unique_ptr<Worker>> workers;
    return workers;
  }
};

struct WorkerGuard {
  std::unique_ptr<Worker> worker = WorkerPool::take();
  WorkerGuard() = default;
  ~WorkerGuard() { WorkerPool::give_back(std::move(worker)); }
  WorkerGuard(const WorkerGuard&) = delete;
  WorkerGuard& operator=(const WorkerGuard&) = delete;
};

/// What the workers of one launch share.
struct GridRun {
  const LaunchShape& shape;
  const Options& opt;
  void (*body)(void*);
  void* context;
  size_t context_bytes;
  std::vector<uint32_t> blocks;
  uint32_t stamp;
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
};

void run_some(GridRun& run, Worker& w) {
  const LaunchShape& shape = run.shape;
  const Options& opt = run.opt;
  w.opt = opt;
  w.shape = &shape;
  w.body = run.body;
  w.context = run.context;
  w.context_bytes = run.context_bytes;
  w.faulted = false;
  w.fault_pc = w.fault_other_pc = t_pc = nullptr;
  w.stats = {};
  w.stamp = run.stamp;
  w.rng.seed(opt.seed);
  w.device_readers.clear();
  w.turns_ended.clear();
  w.checking = instrumented() && opt.check_memory && opt.workers == 1;
  int count = int(shape.block.x * shape.block.y * shape.block.z) * shape.cluster;
  prepare_stacks(w, count);
  w.ring.resize(2048);
  if (!w.smem) {
    // Only page multiples end at an inaccessible page; the shadow checks the rest.
    w.smem = static_cast<unsigned char*>(mmap(nullptr, kClusterMax * kSmemMax + 8192,
                                              PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    mprotect(w.smem + kClusterMax * kSmemMax, 4096, PROT_NONE);
  }
#if SIMT_ASAN
  ASAN_POISON_MEMORY_REGION(w.smem, kClusterMax * kSmemMax);
  for (int r = 0; r < shape.cluster; ++r)
    ASAN_UNPOISON_MEMORY_REGION(w.smem + size_t(r) * kSmemMax, shape.smem_bytes);
#endif
  w.smem_bytes = shape.smem_bytes;
  if (w.checking && w.smem_shadow.empty()) w.smem_shadow = Shadow(kClusterMax * kSmemMax);
  blockDim = shape.block;
  gridDim = shape.grid;
  while (!run.stop) {
    size_t i = run.next++;
    if (i >= run.blocks.size()) break;
    run_block(w, run.blocks[i]);
    if (w.faulted) run.stop = true;
  }
}

}  // namespace

void run_grid(const LaunchShape& shape, void (*body)(void*), void* context, size_t context_bytes) {
  const Options& opt = options();
  check_launch(shape, opt);
  if (t_worker) throw Fault(FaultKind::kLaunchConfig, "launch inside a kernel");
  const auto cluster = uint32_t(shape.cluster);
  GridRun grid{shape, opt, body, context, context_bytes, {}, ++g_stamp};
  std::vector<uint32_t>& blocks = grid.blocks;
  blocks.resize(size_t(shape.grid.x) * shape.grid.y * shape.grid.z / cluster);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = uint32_t(i) * cluster;
  if (opt.order == Order::kBackward) std::reverse(blocks.begin(), blocks.end());
  if (opt.order == Order::kRandom)
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(opt.seed));
  int n = std::max(1, std::min<int>(opt.workers, int(blocks.size())));
  std::vector<WorkerGuard> workers(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < workers.size(); ++i)
    threads.emplace_back([&, i] { run_some(grid, *workers[i].worker); });
  run_some(grid, *workers[0].worker);
  for (auto& t : threads) t.join();
  static std::mutex stats_mutex;
  {
    std::lock_guard lock(stats_mutex);
    for (const auto& w : workers) merge(stats(), w.worker->stats);
  }
  for (const auto& guard : workers)
    if (const Worker* w = guard.worker.get(); w->faulted) {
      std::string s =
          std::string(shape.name) + ": " + name_of(w->fault_kind) + ": " + w->fault_text;
      if (!w->fault_at.empty() || w->fault_pc)
        s += "\n    at " + (w->fault_at.empty() ? symbol(w->fault_pc) : w->fault_at);
      if (w->fault_other_pc) s += "\n    the other access at " + symbol(w->fault_other_pc);
      throw Fault(w->fault_kind, s);
    }
}

int lane_id() { return t_worker->current->linear & 31; }

unsigned char* dynamic_smem(size_t needed, Loc loc) {
  Worker& w = *t_worker;
  if (needed > w.smem_bytes)
    fault(FaultKind::kOutOfBounds, "smem<T>() at " + where(loc) + " needs " +
                                       std::to_string(needed) + " bytes, the launch gave " +
                                       std::to_string(w.smem_bytes));
  return w.smem + size_t(w.rank()) * kSmemMax;
}

int cluster_rank() { return t_worker->rank(); }

}  // namespace trireme::simt
