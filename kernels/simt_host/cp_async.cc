// cp.async: bytes arrive at the wait; until then the target is poisoned.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

namespace {

void complete(Worker& w, Copy& c) {
  int me = w.current->linear;
  if (w.opt.late_copies) {
    std::memcpy(c.dst, c.src, size_t(c.source_bytes));
    std::memset(c.dst + c.source_bytes, 0, size_t(c.bytes - c.source_bytes));
  }
  if (!w.checking) return;
  each_smem_cell(w, size_t(c.dst - w.smem), size_t(c.bytes), [&](Cell& cell, size_t, size_t) {
    cell.pending = false, cell.write_clock = w.clock[size_t(me)];
  });
}

}  // namespace

void async_issue(void* dst, const void* src, int bytes, int source_bytes) {
  Worker& w = *t_worker;
  int me = w.current->linear;
  auto d = static_cast<unsigned char*>(dst);
  ++w.stats.async_copies;
  t_pc = __builtin_return_address(0);
  if (source_bytes < 0 || source_bytes > bytes)
    fault(FaultKind::kAsyncCopy, "cp.async with " + std::to_string(source_bytes) + " source bytes");
  if (!in(d, w.smem, w.smem + kClusterMax * kSmemMax))
    fault(FaultKind::kOutOfBounds, "cp.async target is not in shared memory");
  if (reinterpret_cast<uintptr_t>(dst) % bytes || reinterpret_cast<uintptr_t>(src) % bytes)
    fault(FaultKind::kMisaligned,
          "cp.async needs both sides " + std::to_string(bytes) + "-byte aligned");
  if (source_bytes) check(w, const_cast<void*>(src), size_t(source_bytes), me, Kind::kRead, 1);
  check(w, dst, size_t(bytes), me, Kind::kWrite, 1);
  if (w.opt.late_copies) {
    std::memset(dst, 0xff, size_t(bytes));
  } else {
    std::memcpy(dst, src, size_t(source_bytes));
    std::memset(d + source_bytes, 0, size_t(bytes - source_bytes));
  }
  if (w.checking)
    each_smem_cell(w, size_t(d - w.smem), size_t(bytes),
                   [](Cell& cell, size_t, size_t) { cell.pending = true; });
  w.current->open_group.push_back(
      {d, static_cast<const unsigned char*>(src), bytes, source_bytes, t_pc});
  t_pc = nullptr;
}

void async_commit() {
  Thread& t = *t_worker->current;
  t.groups.push_back(std::move(t.open_group));
  t.open_group.clear();
}

void async_wait(int left) {
  Thread& t = *t_worker->current;
  while (int(t.groups.size()) > left) {
    for (auto& c : t.groups.front()) complete(*t_worker, c);
    t.groups.pop_front();
  }
}

void check_copies_at_exit(const Thread& t) {
  for (const auto& group : t.groups)
    if (!group.empty())
      fault(FaultKind::kAsyncCopy, "thread leaves with cp.async copies it never waited for");
  if (!t.open_group.empty())
    fault(FaultKind::kAsyncCopy, "thread leaves with cp.async copies it never committed");
}

}  // namespace trireme::simt
