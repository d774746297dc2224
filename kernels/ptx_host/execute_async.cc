// cp.async and the fences. Bytes arrive at the wait that covers them; what is read earlier is
// poison.
#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/mbarrier.h"
#include "kernels/ptx_host/tma.h"

namespace trireme::ptx {
namespace {

constexpr std::uint8_t kPoison = 0xff;

void arrive(Warp& w, const AsyncCopy& copy) {
  std::uint8_t* to = find_shared(w, copy.to, copy.bytes, copy.lane);
  std::memset(to, 0, copy.bytes);
  if (copy.valid) std::memcpy(to, find(w, copy.from, 1, copy.lane), copy.valid);
}

// Copies of the lanes in groups before the one that each lane names.
void finish_copies(Warp& w, std::uint32_t mask, std::uint32_t open) {
  std::erase_if(w.copies, [&](const AsyncCopy& copy) {
    if (!(mask >> copy.lane & 1) || copy.group + open >= w.copy_group[copy.lane]) return false;
    arrive(w, copy);
    return true;
  });
}

// detail: bytes. Operands: to, from [, valid bytes]
bool run_copy(Warp& w, const Instruction& in, std::uint32_t mask) {
  each_lane(mask, [&](int lane) {
    AsyncCopy copy;
    copy.bytes = std::uint16_t(in.detail[0]);
    copy.valid = in.count > 2 ? std::uint16_t(w.get(in.op[2], lane)) : copy.bytes;
    if (copy.valid > copy.bytes) w.fail("cp.async takes more bytes than it writes", lane);
    copy.to = std::uint32_t(w.address(in.op[0], lane));
    copy.from = w.address(in.op[1], lane);
    copy.lane = std::uint16_t(lane);
    copy.group = w.copy_group[lane];
    std::uint8_t* to = find_shared(w, copy.to, copy.bytes, lane);
    if (copy.valid) {
      find(w, copy.from, copy.valid, lane);
      if (copy.from % copy.bytes)
        w.fail("cp.async reads an address that is not a multiple of its size", lane);
    }
    std::memset(to, kPoison, copy.bytes);
    w.copies.push_back(copy);
  });
  return true;
}
bool run_commit(Warp& w, const Instruction&, std::uint32_t mask) {
  each_lane(mask, [&](int lane) { ++w.copy_group[lane]; });
  return true;
}
bool run_wait(Warp& w, const Instruction& in, std::uint32_t mask) {
  finish_copies(w, mask, in.detail[0]);
  return true;
}
bool run_wait_all(Warp& w, const Instruction&, std::uint32_t mask) {
  each_lane(mask, [&](int lane) { ++w.copy_group[lane]; });
  finish_copies(w, mask, 0);
  return true;
}

// An arrival when the thread's copies are there. Without .noinc it is counted on top of what the
// barrier expects.
bool run_copy_arrive(Warp& w, const Instruction& in, std::uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const auto address = std::uint32_t(w.address(in.op[0], lane));
    if (!in.detail[0]) w.fail("cp.async.mbarrier.arrive is known with .noinc only", lane);
    ++w.copy_group[lane];
    finish_copies(w, 1u << lane, 0);
    Mbarrier(w, address, lane).arrive(1);
  });
  return true;
}

void decode_copy_arrive(Decoder& d) {
  d.expect("arrive");
  d.out().detail[0] = d.skip("noinc");
  if (!d.skip("shared")) d.skip("shared::cta");
  d.expect("b64");
  d.add_address(d.operands().at(0));
  use(d, &run_copy_arrive);
}

void decode_cp(Decoder& d) {
  const bool reduces = d.skip("reduce");
  d.expect("async");
  if (reduces || d.next_is("bulk")) return decode_bulk(d, reduces);
  if (d.skip("commit_group")) return use(d, &run_commit);
  if (d.skip("wait_all")) return use(d, &run_wait_all);
  if (d.skip("mbarrier")) return decode_copy_arrive(d);
  if (d.skip("wait_group")) {
    d.out().detail[0] = std::uint32_t(d.constant(d.operands().at(0)));
    return use(d, &run_wait);
  }
  if (!d.skip("ca")) d.expect("cg");
  if (!d.skip("shared")) d.expect("shared::cta");
  d.expect("global");
  d.skip("L2::cache_hint");
  for (const char* hint : {"L2::64B", "L2::128B", "L2::256B"}) d.skip(hint);
  const auto& text = d.operands();
  d.add_address(text.at(0));
  d.add_address(text.at(1));
  const std::uint64_t bytes = d.constant(text.at(2));
  if (bytes != 4 && bytes != 8 && bytes != 16) d.fail("4, 8 or 16 bytes are copied");
  d.out().detail[0] = std::uint32_t(bytes);
  if (text.size() > 3) d.add(3, {Kind::kUnsigned, 32});
  use(d, &run_copy);
}

// ---- fences. Of the memory order only the proxies show here: blocks run in order. ----
bool run_proxy_fence(Warp& w, const Instruction&, std::uint32_t) {
  for (const auto& block : w.block->cluster->blocks)
    for (std::uint8_t& writer : block->unfenced)
      if (writer == w.index + 1) writer = 0;
  return true;
}
void decode_fence(Decoder& d) {
  if (d.skip("proxy")) {
    if (d.skip("async")) {
      const bool global = d.skip("global");
      if (!global) d.skip("shared::cta");
      return use(d, global ? &run_nothing : &run_proxy_fence);
    }
    if (!d.skip("alias") && !d.skip("tensormap::generic")) d.fail("this proxy is not known");
    static constexpr std::string_view kScopes[] = {"acquire", "release", "cta",
                                                   "cluster", "gpu",     "sys"};
    d.skip_all(kScopes);
    return use(d, &run_nothing);
  }
  static constexpr std::string_view kWords[] = {
      "sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "sys", "gl", "mbarrier_init"};
  d.skip_all(kWords);
  use(d, &run_nothing);
}

}  // namespace

std::vector<Opcode> async_opcodes() {
  return {{"cp", decode_cp}, {"fence", decode_fence}, {"membar", decode_fence}};
}

}  // namespace trireme::ptx
