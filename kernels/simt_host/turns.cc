// Turns of blocks at something, by a count in device memory. Blocks run one after another (with one
// OS thread), so that who waits for a block that comes behind would wait for ever, as on a GPU that
// has no room for that block.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

void begin_turn(const int* count, int turn, Loc loc) {
  Worker& w = *t_worker;
  note_atomic(const_cast<int*>(count), sizeof *count, false, loc);
  ++w.spinning;
  for (int ended = -1; (ended = __atomic_load_n(count, __ATOMIC_ACQUIRE)) != turn; yield()) {
    const std::string text = "waits at " + where(loc) + " for turn " + std::to_string(turn) +
                             " where " + std::to_string(ended) + " have ended";
    if (ended > turn) fault(FaultKind::kDeadlock, text);
    if (w.opt.workers == 1 && w.only_spins() && w.tma_in_flight.empty())
      fault(FaultKind::kDeadlock, text + ", and no block that has begun will end another");
  }
  --w.spinning;
  w.current->turn = count;
  w.current->turn_unfenced = true;
}

void end_turn(int* count, Loc loc) {
  Thread& t = *t_worker->current;
  const auto refuse = [&](FaultKind kind, const char* text) {
    fault(kind, "ends a turn at " + where(loc) + text);
  };
  if (t.turn != count) refuse(FaultKind::kRace, " that it did not wait for");
  if (!t.bulk_open.empty() || !t.bulk_groups.empty())
    refuse(FaultKind::kAsyncCopy, " while bulk copies are under way that it did not wait for");
  if (t.bulk_unfenced)
    refuse(FaultKind::kProxyFence, " with no fence.proxy.async after its bulk reductions");
  t.turn = nullptr;
  note_atomic(count, sizeof *count, false, loc);
  __atomic_fetch_add(count, 1, __ATOMIC_RELEASE);
}

void fence_proxy_async_global() {
  Thread& t = *t_worker->current;
  t.bulk_unfenced = t.turn_unfenced = false;
}

}  // namespace trireme::simt
