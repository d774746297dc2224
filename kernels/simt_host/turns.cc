// Turns of blocks at something, by a count in device memory. Blocks run one after another (with one
// OS thread), so that who waits for a block that comes behind would wait for ever, as on a GPU that
// has no room for that block.

#include "kernels/simt_host/state.h"

namespace trireme::simt {
namespace {

/// Later accesses of the thread are later than the turn's end, earlier ones than its beginning.
void hand_on(Worker& w, const int* count) {
  if (!w.checking) return;
  RuntimeScope scope;
  const auto me = size_t(w.current->linear);
  HandedOn handed{w.block, {w.base.begin(), w.base.begin() + w.count}};
  if (const Clocks& row = w.row[me])
    for (size_t i = 0; i < handed.clocks.size(); ++i)
      handed.clocks[i] = std::max(handed.clocks[i], (*row)[i]);
  handed.clocks[me] = w.clock[me]++;
  w.turns_ended[count].push_back(std::make_shared<const HandedOn>(std::move(handed)));
}
void take_over(Worker& w, const int* count) {
  if (!w.checking) return;
  RuntimeScope scope;
  const int me = w.current->linear;
  w.turns_begun.push_back({me, ++w.clock[size_t(me)], w.turns_ended[count]});
}

}  // namespace

bool handed_on(const Worker& w, const Access& x, int me) {
  for (const TurnBegun& turn : w.turns_begun)
    if (w.knows(me, turn.thread, turn.clock))
      for (const auto& handed : turn.earlier)
        if (handed->block == x.block && x.clock <= handed->clocks[x.thread]) return true;
  return false;
}

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
  take_over(w, count);
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
    refuse(FaultKind::kProxyFence, " with no fence.proxy.async after its bulk copies");
  t.turn = nullptr;
  hand_on(*t_worker, count);
  note_atomic(count, sizeof *count, false, loc);
  __atomic_fetch_add(count, 1, __ATOMIC_RELEASE);
}

void fence_proxy_async_global() {
  Thread& t = *t_worker->current;
  t.bulk_unfenced = t.turn_unfenced = false;
}

}  // namespace trireme::simt
