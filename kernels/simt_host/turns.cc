// Turns of blocks: a block waits until others have raised a count. Blocks run one after another
// (with one OS thread), so that who waits for a block behind it would wait for ever, as on a GPU
// that has no room for that block.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

void wait_for_count(const int* count, int value, Loc loc) {
  Worker& w = *t_worker;
  note_atomic(const_cast<int*>(count), sizeof *count, false, loc);
  while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < value) {
    if (w.opt.workers == 1 && w.head == w.tail && w.tma_in_flight.empty())
      fault(FaultKind::kDeadlock,
            "waits at " + where(loc) + " for a count of " + std::to_string(value) + ", which is " +
                std::to_string(*count) + ", and no block that has begun will raise it");
    yield();
  }
  w.current->count_unfenced = true;
}

void raise_count(int* count, Loc loc) {
  Thread& t = *t_worker->current;
  if (!t.bulk_open.empty() || !t.bulk_groups.empty())
    fault(FaultKind::kAsyncCopy, "raises a count at " + where(loc) +
                                     " while bulk copies are under way that it did not wait for");
  if (t.bulk_unfenced)
    fault(FaultKind::kProxyFence, "raises a count at " + where(loc) +
                                      " behind bulk reductions with no fence.proxy.async between");
  note_atomic(count, sizeof *count, false, loc);
  __atomic_fetch_add(count, 1, __ATOMIC_RELEASE);
}

void fence_proxy_async_global() {
  Thread& t = *t_worker->current;
  t.bulk_unfenced = t.count_unfenced = false;
}

}  // namespace trireme::simt
