// cvt. A value is read as a double or an integer of 64 bits, both exact, and rounded once.
#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/numbers.h"

namespace trireme::ptx {
namespace {

// detail: to, from, round (bits 0-1) whole (bit 2) sat (3) relu (4) flush (5)
constexpr std::uint32_t kWhole = 4, kSat = 8, kRelu = 16, kFlush = 32;

bool is_float(Type t) { return !t.is_integer(); }

double read_float(std::uint64_t bits, Type t) {
  switch (t.kind) {
    case Kind::kBf16:
      return double(float_of_bf16(std::uint16_t(bits)));
    case Kind::kE4m3:
      return double(float_of_e4m3(std::uint8_t(bits)));
    case Kind::kE5m2:
      return double(float_of_e5m2(std::uint8_t(bits)));
    case Kind::kTf32:
      return double(std::bit_cast<float>(std::uint32_t(bits)));
    default:
      break;
  }
  if (t.bits == 16) return double(float_of_half(std::uint16_t(bits)));
  return t.bits == 32 ? double(std::bit_cast<float>(std::uint32_t(bits)))
                      : std::bit_cast<double>(bits);
}

std::uint64_t write_float(double value, Type t, Round round) {
  switch (t.kind) {
    case Kind::kBf16:
      return bf16_of(float(value), round);
    case Kind::kE4m3:
      return e4m3_of(float(value));
    case Kind::kE5m2:
      return e5m2_of(float(value));
    case Kind::kTf32:
      return (std::uint64_t(std::bit_cast<std::uint32_t>(float(value))) + 0x1000) & 0xffffe000u;
    default:
      break;
  }
  if (t.bits == 16) return half_of(value, round);
  return t.bits == 32 ? std::bit_cast<std::uint32_t>(float_of(value, round))
                      : std::bit_cast<std::uint64_t>(value);
}

double to_whole(double value, Round round) {
  switch (round) {
    case Round::kNearest:
      return std::nearbyint(value);
    case Round::kZero:
      return std::trunc(value);
    case Round::kDown:
      return std::floor(value);
    default:
      return std::ceil(value);
  }
}

// Out of range clamps, NaN becomes 0 (of 32 bits and fewer).
std::uint64_t float_to_integer(double value, Type t, Round round) {
  if (std::isnan(value)) return t.bits == 64 ? std::uint64_t(1) << 63 : 0;
  const double whole = to_whole(value, round);
  const double low = t.is_signed() ? -std::ldexp(1.0, t.bits - 1) : 0,
               high = std::ldexp(1.0, t.bits - t.is_signed());
  if (whole >= high)
    return t.is_signed() ? (std::uint64_t(1) << (t.bits - 1)) - 1 : ~std::uint64_t(0);
  if (whole <= low) return t.is_signed() ? std::uint64_t(1) << (t.bits - 1) : 0;
  return whole < 0 ? std::uint64_t(std::int64_t(whole)) : std::uint64_t(whole);
}

std::uint64_t extend(std::uint64_t bits, Type t) {
  if (t.bits == 64) return bits;
  bits &= (std::uint64_t(1) << t.bits) - 1;
  if (t.is_signed() && bits >> (t.bits - 1)) bits |= ~std::uint64_t(0) << t.bits;
  return bits;
}

std::uint64_t integer_to_integer(std::uint64_t bits, Type from, Type to, bool sat) {
  const std::uint64_t value = extend(bits, from);
  if (!sat) return extend(value, to);
  const auto wide = from.is_signed() ? __int128(std::int64_t(value)) : __int128(value);
  const __int128 low = to.is_signed() ? -(__int128(1) << (to.bits - 1)) : 0;
  const __int128 high = (__int128(1) << (to.bits - to.is_signed())) - 1;
  return std::uint64_t(wide < low ? low : wide > high ? high : wide);
}

std::uint64_t integer_to_float(std::uint64_t bits, Type from, Type to, Round round) {
  const std::uint64_t value = extend(bits, from);
  if (to.is(Kind::kFloat, 32) && round == Round::kNearest)  // 64 bits do not fit a double
    return std::bit_cast<std::uint32_t>(from.is_signed() ? float(std::int64_t(value))
                                                         : float(value));
  return write_float(from.is_signed() ? double(std::int64_t(value)) : double(value), to, round);
}

std::uint64_t convert(std::uint64_t bits, const Instruction& in) {
  const Type to = unpack(in.detail[0]), from = unpack(in.detail[1]);
  const auto round = Round(in.detail[2] & 3);
  if (!is_float(from) && !is_float(to))
    return integer_to_integer(bits, from, to, in.detail[2] & kSat);
  if (!is_float(from)) return integer_to_float(bits, from, to, round);
  double value = read_float(bits, from);
  if (in.detail[2] & kFlush) value = double(flushed(float(value)));
  if (!is_float(to)) return float_to_integer(value, to, round);
  if (in.detail[2] & kWhole) value = to_whole(value, round);
  if (in.detail[2] & kSat && to.bits >= 16) value = value > 0 ? std::min(value, 1.0) : 0.0;
  if (in.detail[2] & kRelu && !(value > 0)) value = std::isnan(value) ? value : 0.0;
  return write_float(value, to, in.detail[2] & kWhole ? Round::kNearest : round);
}

bool run_convert(Warp& w, const Instruction& in, std::uint32_t mask) {
  for_lanes(mask, [&](int i) { w.set(in.op[0], i, convert(w.get(in.op[1], i), in)); });
  return true;
}

// Two of a packed type: the first source becomes the upper element.
bool run_convert_pair(Warp& w, const Instruction& in, std::uint32_t mask) {
  const Type to = unpack(in.detail[0]);
  for_lanes(mask, [&](int i) {
    w.set(in.op[0], i,
          convert(w.get(in.op[1], i), in) << to.bits | convert(w.get(in.op[2], i), in));
  });
  return true;
}
bool run_convert_packed(Warp& w, const Instruction& in, std::uint32_t mask) {
  const Type to = unpack(in.detail[0]), from = unpack(in.detail[1]);
  for_lanes(mask, [&](int i) {
    const std::uint64_t bits = w.get(in.op[1], i);
    const std::uint64_t part = (std::uint64_t(1) << from.bits) - 1;
    w.set(in.op[0], i, convert(bits >> from.bits & part, in) << to.bits | convert(bits & part, in));
  });
  return true;
}

// The three that kernels are full of.
bool run_bf16_of_float(Warp& w, const Instruction& in, std::uint32_t mask) {
  auto* d = w.row<std::uint16_t>(in.op[0]);
  const auto* a = w.row<float>(in.op[1]);
  for_lanes(mask, [=](int i) { d[i] = bf16_of(a[i], Round::kNearest); });
  return true;
}
bool run_float_of_bf16(Warp& w, const Instruction& in, std::uint32_t mask) {
  auto* d = w.row<float>(in.op[0]);
  const auto* a = w.row<std::uint16_t>(in.op[1]);
  for_lanes(mask, [=](int i) { d[i] = float_of_bf16(a[i]); });
  return true;
}
bool run_pair_of_floats(Warp& w, const Instruction& in, std::uint32_t mask) {
  auto* d = w.row<std::uint32_t>(in.op[0]);
  const auto *a = w.row<float>(in.op[1]), *b = w.row<float>(in.op[2]);
  for_lanes(mask, [=](int i) {
    d[i] = std::uint32_t(bf16_of(a[i], Round::kNearest)) << 16 | bf16_of(b[i], Round::kNearest);
  });
  return true;
}

void read_convert_words(Decoder& d) {
  static constexpr std::string_view kRounds[] = {"rn", "rz", "rm", "rp"},
                                    kWholes[] = {"rni", "rzi", "rmi", "rpi"};
  std::uint32_t& detail = d.out().detail[2];
  while (d.words_left() && !d.has_type()) {
    const std::string_view word = d.word();
    bool known = false;
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (word == kRounds[i]) detail |= i, known = true;
      if (word == kWholes[i]) detail |= i | kWhole, known = true;
    }
    if (word == "rna") known = true;
    if (word == "sat") detail |= kSat, known = true;
    if (word == "satfinite") known = true;  // the narrow formats always do
    if (word == "relu") detail |= kRelu, known = true;
    if (word == "ftz") detail |= kFlush, known = true;
    if (!known) d.fail("\"." + std::string(word) + "\" is not known here");
  }
}

void decode_cvt(Decoder& d) {
  if (d.next_is("pack")) d.fail("packing of integers is not known");
  read_convert_words(d);
  const Type to = d.type(), from = d.type();
  Type to_part = to, from_part = from;
  to_part.lanes = from_part.lanes = 1;
  d.out().detail[0] = pack(to_part);
  d.out().detail[1] = pack(from_part);
  d.add(0, to);
  d.add(1, from);
  const bool plain = (d.out().detail[2] & ~std::uint32_t(kWhole)) == 0;
  if (to.lanes == 2 && from.lanes == 2) return use(d, &run_convert_packed);
  if (to.lanes == 2) {
    d.add(2, from);
    return use(d, plain && to.kind == Kind::kBf16 && from.is(Kind::kFloat, 32) ? &run_pair_of_floats
                                                                               : &run_convert_pair);
  }
  if (plain && to.is(Kind::kBf16, 16) && from.is(Kind::kFloat, 32))
    return use(d, &run_bf16_of_float);
  if (plain && from.is(Kind::kBf16, 16) && to.is(Kind::kFloat, 32))
    return use(d, &run_float_of_bf16);
  use(d, &run_convert);
}

}  // namespace

std::vector<Opcode> convert_opcodes() { return {{"cvt", decode_cvt}}; }

}  // namespace trireme::ptx
