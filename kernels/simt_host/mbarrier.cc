// mbarriers of Hopper. One carries the vector clocks of its arrivals to its waiters; bytes that TMA
// writes are known only through the mbarrier on which they complete (a virtual thread of the vector
// clocks per mbarrier). A wait blocks the fiber, so that a wrong count is a reported deadlock.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

namespace {

constexpr uint64_t kBarrierMagic = 0x7265697272616221;

void join(std::vector<uint32_t>& a, const Clocks& b) {
  if (!b) return;
  if (a.empty()) a.assign(b->size(), 0);
  for (size_t i = 0; i < b->size(); ++i) a[i] = std::max(a[i], (*b)[i]);
}

}  // namespace

uint32_t smem_offset(Worker& w, const void* p, const char* what) {
  const auto* block = w.smem + size_t(w.rank()) * kSmemMax;
  if (!in(p, block, block + w.smem_bytes))
    fault(FaultKind::kOutOfBounds, std::string(what) + ": not an address in shared memory");
  return uint32_t(static_cast<const unsigned char*>(p) - w.smem);
}

uint32_t offset_in(Worker& w, uint32_t offset, int rank, const char* what) {
  if (rank < 0 || rank >= w.cluster)
    fault(FaultKind::kOutOfBounds, std::string(what) + ": no block " + std::to_string(rank) +
                                       " in a cluster of " + std::to_string(w.cluster));
  if (w.block_live[rank] == 0)
    fault(FaultKind::kOutOfBounds, std::string(what) + ": block " + std::to_string(rank) +
                                       " of the cluster has left, its shared memory with it");
  return uint32_t(offset % kSmemMax + size_t(rank) * kSmemMax);
}

Mbarrier& find_mbarrier(Worker& w, const uint64_t* bar, const char* what) {
  return find_mbarrier(w, smem_offset(w, bar, what), what);
}

Mbarrier& find_mbarrier(Worker& w, uint32_t offset, const char* what) {
  for (auto& b : w.mbarriers) {
    if (b.offset != offset || !b.live) continue;
    uint64_t v;
    std::memcpy(&v, w.smem + offset, 8);
    if (v != kBarrierMagic + offset)
      fault(FaultKind::kMbarrier, std::string(what) + ": the mbarrier at shared byte " +
                                      std::to_string(offset) + " was overwritten");
    if (w.checking && !w.knows(w.current->linear, b.init_thread, b.init_clock))
      fault(FaultKind::kRace, std::string(what) + ": the mbarrier at shared byte " +
                                  std::to_string(offset) + " was initialised by " +
                                  thread_name(w, b.init_thread) + " with no barrier between");
    return b;
  }
  fault(FaultKind::kMbarrier, std::string(what) + ": no mbarrier was initialised at shared byte " +
                                  std::to_string(offset));
}

void try_complete(Worker& w, Mbarrier& b) {
  if (b.pending || b.tx) return;
  ++b.phase;
  ++w.stats.mbarrier_phases;
  b.pending = b.count;
  if (w.checking) {
    join(b.gathering, b.complete);
    b.complete = std::make_shared<std::vector<uint32_t>>(b.gathering);
    b.gathering.clear();
  }
  if (w.opt.order == Order::kBackward) std::reverse(b.waiting.begin(), b.waiting.end());
  for (int t : b.waiting) {
    if (w.checking) w.row[size_t(t)] = joined(w.row[size_t(t)], b.complete);
    wake(w, t, false);
  }
  b.waiting.clear();
}

void mbarrier_init(uint64_t* bar, int count) {
  Worker& w = *t_worker;
  uint32_t offset = smem_offset(w, bar, "mbarrier.init");
  if (offset % 8)
    fault(FaultKind::kMisaligned, "mbarrier at shared byte " + std::to_string(offset));
  if (count < 1 || count > (1 << 20) - 1)
    fault(FaultKind::kMbarrier, "mbarrier.init with count " + std::to_string(count));
  if (w.mbarriers.size() == kMaxMbarriers)
    fault(FaultKind::kMbarrier, "more than 64 mbarriers in a block");
  for (auto& b : w.mbarriers)
    if (b.live && b.offset == offset)
      fault(FaultKind::kMbarrier, "second mbarrier.init at shared byte " + std::to_string(offset) +
                                      " without mbarrier.inval");
  w.mbarriers.reserve(kMaxMbarriers);
  check(w, bar, 8, w.current->linear, Kind::kWrite, 8);
  uint64_t v = kBarrierMagic + offset;
  std::memcpy(bar, &v, 8);
  Mbarrier& b = w.mbarriers.emplace_back();
  b.offset = offset, b.count = b.pending = count, b.live = true;
  b.init_thread = w.current->linear;
  if (w.checking) b.init_clock = w.clock[b.init_thread];
}
void mbarrier_invalidate(uint64_t* bar) {
  find_mbarrier(*t_worker, bar, "mbarrier.inval").live = false;
}

namespace {
void arrive(Worker& w, Mbarrier& b, int bytes) {
  int me = w.current->linear;
  if (bytes < 0 || bytes >= 1 << 20)
    fault(FaultKind::kMbarrier, "expect_tx of " + std::to_string(bytes) + " bytes");
  if (b.pending == 0)
    fault(FaultKind::kMbarrier, "more arrivals than the count of " + std::to_string(b.count) +
                                    " at the mbarrier at shared byte " + std::to_string(b.offset));
  b.tx += bytes;
  --b.pending;
  if (w.checking) {
    join(b.gathering, w.row[size_t(me)]);
    b.gathering.resize(size_t(w.width));
    b.gathering[me] = std::max(b.gathering[me], w.clock[me]++);
  }
  try_complete(w, b);
}
}  // namespace

void mbarrier_arrive_at(uint64_t* bar, int rank) {
  Worker& w = *t_worker;
  const char* what = "mbarrier.arrive in the cluster";
  arrive(w, find_mbarrier(w, offset_in(w, smem_offset(w, bar, what), rank, what), what), 0);
}
void mbarrier_arrive(uint64_t* bar, int bytes) {
  arrive(*t_worker, find_mbarrier(*t_worker, bar, "mbarrier.arrive"), bytes);
}

void mbarrier_wait(uint64_t* bar, uint32_t parity, Loc loc) {
  Worker& w = *t_worker;
  Mbarrier& b = find_mbarrier(w, bar, "mbarrier.try_wait");
  int me = w.current->linear;
  if (parity > 1) fault(FaultKind::kMbarrier, "parity " + std::to_string(parity));
  if ((b.phase & 1) != parity) {
    if (w.checking) w.row[size_t(me)] = joined(w.row[size_t(me)], b.complete);
    return;
  }
  uint32_t phase = b.phase;
  b.waiting.push_back(me);
  wait_here(w, "an mbarrier wait", loc);
  if (b.phase - phase > 1)
    fault(FaultKind::kMbarrier, "the mbarrier at shared byte " + std::to_string(b.offset) +
                                    " ran two phases ahead of a waiter at " + where(loc) +
                                    ", which a GPU would leave hanging");
}

void fence_proxy_async() {
  Worker& w = *t_worker;
  ++w.stats.proxy_fences;
  int me = w.current->linear;
  if (w.checking) w.current->fence_clock = w.clock[me]++;
  fence_mbarrier_init();
}
void fence_mbarrier_init() {
  for (auto& b : t_worker->mbarriers)
    if (b.init_thread == t_worker->current->linear) b.init_fenced = true;
}

}  // namespace trireme::simt
