#include "kernels/activation_codes/activation_codes.h"

#include <cmath>

#include "kernels/gelu/gelu.h"
#include "kernels/glu/glu.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

using enum ActivationKind;

class ActivationCodes : public OpTest {};
TRIREME_FOR_ALL_ISAS(ActivationCodes);

constexpr ActivationKind kKinds[] = {kSwiglu, kGeglu, kGelu};

/// Memory in which what is not written is seen.
TestTensor unwritten(DType type, const Shape& shape, int offset) {
  TestTensor tensor(type, shape, offset);
  for (std::int64_t i = 0; i < shape.count(); ++i) tensor.set(i, 0x55);
  return tensor;
}

/// Codes of a matrix, or of its transpose, in blocks of 1 x 128.
struct Codes {
  ScaleDim rows, columns;
  TestTensor codes, scales;

  Codes(DType format, const ScaleDim& rows_, const ScaleDim& columns_, int offset)
      : rows(rows_.with_block(1)),
        columns(columns_.with_block(128)),
        codes(unwritten(format, codes_shape(rows, columns, true), offset)),
        scales(unwritten(DType::kF32, scales_shape(rows, columns), offset)) {}
  [[nodiscard]] QuantizedView view() { return {codes, scales, rows, columns, true}; }
  [[nodiscard]] std::string bits() const { return codes.bits() + scales.bits(); }
};

ScaleDim columns_of(ActivationKind kind, std::int64_t ffn) {
  ScaleDim dim(ffn, 1);
  if (parts_of(kind) == 2) dim.add({ffn, 0});
  return dim;
}

/// All that is made of x and dact.
struct All {
  Codes act, along, across, turned;
  All(ActivationKind kind, DType gradients, const Shape& of, int offset)
      : act(DType::kF8E4M3, ScaleDim(of[0], 1), ScaleDim(of[1], 1), offset),
        along(gradients, ScaleDim(of[0], 1), columns_of(kind, of[1]), offset),
        across(gradients, columns_of(kind, of[1]), ScaleDim(of[0], 1), offset),
        turned(DType::kF8E4M3, ScaleDim(of[1], 1), ScaleDim(of[0], 1), offset) {}
  [[nodiscard]] ActivationGradient gradient(TensorView rows = {}) {
    return {along.view(), across.view(), turned.view(), rows};
  }
  void expect_bits_of(const All& other, const Shape& of) const {
    EXPECT_EQ(act.bits(), other.act.bits()) << of[0] << " x " << of[1];
    EXPECT_EQ(along.bits(), other.along.bits()) << of[0] << " x " << of[1];
    EXPECT_EQ(across.bits(), other.across.bits()) << of[0] << " x " << of[1];
    EXPECT_EQ(turned.bits(), other.turned.bits()) << of[0] << " x " << of[1];
  }
};

/// Tokens of zero, infinite and undefined values among others.
TestTensor uneven(const Shape& shape, std::uint64_t seed, int offset) {
  TestTensor values = TestTensor::random(DType::kBF16, shape, seed, 3, offset);
  const std::int64_t tokens = shape[0], width = shape[1];
  for (std::int64_t c = 0; c < width; ++c) values.set(tokens / 2 * width + c, 0);
  values.set(0, INFINITY);
  values.set(shape.count() - 1, NAN);
  return values;
}

/// By the ops that store rows, and quantize. Gives dx's.
TestTensor make_apart(Context& context, ActivationKind kind, All& to, const TestTensor& dact,
                      const TestTensor& x) {
  TestTensor act(DType::kBF16, dact.shape()), dx(DType::kBF16, x.shape());
  const GluGate gate = kind == kSwiglu ? GluGate::kSilu : GluGate::kGelu;
  kind == kGelu ? gelu_forward(context, act, x) : glu_forward(context, gate, act, x);
  quantize(context, {to.act.view(), act});
  kind == kGelu ? gelu_backward(context, dx, dact, x, act.view())
                : glu_backward(context, gate, dx, dact, x, act.view());
  quantize_both(context, {to.along.view(), to.across.view(), dx});
  quantize(context, {to.turned.view(), act, {}, Transpose::kYes});
  return dx;
}

constexpr std::int64_t kSizes[][2] = {{1, 8}, {130, 136}, {141, 272}, {3, 2184}};

