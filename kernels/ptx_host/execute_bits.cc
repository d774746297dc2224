// Bits, shifts, comparisons, selections, moves.
#include <bit>

#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/numbers.h"

namespace trireme::ptx {
namespace {

template <class T>
struct And {
  T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct Or {
  T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct Xor {
  T operator()(T a, T b) const { return a ^ b; }
};
template <class T>
struct Not {
  T operator()(T a) const { return T(~a); }
};
template <class T>
struct Popc {
  std::uint32_t operator()(T a) const { return std::uint32_t(std::popcount(a)); }
};
template <class T>
struct Clz {
  std::uint32_t operator()(T a) const { return std::uint32_t(std::countl_zero(a)); }
};
template <class T>
struct Brev {
  T operator()(T a) const {
    T r = 0;
    for (unsigned i = 0; i < 8 * sizeof(T); ++i)
      r = T(r | ((a >> i & 1) << (8 * sizeof(T) - 1 - i)));
    return r;
  }
};
// The highest bit that differs from the sign; all ones where there is none.
template <class T>
struct Bfind {
  std::uint32_t operator()(T a) const {
    const auto raw = std::make_unsigned_t<T>(a < 0 ? ~a : a);
    return raw == 0 ? ~0u : std::uint32_t(8 * sizeof(T) - 1) - std::uint32_t(std::countl_zero(raw));
  }
};

enum class Logic : std::uint32_t { kAnd, kOr, kXor, kNot, kMove };

bool run_predicate_logic(Warp& w, const Instruction& in, std::uint32_t mask) {
  const std::uint32_t a = w.predicate_value(in.op[1]);
  const std::uint32_t b = in.count > 2 ? w.predicate_value(in.op[2]) : 0;
  const auto logic = Logic(in.detail[0]);
  const std::uint32_t value = logic == Logic::kAnd   ? a & b
                              : logic == Logic::kOr  ? a | b
                              : logic == Logic::kXor ? a ^ b
                              : logic == Logic::kNot ? ~a
                                                     : a;
  w.set_predicate(in.op[0], value, mask);
  return true;
}

void decode_predicates(Decoder& d, Logic logic) {
  for (const Text& text : d.operands()) d.add_predicate(text);
  d.out().detail[0] = std::uint32_t(logic);
  use(d, &run_predicate_logic);
}

template <template <class> class F, Logic kLogic>
void decode_logic(Decoder& d) {
  const Type t = d.type();
  if (t.kind == Kind::kPredicate) return decode_predicates(d, kLogic);
  if constexpr (kLogic == Logic::kNot) {
    add_all(d, 2, t);
    use(d, integer_unary<F>(t));
  } else {
    add_all(d, 3, t);
    use(d, integer_binary<F>(t));
  }
}

// ---- shifts: the amount has 32 bits, and is cut at the width ----
template <class T, bool kLeft>
bool run_shift(Warp& w, const Instruction& in, std::uint32_t mask) {
  T* d = w.row<T>(in.op[0]);
  const T* a = w.row<T>(in.op[1]);
  const std::uint32_t* b = w.row<std::uint32_t>(in.op[2]);
  constexpr std::uint32_t kBits = 8 * sizeof(T);
  for_lanes(mask, [=](int i) {
    const std::uint32_t by = b[i];
    if constexpr (kLeft) {
      d[i] = by >= kBits ? T(0) : T(a[i] << by);
    } else {
      d[i] = T(a[i] >> std::min(by, kBits - 1));
      if (!std::is_signed_v<T> && by >= kBits) d[i] = 0;
    }
  });
  return true;
}

template <bool kLeft>
void decode_shift(Decoder& d) {
  const Type t = d.type();
  if (d.count() != 3) d.fail("expected 3 operands");
  d.add(0, t);
  d.add(1, t);
  d.add(2, {Kind::kUnsigned, 32});
  const bool sign = t.kind == Kind::kSigned && !kLeft;
  use(d,
      t.bits == 16   ? (sign ? &run_shift<std::int16_t, kLeft> : &run_shift<std::uint16_t, kLeft>)
      : t.bits == 32 ? (sign ? &run_shift<std::int32_t, kLeft> : &run_shift<std::uint32_t, kLeft>)
      : t.bits == 64 ? (sign ? &run_shift<std::int64_t, kLeft> : &run_shift<std::uint64_t, kLeft>)
                     : nullptr);
}

// ---- 32 bits of a pair ----
template <bool kLeft>
bool run_funnel(Warp& w, const Instruction& in, std::uint32_t mask) {
  auto* d = w.row<std::uint32_t>(in.op[0]);
  const auto *low = w.row<std::uint32_t>(in.op[1]), *high = w.row<std::uint32_t>(in.op[2]),
             *c = w.row<std::uint32_t>(in.op[3]);
  for_lanes(mask, [=](int i) {
    const std::uint32_t by = in.detail[0] ? c[i] & 31 : std::min(c[i], 32u);
    const std::uint64_t pair = std::uint64_t(high[i]) << 32 | low[i];
    d[i] = kLeft ? std::uint32_t((pair << by) >> 32) : std::uint32_t(pair >> by);
  });
  return true;
}
void decode_funnel(Decoder& d) {
  const bool left = d.skip("l");
  if (!left) d.expect("r");
  d.out().detail[0] = d.skip("wrap");
  if (!d.out().detail[0]) d.expect("clamp");
  const Type t = d.type();
  add_all(d, 4, t);
  use(d, left ? &run_funnel<true> : &run_funnel<false>);
}

// d = the truth table's bit of (a, b, c)
bool run_lop3(Warp& w, const Instruction& in, std::uint32_t mask) {
  auto* d = w.row<std::uint32_t>(in.op[0]);
  const auto *a = w.row<std::uint32_t>(in.op[1]), *b = w.row<std::uint32_t>(in.op[2]),
             *c = w.row<std::uint32_t>(in.op[3]);
  const std::uint32_t table = in.detail[0];
  for_lanes(mask, [=](int i) {
    std::uint32_t r = 0;
    for (std::uint32_t k = 0; k < 8; ++k)
      if (table >> k & 1)
        r |= (k & 4 ? a[i] : ~a[i]) & (k & 2 ? b[i] : ~b[i]) & (k & 1 ? c[i] : ~c[i]);
    d[i] = r;
  });
  return true;
}
void decode_lop3(Decoder& d) {
  const Type t = d.type();
  if (!t.is(Kind::kBits, 32) || d.count() != 5) d.fail("this form is not known");
  for (std::size_t i = 0; i < 4; ++i) d.add(i, t);
  d.out().detail[0] = std::uint32_t(d.constant(d.operands()[4])) & 0xff;
  use(d, &run_lop3);
}

bool run_prmt(Warp& w, const Instruction& in, std::uint32_t mask) {
  auto* d = w.row<std::uint32_t>(in.op[0]);
  const auto *a = w.row<std::uint32_t>(in.op[1]), *b = w.row<std::uint32_t>(in.op[2]),
             *c = w.row<std::uint32_t>(in.op[3]);
  for_lanes(mask, [=](int i) {
    const std::uint64_t pair = std::uint64_t(b[i]) << 32 | a[i];
    std::uint32_t r = 0;
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t pick = c[i] >> (4 * k) & 15;
      auto byte = std::uint32_t(pair >> (8 * (pick & 7)) & 0xff);
      if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
      r |= byte << (8 * k);
    }
    d[i] = r;
  });
  return true;
}
void decode_prmt(Decoder& d) {
  const Type t = d.type();
  add_all(d, 4, t);
  use(d, &run_prmt);
}

// ---- fields of bits ----
template <class T>
bool run_bfe(Warp& w, const Instruction& in, std::uint32_t mask) {
  T* d = w.row<T>(in.op[0]);
  const T* a = w.row<T>(in.op[1]);
  const auto *b = w.row<std::uint32_t>(in.op[2]), *c = w.row<std::uint32_t>(in.op[3]);
  for_lanes(mask, [=](int i) {
    constexpr int kBits = 8 * sizeof(T);
    const int at = int(b[i] & 0xff), length = int(c[i] & 0xff);
    const bool sign = std::is_signed_v<T> && length > 0 &&
                      (std::uint64_t(a[i]) >> std::min(at + length - 1, kBits - 1) & 1);
    std::make_unsigned_t<T> r = 0;
    for (int k = 0; k < kBits; ++k) {
      const bool bit = k < length && at + k < kBits ? std::uint64_t(a[i]) >> (at + k) & 1 : sign;
      r = std::make_unsigned_t<T>(r | std::make_unsigned_t<T>(bit) << k);
    }
    d[i] = T(r);
  });
  return true;
}
void decode_bfe(Decoder& d) {
  const Type t = d.type();
  for (std::size_t i = 0; i < 4; ++i) d.add(i, i < 2 ? t : Type{Kind::kUnsigned, 32});
  use(d, t.bits == 32 ? (t.is_signed() ? &run_bfe<std::int32_t> : &run_bfe<std::uint32_t>)
                      : (t.is_signed() ? &run_bfe<std::int64_t> : &run_bfe<std::uint64_t>));
}

template <class T>
bool run_bfi(Warp& w, const Instruction& in, std::uint32_t mask) {
  T* d = w.row<T>(in.op[0]);
  const T *a = w.row<T>(in.op[1]), *b = w.row<T>(in.op[2]);
  const auto *c = w.row<std::uint32_t>(in.op[3]), *e = w.row<std::uint32_t>(in.op[4]);
  for_lanes(mask, [=](int i) {
    T r = b[i];
    const std::uint32_t at = c[i] & 0xff, length = e[i] & 0xff;
    for (std::uint32_t k = 0; k < length && at + k < 8 * sizeof(T); ++k)
      r = T((r & ~(T(1) << (at + k))) | ((a[i] >> k & 1) << (at + k)));
    d[i] = r;
  });
  return true;
}
void decode_bfi(Decoder& d) {
  const Type t = d.type();
  for (std::size_t i = 0; i < 5; ++i) d.add(i, i < 3 ? t : Type{Kind::kUnsigned, 32});
  use(d, t.bits == 32 ? &run_bfi<std::uint32_t> : &run_bfi<std::uint64_t>);
}

template <template <class> class F>
void decode_count(Decoder& d) {
  const Type t = d.type();
  d.add(0, {Kind::kUnsigned, 32});
  d.add(1, t);
  use(d, t.bits == 32 ? &unary<std::uint32_t, std::uint32_t, F<std::uint32_t>>
                      : &unary<std::uint32_t, std::uint64_t, F<std::uint64_t>>);
}

bool run_bfind(Warp& w, const Instruction& in, std::uint32_t mask) {
  const Type t = unpack(in.detail[0]);
  auto* d = w.row<std::uint32_t>(in.op[0]);
  for_lanes(mask, [&](int i) {
    const std::uint64_t v = w.get(in.op[1], i);
    std::uint32_t r = t.bits == 32 ? (t.is_signed() ? Bfind<std::int32_t>()(std::int32_t(v))
                                                    : Bfind<std::uint32_t>()(std::uint32_t(v)))
                                   : (t.is_signed() ? Bfind<std::int64_t>()(std::int64_t(v))
                                                    : Bfind<std::uint64_t>()(v));
    if (in.detail[1] && r != ~0u) r = t.bits - 1u - r;
    d[i] = r;
  });
  return true;
}
void decode_bfind(Decoder& d) {
  d.out().detail[1] = d.skip("shiftamt");
  const Type t = d.type();
  d.out().detail[0] = pack(t);
  d.add(0, {Kind::kUnsigned, 32});
  d.add(1, t);
  use(d, &run_bfind);
}

void decode_brev(Decoder& d) {
  const Type t = d.type();
  add_all(d, 2, t);
  use(d, integer_unary<Brev>(t));
}

}  // namespace

std::vector<Opcode> bits_opcodes() {
  return {{"and", decode_logic<And, Logic::kAnd>},
          {"or", decode_logic<Or, Logic::kOr>},
          {"xor", decode_logic<Xor, Logic::kXor>},
          {"not", decode_logic<Not, Logic::kNot>},
          {"shl", decode_shift<true>},
          {"shr", decode_shift<false>},
          {"shf", decode_funnel},
          {"lop3", decode_lop3},
          {"prmt", decode_prmt},
          {"bfe", decode_bfe},
          {"bfi", decode_bfi},
          {"popc", decode_count<Popc>},
          {"clz", decode_count<Clz>},
          {"bfind", decode_bfind},
          {"brev", decode_brev}};
}

}  // namespace trireme::ptx
