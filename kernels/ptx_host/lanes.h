#pragma once
// Handlers from functions of one lane.
#include "kernels/ptx_host/decode.h"
#include "kernels/ptx_host/machine.h"

namespace trireme::ptx {

template <class F>
inline void for_lanes(std::uint32_t mask, F f) {
  if (mask == kAllLanes) {
    for (int i = 0; i < kLanes; ++i) f(i);
  } else {
    each_lane(mask, f);
  }
}

template <class D, class A, class F>
bool unary(Warp& w, const Instruction& in, std::uint32_t mask) {
  D* d = w.row<D>(in.op[0]);
  const A* a = w.row<A>(in.op[1]);
  for_lanes(mask, [=](int i) { d[i] = F()(a[i]); });
  return true;
}

template <class D, class A, class F>
bool binary(Warp& w, const Instruction& in, std::uint32_t mask) {
  D* d = w.row<D>(in.op[0]);
  const A *a = w.row<A>(in.op[1]), *b = w.row<A>(in.op[2]);
  for_lanes(mask, [=](int i) { d[i] = F()(a[i], b[i]); });
  return true;
}

template <class D, class A, class F>
bool ternary(Warp& w, const Instruction& in, std::uint32_t mask) {
  D* d = w.row<D>(in.op[0]);
  const A *a = w.row<A>(in.op[1]), *b = w.row<A>(in.op[2]);
  const D* c = w.row<D>(in.op[3]);
  for_lanes(mask, [=](int i) { d[i] = F()(a[i], b[i], c[i]); });
  return true;
}

/// The handler of an integer type: F is a template over the C++ type.
template <template <class> class F>
Handler integer_binary(Type t) {
  using enum Kind;
  const bool sign = t.kind == kSigned;
  switch (t.bits) {
    case 16:
      return sign ? &binary<std::int16_t, std::int16_t, F<std::int16_t>>
                  : &binary<std::uint16_t, std::uint16_t, F<std::uint16_t>>;
    case 32:
      return sign ? &binary<std::int32_t, std::int32_t, F<std::int32_t>>
                  : &binary<std::uint32_t, std::uint32_t, F<std::uint32_t>>;
    case 64:
      return sign ? &binary<std::int64_t, std::int64_t, F<std::int64_t>>
                  : &binary<std::uint64_t, std::uint64_t, F<std::uint64_t>>;
    default:
      return nullptr;
  }
}

template <template <class> class F>
Handler integer_unary(Type t) {
  using enum Kind;
  const bool sign = t.kind == kSigned;
  switch (t.bits) {
    case 16:
      return sign ? &unary<std::int16_t, std::int16_t, F<std::int16_t>>
                  : &unary<std::uint16_t, std::uint16_t, F<std::uint16_t>>;
    case 32:
      return sign ? &unary<std::int32_t, std::int32_t, F<std::int32_t>>
                  : &unary<std::uint32_t, std::uint32_t, F<std::uint32_t>>;
    case 64:
      return sign ? &unary<std::int64_t, std::int64_t, F<std::int64_t>>
                  : &unary<std::uint64_t, std::uint64_t, F<std::uint64_t>>;
    default:
      return nullptr;
  }
}

/// Of what shows nowhere here: hints, orders that hold anyway.
inline bool run_nothing(Warp&, const Instruction&, std::uint32_t) { return true; }

inline void use(Decoder& d, Handler handler) {
  if (!handler) d.fail("this type is not known here");
  d.out().run = handler;
}

/// All operands of one type.
inline void add_all(Decoder& d, std::size_t count, Type t) {
  if (d.count() != count) d.fail("expected " + std::to_string(count) + " operands");
  for (std::size_t i = 0; i < count; ++i) d.add(i, t);
}

}  // namespace trireme::ptx
