#include <map>
#include <mutex>

#include "kernels/ptx_host/machine.h"

namespace trireme::ptx {
namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;
};

std::map<std::uintptr_t, std::uintptr_t>& ranges() {
  static auto* all = new std::map<std::uintptr_t, std::uintptr_t>;
  return *all;
}
std::mutex& guard() {
  static auto* one = new std::mutex;
  return *one;
}
Range last_found;  // of the thread that runs kernels

std::string hex(std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

void own_memory(void* begin, std::size_t bytes) {
  const std::lock_guard lock(guard());
  ranges()[reinterpret_cast<std::uintptr_t>(begin)] =
      reinterpret_cast<std::uintptr_t>(begin) + bytes;
}

void disown_memory(void* begin) {
  const std::lock_guard lock(guard());
  ranges().erase(reinterpret_cast<std::uintptr_t>(begin));
  last_found = {};
}

bool owned(const void* begin, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(begin);
  if (at >= last_found.begin && at + bytes <= last_found.end) return true;
  const std::lock_guard lock(guard());
  auto next = ranges().upper_bound(at);
  if (next == ranges().begin()) return false;
  --next;
  if (at + bytes > next->second) return false;
  last_found = {next->first, next->second};
  return true;
}

Block& block_of(Warp& warp, std::uint32_t address, int lane) {
  Cluster& cluster = *warp.block->cluster;
  const std::uint32_t rank = address >> kRankShift;
  if (rank >= cluster.blocks.size())
    warp.fail("shared address " + hex(address) + " is of no block of the cluster", lane);
  return *cluster.blocks[rank];
}

std::uint8_t* find_shared(Warp& warp, std::uint32_t address, std::size_t bytes, int lane) {
  Block& block =
      address >> kRankShift == warp.block->rank ? *warp.block : block_of(warp, address, lane);
  const std::uint32_t offset = shared_offset(address);
  if (offset < kSharedBegin || offset - kSharedBegin + bytes > block.shared.size())
    warp.fail("shared address " + hex(offset) + " + " + std::to_string(bytes) +
                  " lies outside the block's " + std::to_string(block.shared.size()) + " bytes",
              lane);
  if (bytes && (offset & (bytes - 1)) && (bytes & (bytes - 1)) == 0)
    warp.fail("shared address " + hex(offset) + " is not a multiple of " + std::to_string(bytes),
              lane);
  return block.shared.data() + (offset - kSharedBegin);
}

void mark_unfenced(Warp& warp, std::uint32_t address, std::size_t bytes, int lane) {
  Block& block = block_of(warp, address, lane);
  const std::uint32_t at = shared_offset(address) - kSharedBegin;
  for (std::size_t i = at / 2; i <= (at + bytes - 1) / 2; ++i)
    block.unfenced[i] = std::uint8_t(warp.index + 1);
}

void check_fenced(Warp& warp, std::uint32_t address, std::size_t bytes, int lane) {
  const Block& block = block_of(warp, address, lane);
  const std::uint32_t from = shared_offset(address) - kSharedBegin;
  for (std::size_t i = from / 2; i < (from + bytes + 1) / 2 && i < block.unfenced.size(); ++i)
    if (block.unfenced[i])
      warp.fail("it reads shared memory that warp " + std::to_string(block.unfenced[i] - 1) +
                    " has written and not made visible: fence.proxy.async is missing",
                lane);
}

std::uint8_t* find(Warp& warp, std::uint64_t generic, std::size_t bytes, int lane) {
  const std::uint64_t window = generic & ~std::uint64_t(0xffff'ffff);
  if (window == kSharedWindow) return find_shared(warp, std::uint32_t(generic), bytes, lane);
  if (window == kLocalWindow) {
    const std::uint64_t offset = generic - kLocalWindow;
    Block& block = *warp.block;
    if (offset + bytes > block.local_bytes)
      warp.fail("local address " + hex(offset) + " lies outside the thread's", lane);
    return block.local.data() +
           (std::size_t(warp.index) * kLanes + std::size_t(lane)) * block.local_bytes + offset;
  }
  if (generic & (bytes - 1) && (bytes & (bytes - 1)) == 0)
    warp.fail("address " + hex(generic) + " is not a multiple of " + std::to_string(bytes), lane);
  auto* at = reinterpret_cast<std::uint8_t*>(generic);
  if (!owned(at, bytes))
    warp.fail("no device memory at " + hex(generic) + " + " + std::to_string(bytes), lane);
  return at;
}

}  // namespace trireme::ptx
