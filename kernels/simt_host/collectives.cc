// Barriers and warp collectives.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

Clocks joined(const Clocks& a, const Clocks& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  auto sum = std::make_shared<std::vector<uint32_t>>(*a);
  for (size_t i = 0; i < b->size(); ++i) (*sum)[i] = std::max((*sum)[i], (*b)[i]);
  return sum;
}

void order_some(Worker& w, const std::vector<int>& threads) {
  if (!w.checking) return;
  auto sum = std::make_shared<std::vector<uint32_t>>(size_t(w.width), 0);
  const std::vector<uint32_t>* last = nullptr;
  for (int t : threads) {
    const auto* row = w.row[size_t(t)].get();
    if (row && row != last)
      for (size_t i = 0; i < row->size(); ++i) (*sum)[i] = std::max((*sum)[i], (*row)[i]);
    last = row;
  }
  for (int t : threads) (*sum)[size_t(t)] = std::max((*sum)[size_t(t)], w.clock[size_t(t)]++);
  const Clocks shared = std::move(sum);
  for (int t : threads) w.row[size_t(t)] = shared;
}

namespace {

/// After a barrier of all threads everybody knows everything.
void order_all(Worker& w) {
  if (!w.checking) return;
  ++w.epoch;
  const std::vector<uint32_t>* last = nullptr;
  for (Clocks& row : w.row) {
    if (row && row.get() != last) {
      last = row.get();
      for (size_t i = size_t(w.count); i < last->size(); ++i)  // what TMA wrote
        w.base[i] = std::max(w.base[i], (*last)[i]);
    }
  }
  for (Clocks& row : w.row) row = nullptr;
  for (int i = 0; i < w.count; ++i) w.base[size_t(i)] = w.clock[size_t(i)]++;
}

void barrier_arrive(int id, int expected, bool wait, Loc loc) {
  Worker& w = *t_worker;
  const char* what = id == 0                 ? "__syncthreads"
                     : id == kClusterBarrier ? "a barrier of the cluster"
                                             : "a named barrier";
  const bool of_cluster = id == kClusterBarrier, of_all = id == 0 || of_cluster;
  const int live = of_cluster ? w.live : w.block_live[w.rank()];
  Barrier& b = w.barrier[of_cluster ? 0 : w.rank()][id];
  int me = w.current->linear;
  if (of_all && live < expected)
    fault(FaultKind::kDivergentBarrier, std::to_string(expected - live) +
                                            " threads have left the kernel before " + what +
                                            " at " + where(loc));
  if (b.arrived == 0) {
    b.loc = loc, b.first = me, b.expected = expected;
  } else {
    if (of_all && !same_place(b.loc, loc))
      fault(FaultKind::kDivergentBarrier, std::string("waits in ") + what + " at " + where(loc) +
                                              " while " + thread_name(w, b.first) + " waits at " +
                                              where(b.loc));
    if (b.expected != expected)
      fault(FaultKind::kDivergentBarrier,
            "barrier " + std::to_string(id) + " used with two thread counts");
  }
  b.arrivals.push_back(me);
  if (++b.arrived == expected) {
    ++w.stats.barriers;
    b.arrived = 0;
    if (expected == w.count)
      order_all(w);
    else
      order_some(w, b.arrivals);
    b.arrivals.clear();
    if (w.opt.order == Order::kBackward)
      for (auto it = b.waiting.rbegin(); it != b.waiting.rend(); ++it) wake(w, *it, false);
    else
      for (int t : b.waiting) wake(w, t, false);
    b.waiting.clear();
  } else if (wait) {
    b.waiting.push_back(me);
    wait_here(w, what, loc);
  }
}

}  // namespace

void block_barrier(Loc loc) { barrier_arrive(0, t_worker->block_threads, true, loc); }
void cluster_barrier(Loc loc) { barrier_arrive(kClusterBarrier, t_worker->count, true, loc); }
void named_barrier(int id, int threads, bool wait, Loc loc) {
  if (id < 1 || id > 15 || threads % 32 || threads <= 0 || threads > t_worker->block_threads)
    fault(FaultKind::kBadCollective,
          "named barrier " + std::to_string(id) + " with " + std::to_string(threads) + " threads");
  barrier_arrive(id, threads, wait, loc);
}

void warp_collective(uint32_t mask, Collective fn, void* arg, const char* what, Loc loc) {
  Worker& w = *t_worker;
  Thread& me = *w.current;
  int lane = me.linear & 31, warp = me.linear >> 5;
  auto& open = w.warps[warp];
  if (!(mask >> lane & 1))
    fault(FaultKind::kBadCollective,
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
      fault(FaultKind::kBadCollective, std::string(what) + " at " + where(loc) +
                                           " overlaps another mask, of " + o.what + " at " +
                                           where(o.loc));
  }
  if (!r) r = &open.emplace_back();
  size_t index = size_t(r - open.data());
  if (r->arrived == 0) {
    r->mask = mask, r->fn = fn, r->what = what, r->loc = loc;
    uint32_t rest = warp == (w.count - 1) / 32 && w.count % 32 ? (1u << w.count % 32) - 1 : ~0u;
    if (mask & ~rest)
      fault(FaultKind::kBadCollective,
            std::string(what) + " at " + where(loc) + " names lanes the block does not have");
    for (int l = 0; l < 32; ++l)
      if ((mask >> l & 1) && w.threads[warp * 32 + l].state == State::kDone)
        fault(FaultKind::kBadCollective, std::string(what) + " at " + where(loc) + " names lane " +
                                             std::to_string(l) + ", which has left the kernel");
  } else if (r->fn != fn || !same_place(r->loc, loc)) {
    fault(FaultKind::kBadCollective,
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
  bool backward = w.opt.order == Order::kBackward;
  for (int k = 31; k >= 0; --k) {
    int l = backward ? 31 - k : k;
    if (l != lane && (mask >> l & 1)) wake(w, warp * 32 + l, true);
  }
}

void warp_barrier(uint32_t mask, Loc loc) {
  warp_collective(
      mask,
      [](uint32_t m, void* const*) {
        Worker& w = *t_worker;
        const int warp = w.current->linear >> 5;
        static thread_local std::vector<int> threads;
        threads.clear();
        for (int l = 0; l < 32; ++l)
          if (m >> l & 1) threads.push_back(warp * 32 + l);
        order_some(w, threads);
      },
      nullptr, "__syncwarp", loc);
}

void yield() {
  Worker& w = *t_worker;
  if (w.only_spins()) deliver_tma(w);
  enqueue_thread(w, w.current->linear);
  wait_here(w, "a spin loop", Loc::current());
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
