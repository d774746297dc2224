#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/mbarrier.h"

namespace trireme::ptx {

// As it lies in memory: pending 20 bits, expected 20, bytes 21 (signed), a mark that it was
// initialised, the phase's parity.
struct Mbarrier::Fields {
  std::uint32_t pending = 0, expected = 0;
  std::int32_t bytes = 0;
  bool valid = false, parity = false;
};

namespace {
constexpr std::uint32_t kMaxCount = (1u << 20) - 1;
}

Mbarrier::Mbarrier(Warp& warp, std::uint32_t address, int lane)
    : warp_(warp), at_(find_shared(warp, address, 8, lane)), lane_(lane) {}

std::uint64_t Mbarrier::state() const {
  std::uint64_t bits;
  std::memcpy(&bits, at_, 8);
  return bits;
}

Mbarrier::Fields Mbarrier::read() const {
  const std::uint64_t bits = state();
  if ((bits >> 61 & 3) != 1)
    warp_.fail("the mbarrier has not been initialised, or was overwritten", lane_);
  Fields f;
  f.pending = std::uint32_t(bits) & kMaxCount;
  f.expected = std::uint32_t(bits >> 20) & kMaxCount;
  f.bytes = std::int32_t(std::uint32_t(bits >> 40) << 11) >> 11;
  f.valid = true;
  f.parity = bits >> 63;
  return f;
}

void Mbarrier::write(Fields f) {
  const std::uint64_t bits = std::uint64_t(f.pending) | std::uint64_t(f.expected) << 20 |
                             (std::uint64_t(std::uint32_t(f.bytes)) & 0x1fffff) << 40 |
                             std::uint64_t(1) << 61 | std::uint64_t(f.parity) << 63;
  std::memcpy(at_, &bits, 8);
}

void Mbarrier::end_phase_if_complete(Fields& f) {
  if (f.pending != 0 || f.bytes != 0) return;
  f.parity = !f.parity;
  f.pending = f.expected;
}

void Mbarrier::init(std::uint32_t count) {
  if (count == 0 || count > kMaxCount)
    warp_.fail("an mbarrier of " + std::to_string(count) + " arrivals", lane_);
  write({count, count, 0, true, false});
}
void Mbarrier::invalidate() {
  read();
  std::memset(at_, 0xff, 8);
}
void Mbarrier::arrive(std::uint32_t count) {
  Fields f = read();
  if (count > f.pending) warp_.fail("more arrivals than the mbarrier's phase expects", lane_);
  f.pending -= count;
  end_phase_if_complete(f);
  write(f);
}
void Mbarrier::drop(std::uint32_t count) {
  Fields f = read();
  if (count > f.pending || count > f.expected)
    warp_.fail("more arrivals than the mbarrier's phase expects", lane_);
  f.expected -= count;
  f.pending -= count;
  end_phase_if_complete(f);
  write(f);
}
void Mbarrier::expect(std::uint32_t bytes) {
  Fields f = read();
  f.bytes += std::int32_t(bytes);
  if (f.bytes > std::int32_t(kMaxCount))
    warp_.fail("an mbarrier waits for more than 2^20 - 1 bytes", lane_);
  write(f);
}
void Mbarrier::complete(std::uint32_t bytes) {
  Fields f = read();
  f.bytes -= std::int32_t(bytes);
  end_phase_if_complete(f);
  write(f);
}
bool Mbarrier::parity() const { return read().parity; }

namespace {

std::uint32_t shared_address(Warp& w, const Operand& operand, int lane) {
  return std::uint32_t(w.address(operand, lane));
}

enum class Act : std::uint32_t {
  kInit,
  kInvalidate,
  kExpect,
  kComplete,
  kArrive,
  kDrop,
  kArriveExpect
};

// Operands: state, address, count. An arrival with bytes expects them first.
template <Act kAct>
bool run_act(Warp& w, const Instruction& in, std::uint32_t mask) {
  each_lane(mask, [&](int lane) {
    Mbarrier barrier(w, shared_address(w, in.op[1], lane), lane);
    const auto count = in.count > 2 ? std::uint32_t(w.get(in.op[2], lane)) : 1;
    w.set(in.op[0], lane, kAct == Act::kInit ? 0 : barrier.state());
    switch (kAct) {
      case Act::kInit:
        barrier.init(count);
        break;
      case Act::kInvalidate:
        barrier.invalidate();
        break;
      case Act::kExpect:
        barrier.expect(count);
        break;
      case Act::kComplete:
        barrier.complete(count);
        break;
      case Act::kArrive:
        barrier.arrive(count);
        break;
      case Act::kDrop:
        barrier.drop(count);
        break;
      case Act::kArriveExpect:
        barrier.expect(count);
        barrier.arrive(1);
    }
  });
  return true;
}

// detail: by parity, waits. Operands: p, address, state or parity.
bool run_wait(Warp& w, const Instruction& in, std::uint32_t mask) {
  std::uint32_t done = 0;
  each_lane(mask, [&](int lane) {
    const Mbarrier barrier(w, shared_address(w, in.op[1], lane), lane);
    const std::uint64_t asked = w.get(in.op[2], lane);
    const bool parity = in.detail[0] ? asked & 1 : asked >> 63;
    done |= std::uint32_t(barrier.parity() != parity) << lane;
  });
  if (in.detail[1] && done == 0) return false;  // as long as the machine may: until the phase ends
  if (done != mask) w.now->tired = true;
  w.set_predicate(in.op[0], done, mask);
  return true;
}

void skip_scopes(Decoder& d) {
  static constexpr std::string_view kWords[] = {"release",     "acquire",        "relaxed",
                                                "cta",         "cluster",        "shared",
                                                "shared::cta", "shared::cluster"};
  d.skip_all(kWords);
}

template <Act kAct>
void decode_act(Decoder& d, bool has_state) {
  const auto& text = d.operands();
  if (has_state) {
    d.add(text.at(0), {Kind::kBits, 64});
  } else {
    d.add_sink();
  }
  d.add_address(text.at(has_state));
  if (text.size() > std::size_t(1 + has_state)) d.add(text[1 + has_state], {Kind::kUnsigned, 32});
  use(d, &run_act<kAct>);
}

void decode_wait(Decoder& d, bool waits) {
  d.out().detail[0] = d.skip("parity");
  d.out().detail[1] = waits;
  skip_scopes(d);
  d.expect("b64");
  if (d.count() > 4) d.fail("expected 3 operands, and how long it may take");
  const auto& text = d.operands();
  d.add_predicate(text.at(0));
  d.add_address(text.at(1));
  d.add(text.at(2), d.out().detail[0] ? Type{Kind::kUnsigned, 32} : Type{Kind::kBits, 64});
  use(d, &run_wait);
}

void decode_mbarrier(Decoder& d) {
  const std::string_view what = d.word();
  if (what == "test_wait" || what == "try_wait") return decode_wait(d, what == "try_wait");
  const bool expects = what == "arrive" && d.skip("expect_tx");
  if (d.skip("noComplete")) d.fail("arrivals that may not complete are not known");
  skip_scopes(d);
  d.expect("b64");
  if (what == "init") return decode_act<Act::kInit>(d, false);
  if (what == "inval") return decode_act<Act::kInvalidate>(d, false);
  if (what == "expect_tx") return decode_act<Act::kExpect>(d, false);
  if (what == "complete_tx") return decode_act<Act::kComplete>(d, false);
  const bool has_state = d.operands().at(0).form != Form::kAddress;
  if (what == "arrive_drop") return decode_act<Act::kDrop>(d, has_state);
  if (what != "arrive") d.fail("\"." + std::string(what) + "\" is not known here");
  if (expects) return decode_act<Act::kArriveExpect>(d, has_state);
  decode_act<Act::kArrive>(d, has_state);
}

}  // namespace

std::vector<Opcode> mbarrier_opcodes() { return {{"mbarrier", decode_mbarrier}}; }

}  // namespace trireme::ptx
