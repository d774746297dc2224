// wgmma of Hopper. Products run at the wait that covers them: their accumulators are NaN until
// then, and their operands in shared memory count as being read.

#include "kernels/simt_host/state.h"
#include "kernels/simt_host/wgmma_sums.h"

namespace trireme::simt {

namespace {
constexpr int kRankBit = 54;
}

uint64_t wgmma_descriptor(const void* tile, uint32_t leading_bytes) {
  uint64_t offset = smem_offset(*t_worker, tile, "wgmma descriptor");
  if (offset % 16)
    fault(FaultKind::kMisaligned, "wgmma operand at shared byte " + std::to_string(offset));
  if (leading_bytes % 16 || leading_bytes >= 1 << 18)
    fault(FaultKind::kWgmma,
          "wgmma operand with blocks " + std::to_string(leading_bytes) + " bytes apart");
  // Bits that a GPU does not use say whose shared memory it is.
  const uint64_t rank = offset / kSmemMax;
  offset %= kSmemMax;
  return rank << kRankBit | offset >> 4 | uint64_t(leading_bytes >> 4) << 16 |
         uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

namespace {

/// Eight bf16 or 16 codes of an operand that stand together in shared memory.
struct Chunk {
  int row, k;  // of the first; row along M or N
  bool along_k;
  uint32_t at;
};

/// The 16-byte parts of an operand of `rows` x 32 bytes (PTX ISA, wgmma's layouts, 128-byte
/// swizzle).
template <class F>
void each_chunk(uint64_t descriptor, int rows, bool mn_major, int element_bytes, F f) {
  const auto start = (uint32_t(descriptor & 0x3fff) << 4) +
                     uint32_t(descriptor >> kRankBit & 7) * uint32_t(kSmemMax);
  const auto leading = uint32_t(descriptor >> 16 & 0x3fff) << 4;
  const auto stride = uint32_t(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7))
    fault(FaultKind::kWgmma,
          "only descriptors with 128-byte swizzle and base offset 0 are modelled");
  if ((start & 1023) >= (mn_major ? 1u : 128u))
    fault(FaultKind::kWgmma, "operand begins inside a 1024-byte swizzle pattern");
  if (stride % 1024 || (mn_major && rows > 64 && (leading % 1024 || leading == 0)))
    fault(FaultKind::kWgmma, "operand whose 1024-byte swizzle patterns stand " +
                                 std::to_string(stride) + " and " + std::to_string(leading) +
                                 " bytes apart");
  if (mn_major) {
    for (int row = 0; row < rows; row += 8)
      for (int k = 0; k < 16; ++k) {
        const uint32_t at = start + uint32_t(row / 64) * leading + uint32_t(k / 8) * stride +
                            uint32_t(k % 8) * 128 + uint32_t(row % 64) * 2;
        f(Chunk{row, k, false, swizzled(at, 128)});
      }
    return;
  }
  for (int row = 0; row < rows; ++row)
    for (int byte = 0; byte < 32; byte += 16) {
      const uint32_t at =
          start + uint32_t(row / 8) * stride + uint32_t(row % 8) * 128 + uint32_t(byte);
      f(Chunk{row, byte / element_bytes, true, swizzled(at, 128)});
    }
}
template <class F>
void each_chunk_of_a(const WgmmaOp& op, F f) {
  if (!op.a_in_registers) each_chunk(op.a, 64, op.shape.a_mn_major, bytes_of(op.shape.a), f);
}
template <class F>
void each_chunk_of_b(const WgmmaOp& op, F f) {
  each_chunk(op.b, op.shape.n, op.shape.b_mn_major, bytes_of(op.shape.b), f);
}

void check_operands(Worker& w, const WgmmaOp& op, int me) {
  const int warp = me / 32 % 4;
  const bool record = warp == 0;
  each_chunk_of_a(op, [&](const Chunk& c) {
    if (record || c.row / 16 == warp) check_async_read(w, c.at, 16, me, record, "wgmma (A)");
  });
  each_chunk_of_b(op,
                  [&](const Chunk& c) { check_async_read(w, c.at, 16, me, record, "wgmma (B)"); });
}

constexpr uint32_t kPoison = 0x7fc0dead;

Accumulator* find_accumulator(Thread& t, const float* d) {
  for (auto& a : t.accumulators)
    if (a.d == d) return &a;
  return nullptr;
}

/// The products of a warpgroup, whose 128 threads must all have asked for the same.
class Warpgroup128 {
 public:
  Warpgroup128(Worker& w, int first, const Loc& loc)
      : w_(w), first_(first), threads_(&w.threads[size_t(first)]), loc_(loc) {
    a_.resize(64 * 32), b_.resize(32 * 256), tile_.resize(64 * 256);
  }

  /// Executes the oldest groups and gives the threads their accumulators.
  void finish(int groups) {
    for (int t = 0; t < 128; ++t)
      if (threads_[t].wgmma_groups.size() != threads_->wgmma_groups.size())
        fail("the threads of a warpgroup have committed different numbers of wgmma groups");
    for (int g = 0; g < groups; ++g) execute_group(size_t(g));
    for (int t = 0; t < 128; ++t)
      for (int g = 0; g < groups; ++g) hand_over(threads_[t]);
  }

 private:
  [[noreturn]] void fail(const char* text) const {
    fault(FaultKind::kWgmma, std::string(text) + ", seen at the wait at " + where(loc_));
  }

  const std::vector<WgmmaOp>& group(int thread, size_t g) const {
    return threads_[thread].wgmma_groups[g];
  }

  void execute_group(size_t g) {
    const auto& ops = group(0, g);
    for (int t = 1; t < 128; ++t)
      if (group(t, g).size() != ops.size())
        fail("the threads of a warpgroup have issued different numbers of wgmmas");
    for (size_t i = 0; i < ops.size(); ++i) {
      const WgmmaOp& op = ops[i];
      for (int t = 1; t < 128; ++t) {
        const WgmmaOp& other = group(t, g)[i];
        if (!(other.shape == op.shape) || other.a != op.a || other.b != op.b ||
            other.a_in_registers != op.a_in_registers || other.loc.line() != op.loc.line())
          fail("the threads of a warpgroup have issued different wgmmas");
      }
      const int n = op.shape.n;
      if (i == 0 || ops[i - 1].d != op.d) move_accumulators(g, i, true);
      if (!op.shape.accumulate) std::fill_n(tile_.begin(), 64 * n, 0.0f);
      load_operands(g, i);
      ++w_.stats.wgmmas;
      multiply(op.shape, tile_.data(), a_.data(), b_.data());
      if (i + 1 == ops.size() || ops[i + 1].d != op.d) move_accumulators(g, i, false);
      each_chunk_of_a(op, [&](const Chunk& c) { end_async_read(w_, c.at, 16, first_); });
      each_chunk_of_b(op, [&](const Chunk& c) { end_async_read(w_, c.at, 16, first_); });
    }
  }

  /// Between the true values of the threads' accumulators and the tile.
  void move_accumulators(size_t g, size_t i, bool in) {
    const int n = group(0, g)[i].shape.n;
    for (int t = 0; t < 128; ++t) {
      float* value = find_accumulator(threads_[t], group(t, g)[i].d)->value.data();
      float* base = &tile_[size_t(t / 32 * 16 + t % 32 / 4) * size_t(n) + size_t(2 * (t & 3))];
      for (int e = 0; e < n / 2; ++e) {
        float& x = base[(e / 2 & 1) * 8 * n + e / 4 * 8 + (e & 1)];
        in ? void(x = value[e]) : void(value[e] = x);
      }
    }
  }

  void load_operands(size_t g, size_t i) {
    const WgmmaOp& op = group(0, g)[i];
    const int depth = depth_of(op.shape);
    const auto spread = [&](const Chunk& c, WgmmaFormat format, float* to, int row_stride,
                            int k_stride) {
      to += c.row * row_stride + c.k * k_stride;
      const int step = c.along_k ? k_stride : row_stride;
      if (format == WgmmaFormat::kBf16) {
        uint16_t bits[8];
        std::memcpy(bits, w_.smem + c.at, 16);
        for (int e = 0; e < 8; ++e) to[e * step] = float_of_bf16(bits[e]);
      } else {
        for (int e = 0; e < 16; ++e)
          to[e * step] = float_of_code(format, w_.smem[c.at + uint32_t(e)]);
      }
    };
    each_chunk_of_a(op, [&](const Chunk& c) { spread(c, op.shape.a, a_.data(), depth, 1); });
    each_chunk_of_b(op, [&](const Chunk& c) { spread(c, op.shape.b, b_.data(), 1, op.shape.n); });
    if (!op.a_in_registers) return;
    for (int t = 0; t < 128; ++t) {
      const auto& registers = group(t, g)[i].a_registers;
      for (int e = 0; e < 4; ++e) {
        const int row = t / 32 * 16 + t % 32 / 4 + 8 * (e & 1), k = 2 * (t & 3) + 8 * (e >> 1);
        a_[size_t(row * 16 + k)] = float_of_bf16(registers[e] & 0xffff);
        a_[size_t(row * 16 + k + 1)] = float_of_bf16(registers[e] >> 16);
      }
    }
  }

  void hand_over(Thread& thread) {
    for (const WgmmaOp& op : thread.wgmma_groups.front()) {
      Accumulator& accumulator = *find_accumulator(thread, op.d);
      if (--accumulator.in_flight) continue;
      --thread.accumulators_in_flight;
      for (int e = 0; e < op.shape.n / 2; ++e)
        if (std::bit_cast<uint32_t>(op.d[e]) != kPoison)
          fail("accumulator registers were written while a wgmma was in flight");
      std::copy(accumulator.value.begin(), accumulator.value.end(), op.d);
    }
    thread.wgmma_groups.pop_front();
  }

  Worker& w_;
  int first_;
  Thread* threads_;
  const Loc& loc_;
  inline static thread_local std::vector<float> tile_, a_, b_;
};

}  // namespace

void wgmma_fence() {
  Thread& t = *t_worker->current;
  t.wgmma_fenced = true;
  std::erase_if(t.accumulators, [](auto& a) { return !a.in_flight; });
}

void wgmma_issue(float* d, const WgmmaShape& shape, const uint32_t* a_registers, uint64_t a,
                 uint64_t b, Loc loc) {
  Worker& w = *t_worker;
  RuntimeScope scope;
  t_pc = __builtin_return_address(0);
  Thread& t = *w.current;
  const int n = shape.n;
  if ((t.linear / 128 + 1) * 128 > w.count)
    fault(FaultKind::kWgmma, "wgmma in a warpgroup of less than 128 threads");
  if (!t.wgmma_fenced)
    fault(FaultKind::kWgmma, "wgmma at " + where(loc) + " with no wgmma.fence before it");
  WgmmaOp op{shape, a_registers != nullptr, a, b, {}, d, loc};
  if (a_registers) std::copy_n(a_registers, 4, op.a_registers);
  if (t.linear % 32 == 0 && w.checking) check_operands(w, op, t.linear);
  Accumulator* acc = find_accumulator(t, d);
  if (!acc) {
    acc = &t.accumulators.emplace_back(d, n, 0, std::vector<float>(d, d + n / 2));
  } else if (acc->n != n) {
    fault(FaultKind::kWgmma, "accumulators used with two shapes");
  } else if (!acc->in_flight && shape.accumulate &&
             std::memcmp(acc->value.data(), d, size_t(n) * 2) != 0) {
    fault(FaultKind::kWgmma,
          "wgmma at " + where(loc) + ": accumulators were modified with no wgmma.fence after it");
  }
  if (acc->in_flight++ == 0) {
    ++t.accumulators_in_flight;
    std::fill_n(d, n / 2, std::bit_cast<float>(kPoison));
  }
  t.wgmma_open.push_back(op);
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
  Warpgroup128(w, first, loc).finish(int(t.wgmma_groups.size()) - left);
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
  if (size_t(set) == w.registers.size() && total > 65536 * w.cluster)
    fault(FaultKind::kLaunchConfig,
          "setmaxnreg gives the block " + std::to_string(total) + " registers of 65536");
}

}  // namespace trireme::simt
