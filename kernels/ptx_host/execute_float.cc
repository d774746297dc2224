// Arithmetic on floats. f32 and f64 have handlers of their own; f16 and bf16, single and packed, go
// through one.
#include "kernels/ptx_host/execute_float.h"

#include "kernels/ptx_host/float_modes.h"
#include "kernels/ptx_host/lanes.h"
#include "kernels/ptx_host/numbers.h"

namespace trireme::ptx {
namespace {

inline float saturate(float x) { return x > 0 ? (x < 1 ? x : 1.0F) : 0.0F; }  // NaN becomes 0

template <Calc kCalc, class T, bool kFlush, bool kSaturate>
bool run_calc(Warp& w, const Instruction& in, std::uint32_t mask) {
  T* d = w.row<T>(in.op[0]);
  const T* a = w.row<T>(in.op[1]);
  const T* b = w.row<T>(in.op[in.count > 2 ? 2 : 1]);
  const T* c = w.row<T>(in.op[in.count > 3 ? 3 : 1]);
  for_lanes(mask, [=](int i) {
    T x = a[i], y = b[i], z = c[i];
    if constexpr (kFlush) x = flushed(x), y = flushed(y), z = flushed(z);
    T r = calculate(kCalc, x, y, z);
    if constexpr (kFlush) r = flushed(r);
    if constexpr (kSaturate) r = saturate(r);
    d[i] = r;
  });
  return true;
}

template <Calc kCalc>
Handler float_handler(bool flush, bool sat) {
  if (flush)
    return sat ? &run_calc<kCalc, float, true, true> : &run_calc<kCalc, float, true, false>;
  return sat ? &run_calc<kCalc, float, false, true> : &run_calc<kCalc, float, false, false>;
}

float narrow_value(std::uint16_t bits, bool brain) {
  return brain ? float_of_bf16(bits) : float_of_half(bits);
}
std::uint16_t narrow_bits(double value, bool brain) {
  return brain ? bf16_of(float_of(value, Round::kNearest), Round::kNearest)
               : half_of(value, Round::kNearest);
}

// detail: calc, lanes of an element, bf16
bool run_narrow(Warp& w, const Instruction& in, std::uint32_t mask) {
  const auto calc = Calc(in.detail[0]);
  const bool brain = in.detail[2] != 0;
  for_lanes(mask, [&](int lane) {
    std::uint64_t result = 0;
    for (std::uint32_t k = 0; k < in.detail[1]; ++k) {
      double x[3] = {0, 0, 0};
      for (int j = 1; j < in.count; ++j)
        x[j - 1] = double(narrow_value(std::uint16_t(w.get(in.op[j], lane) >> (16 * k)), brain));
      double r = calculate(calc, x[0], x[1], x[2]);
      if (in.detail[3] & 1) r = double(saturate(float(r)));
      if (in.detail[3] & 2 && r < 0) r = 0;
      if (in.detail[3] & 4 && (std::isnan(x[0]) || std::isnan(x[1])))
        r = std::numeric_limits<double>::quiet_NaN();
      result |= std::uint64_t(narrow_bits(r, brain)) << (16 * k);
    }
    w.set(in.op[0], lane, result);
  });
  return true;
}

struct Words {
  Round round = Round::kNearest;
  bool approximate = false, flush = false, saturate = false, relu = false, nan = false;
};

Words read_words(Decoder& d) {
  Words words;
  while (d.words_left() && !d.has_type()) {
    const std::string_view word = d.word();
    if (word == "rn" || word == "rz" || word == "rm" || word == "rp") {
      words.round = word == "rn"   ? Round::kNearest
                    : word == "rz" ? Round::kZero
                    : word == "rm" ? Round::kDown
                                   : Round::kUp;
    } else if (word == "approx" || word == "full") {
      words.approximate = true;
    } else if (word == "ftz") {
      words.flush = true;
    } else if (word == "sat") {
      words.saturate = true;
    } else if (word == "relu") {
      words.relu = true;
    } else if (word == "NaN") {
      words.nan = true;
    } else {
      d.fail("\"." + std::string(word) + "\" is not known here");
    }
  }
  return words;
}

// A NaN among the two is the result.
template <bool kMax>
bool run_nan_aware(Warp& w, const Instruction& in, std::uint32_t mask) {
  float* d = w.row<float>(in.op[0]);
  const float *a = w.row<float>(in.op[1]), *b = w.row<float>(in.op[2]);
  for_lanes(mask, [=](int i) {
    d[i] = std::isnan(a[i]) || std::isnan(b[i]) ? std::bit_cast<float>(0x7fffffffu)
           : kMax                               ? larger(a[i], b[i])
                                                : smaller(a[i], b[i]);
  });
  return true;
}

template <Calc kCalc>
void decode_calc(Decoder& d, std::size_t inputs) {
  const Words words = read_words(d);
  const Type t = d.type();
  add_all(d, inputs + 1, t);
  Instruction& out = d.out();
  if (t.bits == 16) {
    if (words.round != Round::kNearest) d.fail("only .rn is known for 16 bits");
    out.detail[0] = std::uint32_t(kCalc);
    out.detail[1] = t.lanes;
    out.detail[2] = t.kind == Kind::kBf16;
    out.detail[3] = std::uint32_t(words.saturate) | std::uint32_t(words.relu) << 1 |
                    std::uint32_t(words.nan) << 2;
    return use(d, &run_narrow);
  }
  if (words.relu) d.fail("only 16-bit floats have .relu here");
  if (words.nan) {
    if (!t.is(Kind::kFloat, 32)) d.fail("this type has no .NaN here");
    return use(d, kCalc == Calc::kMax ? &run_nan_aware<true> : &run_nan_aware<false>);
  }
  if (words.round != Round::kNearest) {
    if (t.bits != 32 || words.saturate) d.fail("this direction of rounding is not known here");
    out.detail[0] = std::uint32_t(kCalc);
    out.detail[1] = std::uint32_t(words.round);
    out.detail[2] = words.flush;
    return use(d, &run_rounded);
  }
  if (t.is(Kind::kFloat, 64)) return use(d, &run_calc<kCalc, double, false, false>);
  if (t.is(Kind::kFloat, 32)) return use(d, float_handler<kCalc>(words.flush, words.saturate));
  d.fail("this type is not known here");
}

// ---- functions of one number ----
template <bool kFlush, class F>
bool run_function(Warp& w, const Instruction& in, std::uint32_t mask) {
  float* d = w.row<float>(in.op[0]);
  const float* a = w.row<float>(in.op[1]);
  const double error = in.detail[0] ? std::exp2(-double(in.detail[0]) / 2) : 0;
  for_lanes(mask, [=](int i) {
    float x = a[i];
    if (kFlush) x = flushed(x);
    float r = approximated(F()(double(x)), error, x);
    d[i] = kFlush ? flushed(r) : r;
  });
  return true;
}

template <class F>
bool run_double_function(Warp& w, const Instruction& in, std::uint32_t mask) {
  return unary<double, double, F>(w, in, mask);
}

struct Exp2 {
  double operator()(double x) const { return std::exp2(x); }
};
struct Log2 {
  double operator()(double x) const { return std::log2(x); }
};
struct Rcp {
  double operator()(double x) const { return 1 / x; }
};
struct Sqrt {
  double operator()(double x) const { return std::sqrt(x); }
};
struct Rsqrt {
  double operator()(double x) const { return 1 / std::sqrt(x); }
};
struct Sin {
  double operator()(double x) const { return std::sin(x); }
};
struct Cos {
  double operator()(double x) const { return std::cos(x); }
};
struct Tanh {
  double operator()(double x) const { return std::tanh(x); }
};

// `halves`: the manual's bound of the approximate form is 2^(-halves / 2), relative.
template <class F>
void decode_function(Decoder& d, std::uint32_t halves) {
  const Words words = read_words(d);
  const Type t = d.type();
  add_all(d, 2, t);
  if (words.round != Round::kNearest || words.saturate)
    d.fail("only .rn and .approx are known here");
  if (t.is(Kind::kFloat, 64)) return use(d, &run_double_function<F>);
  if (!t.is(Kind::kFloat, 32)) d.fail("this type is not known here");
  d.out().detail[0] = words.approximate ? halves : 0;
  use(d, words.flush ? &run_function<true, F> : &run_function<false, F>);
}

template <bool kFlush>
bool run_divide(Warp& w, const Instruction& in, std::uint32_t mask) {
  float* d = w.row<float>(in.op[0]);
  const float *a = w.row<float>(in.op[1]), *b = w.row<float>(in.op[2]);
  for_lanes(mask, [=](int i) {
    float x = a[i], y = b[i];
    if (kFlush) x = flushed(x), y = flushed(y);
    const float r = approximated(double(x) / double(y), 0x1p-22, x);
    d[i] = kFlush ? flushed(r) : r;
  });
  return true;
}

bool run_testp(Warp& w, const Instruction& in, std::uint32_t mask) {
  std::uint32_t value = 0;
  const float* a = w.row<float>(in.op[1]);
  each_lane(mask, [&](int i) {
    const int kind = std::fpclassify(a[i]);
    const bool found[] = {std::isfinite(a[i]), std::isinf(a[i]),  !std::isnan(a[i]),
                          std::isnan(a[i]),    kind == FP_NORMAL, kind == FP_SUBNORMAL};
    value |= std::uint32_t(found[in.detail[0]]) << i;
  });
  w.set_predicate(in.op[0], value, mask);
  return true;
}

void decode_testp(Decoder& d) {
  static constexpr std::string_view kWords[] = {"finite",     "infinite", "number",
                                                "notanumber", "normal",   "subnormal"};
  d.out().detail[0] = d.choose(kWords);
  if (d.type() != Type{Kind::kFloat, 32}) d.fail("this type is not known here");
  d.add_predicate(d.operands()[0]);
  d.add(1, {Kind::kFloat, 32});
  use(d, &run_testp);
}

bool run_copysign(Warp& w, const Instruction& in, std::uint32_t mask) {
  float* d = w.row<float>(in.op[0]);
  const float *a = w.row<float>(in.op[1]), *b = w.row<float>(in.op[2]);
  for_lanes(mask, [=](int i) { d[i] = std::copysign(b[i], a[i]); });
  return true;
}
void decode_copysign(Decoder& d) {
  if (d.type() != Type{Kind::kFloat, 32}) d.fail("this type is not known here");
  add_all(d, 3, {Kind::kFloat, 32});
  use(d, &run_copysign);
}

}  // namespace

std::uint64_t add_floats(Type t, std::uint64_t a, std::uint64_t b) {
  if (t.is(Kind::kFloat, 64))
    return std::bit_cast<std::uint64_t>(std::bit_cast<double>(a) + std::bit_cast<double>(b));
  if (t.bits == 32)
    return std::bit_cast<std::uint32_t>(std::bit_cast<float>(std::uint32_t(a)) +
                                        std::bit_cast<float>(std::uint32_t(b)));
  std::uint64_t sum = 0;
  const bool brain = t.kind == Kind::kBf16;
  for (int k = 0; k < 16 * t.lanes; k += 16) {
    const double part = double(narrow_value(std::uint16_t(a >> k), brain)) +
                        double(narrow_value(std::uint16_t(b >> k), brain));
    sum |= std::uint64_t(narrow_bits(part, brain)) << k;
  }
  return sum;
}

bool starts_float(const Decoder& d) { return d.ends_with_float(); }
void decode_float_add(Decoder& d) { decode_calc<Calc::kAdd>(d, 2); }
void decode_float_sub(Decoder& d) { decode_calc<Calc::kSub>(d, 2); }
void decode_float_mul(Decoder& d) { decode_calc<Calc::kMul>(d, 2); }
void decode_float_fma(Decoder& d) { decode_calc<Calc::kFma>(d, 3); }
void decode_float_min(Decoder& d) { decode_calc<Calc::kMin>(d, 2); }
void decode_float_max(Decoder& d) { decode_calc<Calc::kMax>(d, 2); }
void decode_float_abs(Decoder& d) { decode_calc<Calc::kAbs>(d, 1); }
void decode_float_neg(Decoder& d) { decode_calc<Calc::kNeg>(d, 1); }
void decode_float_div(Decoder& d) {
  if (!d.next_is("approx") && !d.next_is("full")) return decode_calc<Calc::kDiv>(d, 2);
  const Words words = read_words(d);
  const Type t = d.type();
  add_all(d, 3, t);
  use(d, !t.is(Kind::kFloat, 32) ? nullptr : words.flush ? &run_divide<true> : &run_divide<false>);
}

std::vector<Opcode> float_opcodes() {
  return {{"fma", decode_float_fma},
          {"testp", decode_testp},
          {"copysign", decode_copysign},
          {"ex2", [](Decoder& d) { decode_function<Exp2>(d, 45); }},
          {"lg2", [](Decoder& d) { decode_function<Log2>(d, 44); }},
          {"rcp", [](Decoder& d) { decode_function<Rcp>(d, 46); }},
          {"sqrt", [](Decoder& d) { decode_function<Sqrt>(d, 46); }},
          {"rsqrt", [](Decoder& d) { decode_function<Rsqrt>(d, 45); }},
          {"sin", [](Decoder& d) { decode_function<Sin>(d, 41); }},
          {"cos", [](Decoder& d) { decode_function<Cos>(d, 41); }},
          {"tanh", [](Decoder& d) { decode_function<Tanh>(d, 22); }}};
}

}  // namespace trireme::ptx