TEST_P(ActivationCodes, are_the_bits_of_separate_ops) {
  for (const auto& [tokens, ffn] : kSizes) {
    const Shape of{tokens, ffn};
    for (const ActivationKind kind : kKinds) {
      for (const DType gradients : {DType::kF8E5M2, DType::kF8E4M3}) {
        for (const int threads : {1, 3}) {
          Context context = test_context(GetParam(), threads);
          const int offset = threads == 1 ? 0 : TestTensor::kOffsetByEnvironment;
          const TestTensor x = uneven({tokens, parts_of(kind) * ffn}, 1, offset),
                           dact = uneven(of, 2, offset);
          All made(kind, gradients, of, offset), apart(kind, gradients, of, offset);
          activation_forward_codes(context, kind, made.act.view(), x);
          activation_backward_codes(context, kind, made.gradient(), dact, x);
          make_apart(context, kind, apart, dact, x);
          made.expect_bits_of(apart, of);
        }
      }
    }
  }
}

/// No NaN, whose sign in bf16 is nobody's.
TestTensor finite(const Shape& shape, std::uint64_t seed, int offset) {
  return TestTensor::random(DType::kBF16, shape, seed, 3, offset);
}

TEST_P(ActivationCodes, rows_are_left_too_where_they_are_asked_for_or_in_place_of_x) {
  for (const auto& [tokens, ffn] : kSizes) {
    const Shape of{tokens, ffn};
    for (const ActivationKind kind : kKinds) {
      for (const int offset : {0, TestTensor::kOffsetByEnvironment}) {
        Context context = test_context(GetParam(), 2);
        TestTensor x = finite({tokens, parts_of(kind) * ffn}, 1, offset),
                   rows(DType::kBF16, x.shape(), offset);
        const TestTensor dact = finite(of, 2, offset);
        All apart(kind, DType::kF8E5M2, of, offset);
        const std::string expected = make_apart(context, kind, apart, dact, x).bits();
        for (TestTensor* place : {&rows, &x}) {
          All made(kind, DType::kF8E5M2, of, offset);
          activation_forward_codes(context, kind, made.act.view(), x);
          activation_backward_codes(context, kind, made.gradient(place->view()), dact, x);
          made.expect_bits_of(apart, of);
          EXPECT_EQ(place->bits(), expected) << tokens << " x " << ffn;
        }
      }
    }
  }
}

TEST_P(ActivationCodes, of_other_shapes_or_blocks_are_refused_by_name) {
  Context context = test_context(GetParam());
  const TestTensor gate_up(DType::kBF16, {3, 32});
  TestTensor dact(DType::kBF16, {3, 16});
  All glu(kSwiglu, DType::kF8E5M2, {3, 16}, 0), gelu(kGelu, DType::kF8E5M2, {3, 16}, 0);
  ScaleDim shifted(16, 1, 16);
  shifted.add({16, 16});
  Codes of_shifted(DType::kF8E5M2, ScaleDim(3, 1), shifted, 0);
  const auto backward = [&](const QuantizedView& first, TensorView rows = {}) {
    activation_backward_codes(context, kSwiglu, {first, glu.across.view(), glu.turned.view(), rows},
                              dact, gate_up);
  };
  expect_refused([&] { activation_forward_codes(context, kSwiglu, glu.along.view(), gate_up); },
                 "swiglu_forward_codes.codes");
  expect_refused([&] { activation_forward_codes(context, kGelu, glu.act.view(), gate_up); },
                 "gelu_forward_codes.codes");
  expect_refused([&] { backward(glu.act.view()); }, "swiglu_backward_codes.dx");
  expect_refused([&] { backward(of_shifted.view()); }, "swiglu_backward_codes.dx");
  expect_refused([&] { backward(glu.across.view()); }, "swiglu_backward_codes.dx");
  expect_refused([&] { backward(glu.along.view(), dact.view()); }, "swiglu_backward_codes.rows");
  expect_refused(
      [&] { activation_backward_codes(context, kGelu, gelu.gradient(dact.view()), dact, dact); },
      "gelu_backward_codes.rows: shares memory with dact");
  expect_refused(
      [&] { activation_backward_codes(context, kGeglu, gelu.gradient(), dact, gate_up); },
      "geglu_backward_codes.dx");
}

}  // namespace
}  // namespace trireme
