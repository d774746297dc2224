// Fibers: one per CUDA thread, each with a stack of its own, switched by hand.

#include <sys/mman.h>

#include "kernels/simt_host/state.h"

// Saves the callee-saved registers on the old stack, restores them from the new one.
extern "C" void simt_switch(void** save_sp, void* load_sp);
// clang-format off
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
// clang-format on

namespace trireme::simt {
namespace {

void push_back(Worker& w, int t) { w.ring[w.tail++ & (w.ring.size() - 1)] = uint16_t(t); }
void push_front(Worker& w, int t) { w.ring[--w.head & (w.ring.size() - 1)] = uint16_t(t); }

Thread* pop(Worker& w) {
  if (w.head == w.tail) return nullptr;
  size_t mask = w.ring.size() - 1;
  if (w.opt.order == Order::kRandom) {
    uint32_t n = w.tail - w.head, pick = w.head + uint32_t(w.rng() % n);
    std::swap(w.ring[pick & mask], w.ring[w.head & mask]);
  }
  return &w.threads[w.ring[w.head++ & mask]];
}

}  // namespace

void enqueue_thread(Worker& w, int t) { push_back(w, t); }

void wake(Worker& w, int t, bool soon) {
  w.threads[t].state = State::kReady;
  soon ? push_front(w, t) : push_back(w, t);
}

namespace {

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
  if (first_of_fiber && t_worker->main_stack == nullptr)
    t_worker->main_stack = bottom, t_worker->main_stack_size = size;
#endif
}

void resume(Worker& w, Thread& t) {
  w.current = &t;
  threadIdx = t.index;
  blockIdx = w.block_index[t.linear / w.block_threads];
  ++w.stats.switches;
}

// Asynchronous copies arrive when no thread can run (as late as can be), or at random before.
Thread* next_thread(Worker& w) {
  if (w.opt.order == Order::kRandom && !w.tma_in_flight.empty() && w.rng() % 8 == 0) deliver_tma(w);
  Thread* t;
  while (!(t = pop(w)) && deliver_tma(w)) {
  }
  return t;
}

}  // namespace

void wait_here(Worker& w, const char* what, const Loc& loc) {
  Thread& me = *w.current;
  me.state = State::kWaiting;
  me.wait_what = what;
  me.wait_loc = loc;
  Thread* next = next_thread(w);
  if (!next) report_deadlock(w);
  if (next == &me) return resume(w, me);
  resume(w, *next);
  switch_stack(w, &me.sp, &me.fake_stack, next);
  finish_switch(me.fake_stack, false);
}

namespace {

void thread_exit(Worker& w) {
  Thread& me = *w.current;
  me.state = State::kDone;
  --w.live;
  auto& barriers = w.barrier[w.rank()];
  const bool last = --w.block_live[w.rank()] == 0;
  check_copies_at_exit(me);
  int lane = me.linear % 32;
  for (auto& r : w.warps[me.linear / 32])
    if (r.arrived && (r.mask >> lane & 1))
      fault(FaultKind::kBadCollective, "lane leaves the kernel while its warp waits for it in " +
                                           std::string(r.what) + " at " + where(r.loc));
  for (int b = 1; b < 16 && last; ++b)
    if (barriers[b].arrived)
      fault(FaultKind::kDivergentBarrier, "block ends with " + std::to_string(barriers[b].arrived) +
                                              " of " + std::to_string(barriers[b].expected) +
                                              " arrivals at named barrier " + std::to_string(b));
  for (const Barrier* b : {&barriers[0], &w.barrier[0][kClusterBarrier]})
    if (b->arrived)
      fault(FaultKind::kDivergentBarrier, "thread leaves the kernel while " +
                                              std::to_string(b->arrived) +
                                              " threads wait for it at " + where(b->loc));
  check_hopper_at_exit(w, me);
  Thread* next = next_thread(w);
  if (!next && w.live) report_deadlock(w);
  if (next) resume(w, *next);
  switch_stack(w, &me.sp, nullptr, next);
  __builtin_unreachable();
}

void entry() {
  Worker& w = *t_worker;
  finish_switch(nullptr, true);
  w.body(w.context);
  thread_exit(*t_worker);
}

}  // namespace

void run_fibers(Worker& w) {
  Thread* first = pop(w);
  resume(w, *first);
  t_in_runtime = 0;  // an earlier fault abandoned its scopes
  t_worker = &w;
  void* fake = nullptr;
  switch_stack(w, &w.main_sp, &fake, first);
  finish_switch(fake, false);
  t_worker = nullptr;
}

void leave_for_launch(Worker& w) {
  switch_stack(w, &w.current->sp, nullptr, nullptr);
  __builtin_unreachable();
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
  w.block_threads = int(b.x * b.y * b.z);
  w.count = w.live = w.block_threads * w.cluster;
  w.spinning = 0;
  w.threads.resize(w.stack_count);
  for (int i = 0; i < w.count; ++i) {
    const unsigned in_block = unsigned(i % w.block_threads);
    Thread& t = w.threads[i];
    t.index = {in_block % b.x, in_block / b.x % b.y, in_block / b.x / b.y};
    t.linear = i;
    t.state = State::kReady;
    t.open_group.clear();
    t.groups.clear();
    t.wgmma_open.clear(), t.wgmma_groups.clear(), t.accumulators.clear(), t.bulk_open.clear(),
        t.bulk_groups.clear();
    t.accumulators_in_flight = 0, t.wgmma_fenced = false, t.fence_clock = 0;
    t.turn = nullptr, t.turn_unfenced = t.bulk_unfenced = false;
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

}  // namespace trireme::simt
