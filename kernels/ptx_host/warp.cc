// Lanes of a warp run together where they stand together: the group that is furthest behind goes
// first, so that branches join again where the compiler laid them out to.
#include "kernels/ptx_host/machine.h"
#include "kernels/ptx_host/options.h"

namespace trireme::ptx {
namespace {

constexpr int kTurn = 20'000;  // instructions before another warp goes on

}  // namespace

std::uint64_t Warp::get(const Operand& operand, int lane) {
  const std::uint8_t* at = file.data() + operand.row + std::size_t(lane) * operand.bytes;
  std::uint64_t value = 0;
  switch (operand.bytes) {
    case 1:
      std::memcpy(&value, at, 1);
      break;
    case 2:
      std::memcpy(&value, at, 2);
      break;
    case 4:
      std::memcpy(&value, at, 4);
      break;
    default:
      std::memcpy(&value, at, 8);
      break;
  }
  return value;
}

void Warp::set(const Operand& operand, int lane, std::uint64_t value) {
  if (operand.row == kNoRow) return;
  std::memcpy(file.data() + operand.row + std::size_t(lane) * operand.bytes, &value,
              std::min<std::size_t>(operand.bytes, 8));
}

void Warp::fail(const std::string& why, int lane) const {
  std::string text = why + "\n  ";
  if (now && now->pc < program->code.size())
    text += "PTX line " + std::to_string(program->code[now->pc].line) + ": " +
            program->opcodes[now->pc] + ", ";
  text += "block " + std::to_string(block->id[0]) + "," + std::to_string(block->id[1]) + "," +
          std::to_string(block->id[2]) + " warp " + std::to_string(index);
  if (lane >= 0) text += " lane " + std::to_string(lane);
  throw PtxError(text + "\n  of " + program->name);
}

void Warp::merge() {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (std::size_t j = i + 1; j < groups.size();) {
      if (groups[i].pc == groups[j].pc && groups[i].token == 0 && groups[j].token == 0) {
        groups[i].mask |= groups[j].mask;
        groups[i].tired = groups[i].tired && groups[j].tired;
        groups.erase(groups.begin() + std::ptrdiff_t(j));
      } else {
        ++j;
      }
    }
  }
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return a.tired != b.tired ? !a.tired : a.pc < b.pc;
  });
}

bool Warp::turn() {
  ++turns;
  if (groups.size() > 1) merge();
  bool going = false;
  for (std::size_t i = 0; i < groups.size() && !going; ++i) going = run_group(i);
  now = nullptr;
  return going;
}

bool Warp::run_group(std::size_t which) {
  now = &groups[which];
  std::uint32_t limit = 0xffffffffu;  // where the next group stands
  for (const Group& other : groups)
    if (other.pc > now->pc) limit = std::min(limit, other.pc);
  for (Group& group : groups)
    if (&group != now) group.tired = false;
  const std::size_t before = groups.size();
  for (int done = 0; done < kTurn; ++done) {
    const Instruction& in = program->code[now->pc];
    if (!step(in)) return done > 0;
    if (groups.size() != before || now == nullptr) return true;
    if (before > 1 && (in.flow == Flow::kBranch || now->pc == limit)) return true;
  }
  now->tired = true;
  return true;
}

bool Warp::step(const Instruction& in) {
  ++program->executed[now->pc];
  std::uint32_t mask = now->mask;
  if (in.guard != kNoRow) {
    const std::uint32_t guard = *reinterpret_cast<const std::uint32_t*>(file.data() + in.guard);
    mask &= in.guard_negated ? ~guard : guard;
  }
  if (in.flow == Flow::kBranch) return branch(in, mask);
  if (mask == 0) {
    ++now->pc;
    return true;
  }
  if (!flights.empty() && !in.moves) {
    for (int i = 0; i < in.count; ++i)
      for (const auto& flight : flights)
        for (const auto& [row, element] : flight->rows)
          if (in.op[i].row == row)
            fail("a register of a wgmma that has not been waited for is used");
  }
  if (in.flow == Flow::kExit) {
    end_lanes(mask);
    return true;
  }
  if ((in.flow == Flow::kAligned || in.flow == Flow::kMembers) && !together(in, mask)) return false;
  if (!in.run(*this, in, mask)) return false;
  ++now->pc;
  return true;
}

bool Warp::branch(const Instruction& in, std::uint32_t mask) {
  if (mask == now->mask) {
    now->pc = in.target;
  } else if (mask == 0) {
    ++now->pc;
  } else {
    Group taken = *now;
    taken.mask = mask;
    taken.pc = in.target;
    now->mask &= ~mask;
    ++now->pc;
    groups.push_back(taken);
    now = nullptr;
  }
  return true;
}

bool Warp::together(const Instruction& in, std::uint32_t mask) {
  if (in.flow == Flow::kAligned) {
    if (mask == live) return true;
    if (now->mask == live) fail("only a part of the warp's lanes executes what all must");
    return false;
  }
  bool all = true;
  each_lane(mask, [&](int lane) {
    const std::uint32_t members = std::uint32_t(get(in.op[in.members], lane));
    if (!(members >> lane & 1)) fail("a lane is not in its own member mask", lane);
    if (members & ~live) fail("the member mask names lanes that have ended", lane);
    if (members & ~mask) all = false;
  });
  if (!all && now->mask == live && mask != now->mask)
    fail("the member mask names lanes that do not execute this");
  return all;
}

void Warp::end_lanes(std::uint32_t mask) {
  live &= ~mask;
  const auto count = std::uint32_t(__builtin_popcount(mask));
  block->live_threads -= count;
  now->mask &= ~mask;
  ++now->pc;
  if (now->mask == 0) {
    groups.erase(groups.begin() + (now - groups.data()));
    now = nullptr;
  }
  if (live == 0) {
    for (const auto& flight : flights)
      if (!flight->products.empty()) fail("a wgmma is open at the kernel's end");
    if (!stores.empty() && !options().open_copies)
      fail("a TMA store that nobody waited for is open at the kernel's end");
    for (BulkStore& store : stores) store.perform();
    stores.clear();
  }
}

}  // namespace trireme::ptx
