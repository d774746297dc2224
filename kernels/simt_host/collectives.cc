// Barriers and warp collectives.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

namespace {

void order_all(Worker& w) {
  if (!w.checking) return;
  for (int i = 0; i < w.count; ++i) w.base[i] = w.clock[i]++;
  for (auto& r : w.row) {
    for (size_t i = size_t(w.count); i < r.size(); ++i) w.base[i] = std::max(w.base[i], r[i]);
    r.clear();
  }
}

int barrier_arrive(int id, int expected, int op, int value, bool wait, Loc loc) {
  Worker& w = *t_worker;
  Barrier& b = w.barrier[id];
  int me = w.current->linear;
  if (id == 0 && w.live < w.count)
    fault(FaultKind::kDivergentBarrier,
          std::to_string(w.count - w.live) +
              " threads have left the kernel before __syncthreads at " + where(loc));
  if (b.arrived == 0) {
    b.loc = loc, b.first = me, b.expected = expected, b.op = op, b.reduce = op == 1;
  } else {
    if (id == 0 && (b.loc.line() != loc.line() || std::strcmp(b.loc.file_name(), loc.file_name())))
      fault(FaultKind::kDivergentBarrier, "waits in __syncthreads at " + where(loc) + " while " +
                                              thread_name(w, b.first) + " waits at " +
                                              where(b.loc));
    if (b.expected != expected)
      fault(FaultKind::kDivergentBarrier,
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
    if (w.opt.order == Order::kBackward)
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

void block_barrier(Loc loc) { barrier_arrive(0, t_worker->count, 0, 0, true, loc); }
int block_barrier_reduce(int op, int value, Loc loc) {
  return barrier_arrive(0, t_worker->count, op, value, true, loc);
}
void named_barrier(int id, int threads, bool wait, Loc loc) {
  if (id < 1 || id > 15 || threads % 32 || threads <= 0 || threads > t_worker->count)
    fault(FaultKind::kBadCollective,
          "named barrier " + std::to_string(id) + " with " + std::to_string(threads) + " threads");
  barrier_arrive(id, threads, 0, 0, wait, loc);
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
  } else if (r->fn != fn || r->loc.line() != loc.line() ||
             std::strcmp(r->loc.file_name(), loc.file_name())) {
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
        int warp = w.current->linear >> 5;
        order_some(w, [&](auto f) {
          for (int l = 0; l < 32; ++l)
            if (m >> l & 1) f(warp * 32 + l);
        });
      },
      nullptr, "__syncwarp", loc);
}

void yield() {
  Worker& w = *t_worker;
  if (w.head == w.tail) deliver_tma(w);
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
