// add sub mul mad div rem min max abs neg of integers, and the entry points of the opcodes that
// floats share.
#include <limits>

#include "kernels/ptx_host/execute_float.h"
#include "kernels/ptx_host/lanes.h"

namespace trireme::ptx {
namespace {

template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
template <class T>
using Raw = std::make_unsigned_t<T>;

template <class T>
struct Add {
  T operator()(T a, T b) const { return T(Raw<T>(a) + Raw<T>(b)); }
};
template <class T>
struct Sub {
  T operator()(T a, T b) const { return T(Raw<T>(a) - Raw<T>(b)); }
};
template <class T>
struct MulLo {
  T operator()(T a, T b) const { return T(std::uint64_t(a) * std::uint64_t(b)); }
};
template <class T>
struct MulHi {
  T operator()(T a, T b) const { return T(Wide<T>(a) * Wide<T>(b) >> (8 * sizeof(T))); }
};
// Division by zero gives what the machine gives: all ones.
template <class T>
struct Div {
  T operator()(T a, T b) const {
    if (b == 0) return T(~T(0));
    if (std::is_signed_v<T> && b == T(-1)) return T(0 - Raw<T>(a));
    return T(a / b);
  }
};
template <class T>
struct Rem {
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == T(-1)) return 0;
    return T(a % b);
  }
};
template <class T>
struct Min {
  T operator()(T a, T b) const { return a < b ? a : b; }
};
template <class T>
struct Max {
  T operator()(T a, T b) const { return a > b ? a : b; }
};
template <class T>
struct Abs {
  T operator()(T a) const { return a < T(0) ? T(0 - Raw<T>(a)) : a; }
};
template <class T>
struct Neg {
  T operator()(T a) const { return T(0 - Raw<T>(a)); }
};
struct MadLo {
  template <class T>
  T operator()(T a, T b, T c) const {
    return T(std::uint64_t(a) * std::uint64_t(b) + std::uint64_t(c));
  }
};
template <class T>
struct MadHi {
  T operator()(T a, T b, T c) const { return T(MulHi<T>()(a, b) + c); }
};
template <class D>
struct MulWide {
  template <class A>
  D operator()(A a, A b) const {
    return D(D(a) * D(b));
  }
};
template <class D>
struct MadWide {
  template <class A>
  D operator()(A a, A b, D c) const {
    return D(std::uint64_t(D(a) * D(b)) + std::uint64_t(c));
  }
};

template <template <class> class F>
void decode_integer(Decoder& d, Type t) {
  add_all(d, 3, t);
  use(d, integer_binary<F>(t));
}

void decode_add(Decoder& d) {
  if (d.next_is("cc")) d.fail("carries are not known");
  if (starts_float(d)) return decode_float_add(d);
  decode_integer<Add>(d, d.type());
}
void decode_sub(Decoder& d) {
  if (starts_float(d)) return decode_float_sub(d);
  decode_integer<Sub>(d, d.type());
}
void decode_min(Decoder& d) {
  if (starts_float(d)) return decode_float_min(d);
  decode_integer<Min>(d, d.type());
}
void decode_max(Decoder& d) {
  if (starts_float(d)) return decode_float_max(d);
  decode_integer<Max>(d, d.type());
}
void decode_div(Decoder& d) {
  if (starts_float(d)) return decode_float_div(d);
  decode_integer<Div>(d, d.type());
}
void decode_rem(Decoder& d) { decode_integer<Rem>(d, d.type()); }
void decode_abs(Decoder& d) {
  if (starts_float(d)) return decode_float_abs(d);
  const Type t = d.type();
  add_all(d, 2, t);
  use(d, integer_unary<Abs>(t));
}
void decode_neg(Decoder& d) {
  if (starts_float(d)) return decode_float_neg(d);
  const Type t = d.type();
  add_all(d, 2, t);
  use(d, integer_unary<Neg>(t));
}

Type wide_of(Type t) { return {t.kind, std::uint8_t(t.bits * 2), 1}; }

void decode_mul(Decoder& d) {
  if (starts_float(d)) return decode_float_mul(d);
  const bool wide = d.skip("wide"), high = !wide && d.skip("hi");
  if (!wide && !high) d.expect("lo");
  const Type t = d.type();
  if (!wide) return high ? decode_integer<MulHi>(d, t) : decode_integer<MulLo>(d, t);
  if (d.count() != 3) d.fail("expected 3 operands");
  d.add(0, wide_of(t));
  d.add(1, t);
  d.add(2, t);
  use(d, t.is(Kind::kSigned, 32)     ? &binary<std::int64_t, std::int32_t, MulWide<std::int64_t>>
         : t.is(Kind::kUnsigned, 32) ? &binary<std::uint64_t, std::uint32_t, MulWide<std::uint64_t>>
         : t.is(Kind::kSigned, 16)   ? &binary<std::int32_t, std::int16_t, MulWide<std::int32_t>>
         : t.is(Kind::kUnsigned, 16) ? &binary<std::uint32_t, std::uint16_t, MulWide<std::uint32_t>>
                                     : nullptr);
}

void decode_mad(Decoder& d) {
  if (starts_float(d)) return decode_float_fma(d);
  const bool wide = d.skip("wide"), high = !wide && d.skip("hi");
  if (!wide && !high) d.expect("lo");
  const Type t = d.type();
  if (d.count() != 4) d.fail("expected 4 operands");
  d.add(0, wide ? wide_of(t) : t);
  d.add(1, t);
  d.add(2, t);
  d.add(3, wide ? wide_of(t) : t);
  using std::int16_t, std::int32_t, std::int64_t, std::uint16_t, std::uint32_t, std::uint64_t;
  if (wide) {
    return use(d, t.is(Kind::kSigned, 32)     ? &ternary<int64_t, int32_t, MadWide<int64_t>>
                  : t.is(Kind::kUnsigned, 32) ? &ternary<uint64_t, uint32_t, MadWide<uint64_t>>
                  : t.is(Kind::kSigned, 16)   ? &ternary<int32_t, int16_t, MadWide<int32_t>>
                  : t.is(Kind::kUnsigned, 16) ? &ternary<uint32_t, uint16_t, MadWide<uint32_t>>
                                              : nullptr);
  }
  if (high) {
    return use(d, t.is(Kind::kSigned, 32)     ? &ternary<int32_t, int32_t, MadHi<int32_t>>
                  : t.is(Kind::kUnsigned, 32) ? &ternary<uint32_t, uint32_t, MadHi<uint32_t>>
                                              : nullptr);
  }
  use(d, t.bits == 32   ? &ternary<uint32_t, uint32_t, MadLo>
         : t.bits == 64 ? &ternary<uint64_t, uint64_t, MadLo>
         : t.bits == 16 ? &ternary<uint16_t, uint16_t, MadLo>
                        : nullptr);
}

}  // namespace

std::vector<Opcode> integer_opcodes() {
  return {{"add", decode_add}, {"sub", decode_sub}, {"mul", decode_mul}, {"mad", decode_mad},
          {"div", decode_div}, {"rem", decode_rem}, {"min", decode_min}, {"max", decode_max},
          {"abs", decode_abs}, {"neg", decode_neg}};
}

}  // namespace trireme::ptx
