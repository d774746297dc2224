#include <cstdlib>

#include "kernels/ptx_host/machine.h"
#include "kernels/ptx_host/options.h"

namespace trireme::ptx {
namespace {

constexpr std::uint8_t kPoison = 0xff;

std::uint64_t special(const Warp& warp, const Launch& launch, Special what, int lane) {
  const Block& block = *warp.block;
  const std::uint32_t thread = warp.index * kLanes + std::uint32_t(lane);
  const auto* b = launch.block;
  const auto axis = [&](Special first) { return int(what) - int(first); };
  using enum Special;
  if (what <= kTidZ) {
    const std::uint32_t tid[3] = {thread % b[0], thread / b[0] % b[1], thread / (b[0] * b[1])};
    return tid[axis(kTidX)];
  }
  if (what <= kNtidZ) return b[axis(kNtidX)];
  if (what <= kCtaidZ) return block.id[axis(kCtaidX)];
  if (what <= kNctaidZ) return launch.grid[axis(kNctaidX)];
  if (what <= kClusterCtaidZ)
    return block.id[axis(kClusterCtaidX)] % launch.cluster[axis(kClusterCtaidX)];
  if (what <= kClusterNctaidZ) return launch.cluster[axis(kClusterNctaidX)];
  if (what <= kClusteridZ) return block.id[axis(kClusteridX)] / launch.cluster[axis(kClusteridX)];
  if (what <= kNclusteridZ)
    return launch.grid[axis(kNclusteridX)] / launch.cluster[axis(kNclusteridX)];
  const std::size_t blocks = block.cluster->blocks.size();
  switch (what) {
    case kClusterCtarank:
      return block.rank;
    case kClusterNctarank:
      return blocks;
    case kIsExplicitCluster:
      return blocks > 1;
    case kLaneid:
      return std::uint64_t(lane);
    case kWarpid:
      return warp.index;
    case kNwarpid:
      return block.warps.size();
    case kNsmid:
      return 132;
    case kLanemaskEq:
      return 1u << lane;
    case kLanemaskLe:
      return (2u << lane) - 1;
    case kLanemaskLt:
      return (1u << lane) - 1;
    case kLanemaskGe:
      return ~((1u << lane) - 1);
    case kLanemaskGt:
      return ~((2u << lane) - 1);
    case kDynamicSmemSize:
      return launch.dynamic_shared;
    case kTotalSmemSize:
      return block.shared.size();
    default:
      return 0;  // %smid %gridid: one SM, one grid
  }
}

void begin_warp(Warp& warp, const Launch& launch) {
  const Program& program = *launch.program;
  warp.program = &program;
  warp.file = program.registers;
  const std::uint32_t first = warp.index * kLanes, threads = warp.block->threads;
  warp.live = threads - first >= std::uint32_t(kLanes) ? kAllLanes : (1u << (threads - first)) - 1;
  warp.groups = {{0, warp.live, 0, false}};
  for (const SpecialRow& row : program.specials)
    for (int lane = 0; lane < kLanes; ++lane)
      reinterpret_cast<std::uint32_t*>(warp.file.data() + row.row)[lane] =
          std::uint32_t(special(warp, launch, row.what, lane));
  for (const Operand& row : program.shared_rows)
    for (int lane = 0; lane < kLanes; ++lane)
      warp.set(row, lane,
               std::uint64_t(row.offset) + (std::uint64_t(warp.block->rank) << kRankShift));
  for (int lane = 0; lane < kLanes; ++lane)
    reinterpret_cast<std::uint64_t*>(warp.file.data() + program.param_row)[lane] =
        reinterpret_cast<std::uint64_t>(warp.block->cluster->params->bytes);
}

std::unique_ptr<Block> make_block(Cluster& cluster, const Launch& launch,
                                  const std::uint32_t (&id)[3]) {
  auto block = std::make_unique<Block>();
  block->cluster = &cluster;
  std::copy(id, id + 3, block->id);
  block->rank = std::uint32_t(cluster.blocks.size());
  block->threads = launch.block[0] * launch.block[1] * launch.block[2];
  block->live_threads = block->threads;
  const Program& program = *launch.program;
  block->shared.assign(program.shared_bytes + launch.dynamic_shared, kPoison);
  block->unfenced.assign(block->shared.size() / 2 + 1, 0);
  block->local_bytes = program.local_bytes;
  const std::uint32_t warps = (block->threads + kLanes - 1) / kLanes;
  block->local.assign(program.local_bytes * warps * kLanes, kPoison);
  block->warps.resize(warps);
  return block;
}

[[noreturn]] void fail_deadlock(Cluster& cluster) {
  std::string text = "no thread can go on, in " + cluster.launch->program->name;
  int listed = 0;
  for (const auto& block : cluster.blocks)
    for (const Warp& warp : block->warps)
      for (const Group& group : warp.groups)
        if (listed++ < 24)
          text += "\n  block " + std::to_string(block->id[0]) + "," + std::to_string(block->id[1]) +
                  "," + std::to_string(block->id[2]) + " warp " + std::to_string(warp.index) +
                  " line " + std::to_string(warp.program->code[group.pc].line) + " " +
                  warp.program->opcodes[group.pc];
  throw PtxError(text);
}

void run_cluster(Cluster& cluster) {
  for (;;) {
    bool going = false, alive = false;
    for (const auto& block : cluster.blocks) {
      for (Warp& warp : block->warps) {
        if (warp.live == 0) continue;
        alive = true;
        going |= warp.turn();
      }
    }
    if (!alive) break;
    if (going) continue;
    if (cluster.pending.empty()) fail_deadlock(cluster);
    const auto arrival = std::move(cluster.pending.front());
    cluster.pending.pop_front();
    arrival();
  }
  if (!cluster.pending.empty() && !options().open_copies)
    throw PtxError(cluster.launch->program->name + ": a TMA load is open at the kernel's end");
}

}  // namespace

std::uint32_t Cluster::live_threads() const {
  std::uint32_t count = 0;
  for (const auto& block : blocks) count += block->live_threads;
  return count;
}

void run_grid(const Launch& launch) {
  const auto* g = launch.grid;
  const auto* c = launch.cluster;
  std::uint32_t at[3];
  for (at[2] = 0; at[2] < g[2]; at[2] += c[2])
    for (at[1] = 0; at[1] < g[1]; at[1] += c[1])
      for (at[0] = 0; at[0] < g[0]; at[0] += c[0]) {
        Cluster cluster;
        cluster.launch = &launch;
        std::copy(launch.params.begin(), launch.params.end(), cluster.params->bytes);
        own_memory(cluster.params->bytes, launch.params.size());
        for (std::uint32_t i = 0; i < c[0] * c[1] * c[2]; ++i) {
          const std::uint32_t id[3] = {at[0] + i % c[0], at[1] + i / c[0] % c[1],
                                       at[2] + i / (c[0] * c[1])};
          cluster.blocks.push_back(make_block(cluster, launch, id));
        }
        for (const auto& block : cluster.blocks)
          for (std::size_t w = 0; w < block->warps.size(); ++w) {
            block->warps[w].block = block.get();
            block->warps[w].index = std::uint32_t(w);
            begin_warp(block->warps[w], launch);
          }
        try {
          run_cluster(cluster);
        } catch (...) {
          disown_memory(cluster.params->bytes);
          throw;
        }
        disown_memory(cluster.params->bytes);
      }
}

}  // namespace trireme::ptx
