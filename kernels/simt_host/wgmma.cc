// wgmma of Hopper. Products run at the wait that covers them: their accumulators are NaN until
// then, and their operands in shared memory count as being read.

#include "kernels/simt_host/state.h"

namespace trireme::simt {

uint64_t wgmma_descriptor_sw128(const void* tile) {
  uint64_t offset = smem_offset(*t_worker, tile, "wgmma descriptor");
  if (offset % 16)
    fault(FaultKind::kMisaligned, "wgmma operand at shared byte " + std::to_string(offset));
  return offset >> 4 | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

namespace {

// A K-major operand of 16 columns: f(row, column of 8, shared offset of 16 bytes).
template <class F>
void each_operand_chunk(uint64_t descriptor, int rows, F f) {
  uint32_t start = uint32_t(descriptor & 0x3fff) << 4, stride = uint32_t(descriptor >> 32 & 0x3fff)
                                                                << 4;
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7))
    fault(FaultKind::kWgmma,
          "only descriptors with 128-byte swizzle and base offset 0 are modelled");
  if ((start & 1023) >= 128)
    fault(FaultKind::kWgmma, "operand begins inside a 1024-byte swizzle pattern");
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < 2; ++c)
      f(r, c * 8,
        swizzle_128(start + uint32_t(r / 8) * stride + uint32_t(r % 8) * 128 + uint32_t(c) * 16));
}

void check_operands(Worker& w, const WgmmaOp& o, int me) {
  int warp = me / 32 % 4;
  bool record = warp == 0;
  if (!o.a_in_registers)
    each_operand_chunk(o.a, 64, [&](int r, int, uint32_t at) {
      if (record || r / 16 == warp) check_async_read(w, at, 16, me, record, "wgmma (A)");
    });
  each_operand_chunk(o.b, o.n, [&](int, int, uint32_t at) {
    check_async_read(w, at, 16, me, record, "wgmma (B)");
  });
}

#if defined(__GNUC__) && !SIMT_ASAN
__attribute__((target_clones("default", "arch=haswell")))
#endif
void multiply(float* __restrict d, const float* __restrict a, const float* __restrict b, int n) {
  for (int m = 0; m < 64; ++m)
    for (int k = 0; k < 16; ++k) {
      float x = a[m * 16 + k];
      for (int j = 0; j < n; ++j) d[m * n + j] += x * b[k * n + j];
    }
}

float from_bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

constexpr uint32_t kPoison = 0x7fc0dead;

Accumulator* find_accumulator(Thread& t, const float* d) {
  for (auto& a : t.accumulators)
    if (a.d == d) return &a;
  return nullptr;
}

