#pragma once
// What executes: device memory, a cluster's blocks, their warps.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ptx_host/program.h"

namespace trireme::ptx {

// Generic addresses. Device memory is the process's own; the windows lie where no process has
// memory.
constexpr std::uint64_t kSharedWindow = 0x0100'0000'0000'0000, kLocalWindow = 0x0200'0000'0000'0000;
// A 32-bit shared address: the block's rank in the cluster, then the offset. Offsets begin behind
// what the system keeps.
constexpr int kRankShift = 24;
constexpr std::uint32_t kSharedBegin = 1024;

/// What a launch is, beside its kernel.
struct Launch {
  const Program* program = nullptr;
  std::uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, cluster[3] = {1, 1, 1};
  std::size_t dynamic_shared = 0;
  std::vector<std::uint8_t> params;
};

struct Block;
struct Cluster;

/// Lanes of a warp that stand at one instruction.
struct Group {
  std::uint32_t pc = 0, mask = 0;
  std::uint64_t token = 0;  // what a handler that waits keeps between its calls
  bool tired = false;       // its turn is over, others go first
};

/// Bytes that cp.async has yet to bring.
struct AsyncCopy {
  std::uint64_t from;
  std::uint32_t to;
  std::uint16_t bytes, valid;
  std::uint16_t lane;
  std::uint32_t group;
};

/// One wgmma that was asked for: the warp's 16 rows of it.
struct Product {
  std::uint32_t shape_n = 0, kind = 0;
  std::uint64_t a = 0, b = 0;              // descriptors
  std::vector<std::uint32_t> a_registers;  // 4 x 32 lanes where A comes from registers
  std::uint32_t group = 0;
  bool accumulate = false, negate_a = false, negate_b = false, transpose_a = false,
       transpose_b = false;
};

/// The accumulators of wgmmas in flight and the rows that they go to, by element. A row may be a
/// copy of another's.
struct Flight {
  std::vector<Product> products;
  std::vector<std::uint32_t> start;                 // values, row after row
  std::vector<std::pair<std::uint32_t, int>> rows;  // row, element
  std::size_t registers = 0;
};

/// A TMA store: read at its wait.
struct BulkStore {
  std::function<void()> perform;
  std::uint32_t group;
  int lane;
};

struct Warp {
  Block* block = nullptr;
  const Program* program = nullptr;
  std::uint32_t index = 0, live = 0;
  std::vector<std::uint8_t> file;
  std::vector<Group> groups;
  Group* now = nullptr;
  std::vector<AsyncCopy> copies;
  std::uint32_t copy_group[kLanes] = {};
  std::vector<std::unique_ptr<Flight>> flights;
  std::uint32_t wgmma_group = 0;
  std::vector<BulkStore> stores;
  std::uint32_t store_group[kLanes] = {};
  std::uint32_t cluster_phase = 0;
  std::uint64_t turns = 0;

  template <class T>
  T* row(const Operand& operand) {
    return reinterpret_cast<T*>(file.data() + operand.row);
  }
  std::uint32_t& predicate(const Operand& operand) {
    return *reinterpret_cast<std::uint32_t*>(file.data() + operand.row);
  }
  std::uint32_t predicate_value(const Operand& operand) {
    return operand.negated ? ~predicate(operand) : predicate(operand);
  }
  void set_predicate(const Operand& operand, std::uint32_t value, std::uint32_t mask) {
    if (operand.row == kNoRow) return;
    predicate(operand) = (predicate(operand) & ~mask) | (value & mask);
  }
  /// The element as an unsigned number, whatever its width; likewise back, cut to the width.
  std::uint64_t get(const Operand& operand, int lane);
  void set(const Operand& operand, int lane, std::uint64_t value);
  std::uint64_t address(const Operand& operand, int lane) {
    return get(operand, lane) + std::uint64_t(operand.offset);
  }

  /// True where some lane went on.
  bool turn();
  [[noreturn]] void fail(const std::string& why, int lane = -1) const;

 private:
  bool run_group(std::size_t which);
  bool step(const Instruction& in);
  bool branch(const Instruction& in, std::uint32_t mask);
  bool together(const Instruction& in, std::uint32_t mask);
  void end_lanes(std::uint32_t mask);
  void merge();
};

/// A hardware barrier, `bar`.
struct Barrier {
  std::uint32_t arrived = 0, expected = 0;
  std::uint64_t generation = 0;
};

struct Block {
  Cluster* cluster = nullptr;
  std::uint32_t id[3] = {0, 0, 0}, rank = 0, threads = 0;
  std::vector<std::uint8_t> shared;
  std::vector<std::uint8_t> unfenced;  // for each 2 bytes: 1 + the warp that wrote them by the
                                       // generic proxy, without a fence since
  std::vector<std::uint8_t> local;
  std::size_t local_bytes = 0;  // of a thread
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::uint32_t live_threads = 0;
};

struct Cluster {
  const Launch* launch = nullptr;
  std::vector<std::unique_ptr<Block>> blocks;
  std::uint32_t arrived = 0, phase = 0;      // of barrier.cluster
  std::list<std::function<void()>> pending;  // TMA loads that have not arrived
  struct alignas(64) Params {
    std::uint8_t bytes[32 * 1024];
  };
  std::unique_ptr<Params> params = std::make_unique<Params>();
  std::uint32_t live_threads() const;
};

/// Runs a grid, cluster after cluster. Throws PtxError.
void run_grid(const Launch& launch);

// ---- memory ----
/// Where `bytes` at a generic address lie. Throws through the warp where nobody has that memory, or
/// it is not aligned.
std::uint8_t* find(Warp& warp, std::uint64_t generic, std::size_t bytes, int lane);
/// The same for a 32-bit address of the cluster's shared memory.
std::uint8_t* find_shared(Warp& warp, std::uint32_t address, std::size_t bytes, int lane);
Block& block_of(Warp& warp, std::uint32_t shared_address, int lane);
/// After ordinary stores, atomics and stmatrix.
void mark_unfenced(Warp& warp, std::uint32_t address, std::size_t bytes, int lane);
/// Throws where they wrote some of it and no proxy fence came behind them.
void check_fenced(Warp& warp, std::uint32_t address, std::size_t bytes, int lane);
/// Within a block's shared memory: without the rank.
constexpr std::uint32_t shared_offset(std::uint32_t address) {
  return address & ((1u << kRankShift) - 1);
}

/// Device memory is what was given out; everything else is nobody's.
void own_memory(void* begin, std::size_t bytes);
void disown_memory(void* begin);
bool owned(const void* begin, std::size_t bytes);

template <class F>
void each_lane(std::uint32_t mask, F f) {
  for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}

}  // namespace trireme::ptx
