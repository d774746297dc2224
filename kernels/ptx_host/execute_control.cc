// Comparisons, selections, moves, and where a thread goes.
#include <chrono>

#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/numbers.h"

namespace trireme::ptx {
namespace {

enum class Compare : std::uint32_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan,
  kCount
};
constexpr std::string_view kCompareWords[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                              "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

template <class T>
bool compare(Compare how, T a, T b) {
  switch (how) {
    case Compare::kEq:
      return a == b;
    case Compare::kNe:
      return a < b || a > b;  // false for NaN
    case Compare::kLt:
      return a < b;
    case Compare::kLe:
      return a <= b;
    case Compare::kGt:
      return a > b;
    case Compare::kGe:
      return a >= b;
    case Compare::kEqu:
      return !(a < b || a > b);
    case Compare::kNeu:
      return a != b;
    case Compare::kLtu:
      return !(a >= b);
    case Compare::kLeu:
      return !(a > b);
    case Compare::kGtu:
      return !(a <= b);
    case Compare::kGeu:
      return !(a < b);
    case Compare::kNum:
      return a == a && b == b;
    default:
      return a != a || b != b;
  }
}

template <class T>
std::uint32_t compare_lanes(Warp& w, const Instruction& in, const Operand& x, const Operand& y) {
  const T *a = w.row<T>(x), *b = w.row<T>(y);
  const auto how = Compare(in.detail[0]);
  std::uint32_t value = 0;
  for (int i = 0; i < kLanes; ++i) value |= std::uint32_t(compare<T>(how, a[i], b[i])) << i;
  return value;
}

std::uint32_t compare_flushed(Warp& w, const Instruction& in, const Operand& x, const Operand& y) {
  const float *a = w.row<float>(x), *b = w.row<float>(y);
  std::uint32_t value = 0;
  for (int i = 0; i < kLanes; ++i)
    value |= std::uint32_t(compare<float>(Compare(in.detail[0]), flushed(a[i]), flushed(b[i])))
             << i;
  return value;
}

template <bool kBrain>
std::uint32_t compare_narrow(Warp& w, const Instruction& in, const Operand& x, const Operand& y) {
  const auto *a = w.row<std::uint16_t>(x), *b = w.row<std::uint16_t>(y);
  std::uint32_t value = 0;
  for (int i = 0; i < kLanes; ++i) {
    const float p = kBrain ? float_of_bf16(a[i]) : float_of_half(a[i]),
                q = kBrain ? float_of_bf16(b[i]) : float_of_half(b[i]);
    value |= std::uint32_t(compare<float>(Compare(in.detail[0]), p, q)) << i;
  }
  return value;
}

using CompareLanes = std::uint32_t (*)(Warp&, const Instruction&, const Operand&, const Operand&);
// operands: p, q, a, b [, c]
template <CompareLanes kCompare>
bool run_setp(Warp& w, const Instruction& in, std::uint32_t mask) {
  std::uint32_t value = kCompare(w, in, in.op[2], in.op[3]), other = ~value;
  if (in.count > 4) {
    const std::uint32_t c = w.predicate_value(in.op[4]);
    const auto join = [&](std::uint32_t v) {
      return in.detail[1] == 1 ? v & c : in.detail[1] == 2 ? v | c : v ^ c;
    };
    value = join(value);
    other = join(other);
  }
  w.set_predicate(in.op[0], value, mask);
  w.set_predicate(in.op[1], other, mask);
  return true;
}

Handler setp_of(Type t) {
  using enum Kind;
  if (t.is(kFloat, 32)) return &run_setp<&compare_lanes<float>>;
  if (t.is(kFloat, 64)) return &run_setp<&compare_lanes<double>>;
  if (t.is(kFloat, 16)) return &run_setp<&compare_narrow<false>>;
  if (t.is(kBf16, 16)) return &run_setp<&compare_narrow<true>>;
  const bool sign = t.is_signed();
  if (t.bits == 16)
    return sign ? &run_setp<&compare_lanes<std::int16_t>>
                : &run_setp<&compare_lanes<std::uint16_t>>;
  if (t.bits == 32)
    return sign ? &run_setp<&compare_lanes<std::int32_t>>
                : &run_setp<&compare_lanes<std::uint32_t>>;
  if (t.bits == 64)
    return sign ? &run_setp<&compare_lanes<std::int64_t>>
                : &run_setp<&compare_lanes<std::uint64_t>>;
  return nullptr;
}

// lo ls hi hs are lt le gt ge of unsigned numbers.
void read_compare(Decoder& d) {
  std::string_view word = d.word();
  if (word == "lo") word = "lt";
  if (word == "ls") word = "le";
  if (word == "hi") word = "gt";
  if (word == "hs") word = "ge";
  for (std::uint32_t i = 0; i < std::uint32_t(Compare::kCount); ++i)
    if (kCompareWords[i] == word) {
      d.out().detail[0] = i;
      return;
    }
  d.fail("\"." + std::string(word) + "\" is no comparison");
}

void decode_setp(Decoder& d) {
  read_compare(d);
  d.out().detail[1] = d.skip("and") ? 1 : d.skip("or") ? 2 : d.skip("xor") ? 3 : 0;
  const bool flush = d.skip("ftz");
  const Type t = d.type();
  const Text& result = d.operands().at(0);
  d.add_predicate(result.form == Form::kPair ? result.parts[0] : result);
  if (result.form == Form::kPair) {
    d.add_predicate(result.parts[1]);
  } else {
    d.add_sink();
  }
  d.add(1, t);
  d.add(2, t);
  if (d.count() == 4) d.add_predicate(d.operands()[3]);
  if (flush && t.is(Kind::kFloat, 32)) return use(d, &run_setp<&compare_flushed>);
  use(d, setp_of(t));
}

template <class T>
bool run_selp(Warp& w, const Instruction& in, std::uint32_t mask) {
  T* d = w.row<T>(in.op[0]);
  const T *a = w.row<T>(in.op[1]), *b = w.row<T>(in.op[2]);
  const std::uint32_t p = w.predicate_value(in.op[3]);
  for_lanes(mask, [=](int i) { d[i] = p >> i & 1 ? a[i] : b[i]; });
  return true;
}
void decode_selp(Decoder& d) {
  const Type t = d.type();
  if (d.count() != 4) d.fail("expected 4 operands");
  for (std::size_t i = 0; i < 3; ++i) d.add(i, t);
  d.add_predicate(d.operands()[3]);
  use(d, t.bits == 16   ? &run_selp<std::uint16_t>
         : t.bits == 32 ? &run_selp<std::uint32_t>
         : t.bits == 64 ? &run_selp<std::uint64_t>
                        : nullptr);
}

// ---- mov ----
template <class T>
bool run_move(Warp& w, const Instruction& in, std::uint32_t mask) {
  T* d = w.row<T>(in.op[0]);
  const T* a = w.row<T>(in.op[1]);
  if (!w.flights.empty()) {  // a copy of what is not there yet
    const std::uint32_t from = in.op[1].row, to = in.op[0].row;
    for (auto& flight : w.flights) {
      auto& rows = flight->rows;
      std::erase_if(rows, [&](const auto& r) { return r.first == to; });
      for (std::size_t i = 0, n = rows.size(); i < n; ++i)
        if (rows[i].first == from) rows.emplace_back(to, rows[i].second);
    }
  }
  for_lanes(mask, [=](int i) { d[i] = a[i]; });
  return true;
}

bool run_move_predicate(Warp& w, const Instruction& in, std::uint32_t mask) {
  w.set_predicate(in.op[0], w.predicate_value(in.op[1]), mask);
  return true;
}

bool run_move_address(Warp& w, const Instruction& in, std::uint32_t mask) {
  for_lanes(mask, [&](int i) { w.set(in.op[0], i, w.address(in.op[1], i)); });
  return true;
}

// b64 <- {b32, b32} and its like: detail[0] bits of a part, detail[1] the parts
bool run_join(Warp& w, const Instruction& in, std::uint32_t mask) {
  for_lanes(mask, [&](int i) {
    std::uint64_t value = 0;
    for (std::uint32_t k = 0; k < in.detail[1]; ++k) {
      const std::uint64_t part = w.get(in.op[1 + k], i) & ((std::uint64_t(1) << in.detail[0]) - 1);
      value |= part << (k * in.detail[0]);
    }
    w.set(in.op[0], i, value);
  });
  return true;
}
bool run_split(Warp& w, const Instruction& in, std::uint32_t mask) {
  for_lanes(mask, [&](int i) {
    const std::uint64_t value = w.get(in.op[in.detail[1]], i);
    for (std::uint32_t k = 0; k < in.detail[1]; ++k)
      w.set(in.op[k], i, value >> (k * in.detail[0]));
  });
  return true;
}

// Clocks count the turns of the warp: they go up.
bool run_clock(Warp& w, const Instruction& in, std::uint32_t mask) {
  ++w.turns;
  for_lanes(mask, [&](int i) { w.set(in.op[0], i, w.turns * 1000); });
  return true;
}

void decode_mov(Decoder& d) {
  const Type t = d.type();
  if (d.count() != 2) d.fail("expected 2 operands");
  const Text &to = d.operands()[0], &from = d.operands()[1];
  if (t.kind == Kind::kPredicate) {
    d.add_predicate(to);
    d.add_predicate(from);
    return use(d, &run_move_predicate);
  }
  if (from.form == Form::kSpecial &&
      (from.name.starts_with("%clock") || from.name.starts_with("%globaltimer"))) {
    d.add(to, t);
    return use(d, &run_clock);
  }
  const Text* vector = to.form == Form::kVector     ? &to
                       : from.form == Form::kVector ? &from
                                                    : nullptr;
  if (vector) {
    const auto parts = std::uint32_t(vector->parts.size());
    const Type part = {Kind::kBits, std::uint8_t(t.bits / parts), 1};
    if (t.bits > 64) d.fail("128-bit moves are not known");
    d.add(to, vector == &to ? part : t);
    d.add(from, vector == &from ? part : t);
    d.out().detail[0] = part.bits;
    d.out().detail[1] = parts;
    return use(d, vector == &to ? &run_split : &run_join);
  }
  d.add(to, t);
  if (from.form == Form::kSpecial && t.bits != 32) {
    d.add(from, {Kind::kBits, 32});
    return use(d, &run_move_address);
  }
  d.add(from, t);
  if (from.form == Form::kSymbol) return use(d, &run_move_address);
  d.out().moves = true;
  use(d, t.bits == 16   ? &run_move<std::uint16_t>
         : t.bits == 32 ? &run_move<std::uint32_t>
         : t.bits == 64 ? &run_move<std::uint64_t>
                        : nullptr);
}

// ---- flow ----
void decode_bra(Decoder& d) {
  d.skip("uni");
  d.out().flow = Flow::kBranch;
}
void decode_exit(Decoder& d) {
  d.skip("uni");
  d.out().flow = Flow::kExit;
}
bool run_trap(Warp& w, const Instruction&, std::uint32_t) {
  w.fail("the kernel has reached a trap");
}
void decode_trap(Decoder& d) { use(d, &run_trap); }
bool run_sleep(Warp& w, const Instruction&, std::uint32_t) {
  w.now->tired = true;
  return true;
}
void decode_sleep(Decoder& d) {
  d.type();
  use(d, &run_sleep);
}
// Launches that depend on each other run one after another here.
void decode_dependents(Decoder& d) {
  if (!d.skip("launch_dependents")) d.expect("wait");
  use(d, &run_nothing);
}
void decode_registers(Decoder& d) {
  const bool more = d.skip("inc");
  if (!more) d.expect("dec");
  d.expect("sync");
  d.expect("aligned");
  d.expect("u32");
  const std::uint64_t count = d.constant(d.operands().at(0));
  if (count < 24 || count > 256 || count % 8 != 0)
    d.fail("24 to 256 registers, a multiple of 8, can be asked for");
  d.out().flow = Flow::kAligned;
  use(d, &run_nothing);
}

// What a device function would do is what its name says; others are not called by kernels that are
// built here.
bool run_assert(Warp& w, const Instruction&, std::uint32_t) {
  w.fail("an assertion of the kernel does not hold");
}
bool run_print(Warp& w, const Instruction& in, std::uint32_t mask) {
  if (in.count > 0) for_lanes(mask, [&](int i) { w.set(in.op[0], i, 0); });
  return true;
}
void decode_call(Decoder& d) {
  d.skip("uni");
  for (const Text& text : d.operands()) {
    if (text.form != Form::kSymbol) continue;
    if (text.name == "__assertfail") return use(d, &run_assert);
    if (text.name == "vprintf") return use(d, &run_print);
    d.fail("calls of " + std::string(text.name) + " are not known");
  }
  d.fail("calls through registers are not known");
}

}  // namespace

std::vector<Opcode> control_opcodes() {
  return {{"setp", decode_setp},
          {"selp", decode_selp},
          {"mov", decode_mov},
          {"bra", decode_bra},
          {"exit", decode_exit},
          {"ret", decode_exit},
          {"trap", decode_trap},
          {"brkpt", decode_trap},
          {"nanosleep", decode_sleep},
          {"griddepcontrol", decode_dependents},
          {"setmaxnreg", decode_registers},
          {"call", decode_call}};
}

}  // namespace trireme::ptx