void finish_groups(Worker& w, int first, int count, const Loc& loc) {
  Thread* t0 = &w.threads[first];
  static thread_local std::vector<float> tile, a, b;
  a.resize(64 * 16), b.resize(16 * 256), tile.resize(64 * 256);
  auto fail = [&](const char* text) {
    fault(FaultKind::kWgmma, std::string(text) + ", seen at the wait at " + where(loc));
  };
  auto move = [&](size_t g, size_t i, bool in) {  // accumulators of the 128 threads <-> tile
    int n = t0->wgmma_groups[g][i].n;
    for (int t = 0; t < 128; ++t) {
      float* v = find_accumulator(t0[t], t0[t].wgmma_groups[g][i].d)->value.data();
      float* base = &tile[size_t(t / 32 * 16 + t % 32 / 4) * n + 2 * (t & 3)];
      for (int e = 0; e < n / 2; ++e) {
        float& x = base[(e / 2 & 1) * 8 * n + e / 4 * 8 + (e & 1)];
        in ? void(x = v[e]) : void(v[e] = x);
      }
    }
  };
  for (int t = 0; t < 128; ++t)
    if (t0[t].wgmma_groups.size() != t0->wgmma_groups.size())
      fail("the threads of a warpgroup have committed different numbers of wgmma groups");
  for (int g = 0; g < count; ++g) {
    auto& ops = t0->wgmma_groups[size_t(g)];
    for (int t = 1; t < 128; ++t)
      if (t0[t].wgmma_groups[size_t(g)].size() != ops.size())
        fail("the threads of a warpgroup have issued different numbers of wgmmas");
    for (size_t i = 0; i < ops.size(); ++i) {
      auto& o = ops[i];
      for (int t = 1; t < 128; ++t) {
        auto& p = t0[t].wgmma_groups[size_t(g)][i];
        if (p.n != o.n || p.a != o.a || p.b != o.b || p.accumulate != o.accumulate ||
            p.a_in_registers != o.a_in_registers || p.loc.line() != o.loc.line())
          fail("the threads of a warpgroup have issued different wgmmas");
      }
      if (i == 0 || ops[i - 1].d != o.d) move(size_t(g), i, true);
      ++w.stats.wgmmas;
      if (o.a_in_registers) {
        for (int t = 0; t < 128; ++t) {
          auto& r = t0[t].wgmma_groups[size_t(g)][i].a_registers;
          for (int e = 0; e < 4; ++e) {
            float* x = &a[size_t(t / 32 * 16 + t % 32 / 4 + 8 * (e & 1)) * 16 + 2 * (t & 3) +
                          8 * (e >> 1)];
            x[0] = from_bf16(r[e] & 0xffff), x[1] = from_bf16(r[e] >> 16);
          }
        }
      } else {
        each_operand_chunk(o.a, 64, [&](int r, int c, uint32_t at) {
          uint16_t v[8];
          std::memcpy(v, w.smem + at, 16);
          for (int e = 0; e < 8; ++e) a[size_t(r) * 16 + c + e] = from_bf16(v[e]);
        });
      }
      each_operand_chunk(o.b, o.n, [&](int r, int c, uint32_t at) {
        uint16_t v[8];
        std::memcpy(v, w.smem + at, 16);
        for (int e = 0; e < 8; ++e) b[size_t(c + e) * o.n + r] = from_bf16(v[e]);
      });
      if (!o.accumulate) std::fill_n(tile.begin(), 64 * o.n, 0.0f);
      multiply(tile.data(), a.data(), b.data(), o.n);
      if (i + 1 == ops.size() || ops[i + 1].d != o.d) move(size_t(g), i, false);
      if (!o.a_in_registers)
        each_operand_chunk(o.a, 64,
                           [&](int, int, uint32_t at) { end_async_read(w, at, 16, first); });
      each_operand_chunk(o.b, o.n,
                         [&](int, int, uint32_t at) { end_async_read(w, at, 16, first); });
    }
  }
  for (int t = 0; t < 128; ++t) {
    Thread& th = t0[t];
    for (int g = 0; g < count; ++g) {
      for (auto& o : th.wgmma_groups.front()) {
        Accumulator& acc = *find_accumulator(th, o.d);
        if (--acc.in_flight) continue;
        --th.accumulators_in_flight;
        for (int e = 0; e < o.n / 2; ++e)
          if (std::bit_cast<uint32_t>(o.d[e]) != kPoison)
            fail("accumulator registers were written while a wgmma was in flight");
        std::copy(acc.value.begin(), acc.value.end(), o.d);
      }
      th.wgmma_groups.pop_front();
    }
  }
}

}  // namespace

void wgmma_fence() {
  Thread& t = *t_worker->current;
  t.wgmma_fenced = true;
  std::erase_if(t.accumulators, [](auto& a) { return !a.in_flight; });
}

void wgmma_issue(float* d, int n, const uint32_t* a_registers, uint64_t a, uint64_t b,
                 bool accumulate, Loc loc) {
  Worker& w = *t_worker;
  RuntimeScope scope;
  t_pc = __builtin_return_address(0);
  Thread& t = *w.current;
  if ((t.linear / 128 + 1) * 128 > w.count)
    fault(FaultKind::kWgmma, "wgmma in a warpgroup of less than 128 threads");
  if (!t.wgmma_fenced)
    fault(FaultKind::kWgmma, "wgmma at " + where(loc) + " with no wgmma.fence before it");
  WgmmaOp o{n, accumulate, a_registers != nullptr, a, b, {}, d, loc};
  if (a_registers) std::copy_n(a_registers, 4, o.a_registers);
  if (t.linear % 32 == 0 && w.checking) check_operands(w, o, t.linear);
  Accumulator* acc = find_accumulator(t, d);
  if (!acc) {
    acc = &t.accumulators.emplace_back(d, n, 0, std::vector<float>(d, d + n / 2));
  } else if (acc->n != n) {
    fault(FaultKind::kWgmma, "accumulators used with two shapes");
  } else if (!acc->in_flight && accumulate && std::memcmp(acc->value.data(), d, size_t(n) * 2)) {
    fault(FaultKind::kWgmma,
          "wgmma at " + where(loc) + ": accumulators were modified with no wgmma.fence after it");
  }
  if (acc->in_flight++ == 0) {
    ++t.accumulators_in_flight;
    std::fill_n(d, n / 2, std::bit_cast<float>(kPoison));
  }
  t.wgmma_open.push_back(o);
  t_pc = nullptr;
}

void wgmma_commit() {
  Thread& t = *t_worker->current;
  t.wgmma_groups.push_back(std::move(t.wgmma_open));
  t.wgmma_open.clear();
}

// The four warps meet here (a GPU lets each warp go on alone; kernels must not depend on either).
void wgmma_wait(int left, Loc loc) {
  Worker& w = *t_worker;
  Thread& t = *w.current;
  int first = t.linear / 128 * 128;
  if (int(t.wgmma_groups.size()) <= left) return;
  Warpgroup& g = w.warpgroups[size_t(first / 128)];
  if (g.arrived == 0) {
    g.left = left, g.loc = loc;
  } else if (g.loc.line() != loc.line() || g.left != left) {
    fault(FaultKind::kWgmma,
          "threads of a warpgroup wait at " + where(g.loc) + " and at " + where(loc));
  }
  if (++g.arrived < 128) return wait_here(w, "wgmma.wait_group", loc);
  g.arrived = 0;
  RuntimeScope scope;
  finish_groups(w, first, int(t.wgmma_groups.size()) - left, loc);
  for (int k = 127; k >= 0; --k) {
    int i = first + (w.opt.order == Order::kBackward ? 127 - k : k);
    if (i != t.linear) wake(w, i, true);
  }
}

void set_max_registers(int n, bool, Loc loc) {
  Worker& w = *t_worker;
  if (n < 24 || n > 256 || n % 8)
    fault(FaultKind::kLaunchConfig, "setmaxnreg " + std::to_string(n) + " at " + where(loc));
  w.registers[size_t(w.current->linear / 32)] = n;
}

void check_hopper_at_exit(Worker& w, const Thread& me) {
  if (!me.wgmma_open.empty() || !me.wgmma_groups.empty())
    fault(FaultKind::kWgmma, "thread leaves with wgmmas it never waited for");
  if (!me.bulk_open.empty())
    fault(FaultKind::kAsyncCopy, "thread leaves with bulk stores it never committed");
  for (auto& g : me.bulk_groups)
    for (auto& s : g)
      if (!s.done)
        fault(FaultKind::kAsyncCopy,
              "thread leaves with bulk stores that may still read shared memory");
  if (w.live) return;
  if (!w.tma_in_flight.empty())
    fault(FaultKind::kTma,
          "block ends with " + std::to_string(w.tma_in_flight.size()) + " TMA loads under way");
  int total = 0, set = 0;
  for (int r : w.registers) total += 32 * r, set += r != 0;
  if (size_t(set) == w.registers.size() && total > 65536)
    fault(FaultKind::kLaunchConfig,
          "setmaxnreg gives the block " + std::to_string(total) + " registers of 65536");
}

}  // namespace trireme::simt
