#include "kernels/glu/glu.h"

#include <cmath>

#include "kernels/glu_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

using enum GluGate;

class Glu : public OpTest {};
TRIREME_FOR_ALL_ISAS(Glu);

constexpr GluGate kGates[] = {kSilu, kGelu};

struct Size {
  std::int64_t tokens, ffn;
};
constexpr Size kSizes[] = {{1, 1},   {3, 7},    {5, 8},    {2, 33},
                           {7, 100}, {1, 9000}, {301, 17}, {3, 4104}};

TEST_P(Glu, values_by_hand) {
  Context context = test_context(GetParam());
  // sigmoid(0) = 1/2, sigmoid(log 3) = 3/4.
  const double log3 = 1.0986122886681098;
  const TestTensor gate_up = TestTensor::of(DType::kF32, {1, 4}, {0, log3, 7, 4});
  TestTensor act(DType::kF32, {1, 2}), d(DType::kF32, {1, 4});
  glu_forward(context, kSilu, act, gate_up);
  expect_close(act.values(), {0, 3 * log3}, {1e-6, 1e-7}, "act");
  const TestTensor dact = TestTensor::of(DType::kF32, {1, 2}, {2, 1});
  glu_backward(context, kSilu, d, dact, gate_up);
  expect_close(d.values(), {7, 4 * 0.75 * (1 + 0.25 * log3), 0, 0.75 * log3}, {1e-6, 1e-7},
               "dgate_up");
  // gelu(0) = 0, gelu'(0) = 1/2.
  glu_forward(context, kGelu, act, gate_up);
  EXPECT_EQ(act.values()[0], 0);
  glu_backward(context, kGelu, d, dact, gate_up);
  EXPECT_EQ(d.values()[0], 7);
  EXPECT_EQ(d.values()[2], 0);
}

TEST_P(Glu, equals_the_reference_at_odd_sizes_for_any_thread_count) {
  for (const GluGate gate : kGates) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Size& size : kSizes) {
        const TestTensor gate_up = TestTensor::random(dtype, {size.tokens, 2 * size.ffn}, 1, 3);
        const TestTensor dact = TestTensor::random(dtype, {size.tokens, size.ffn}, 2);
        std::string act_bits, d_bits;
        for (const int threads : {1, 2, 3}) {
          Context context = test_context(GetParam(), threads);
          TestTensor act(dtype, dact.shape()), d(dtype, gate_up.shape());
          glu_forward(context, gate, act, gate_up);
          glu_backward(context, gate, d, dact, gate_up);
          expect_close(act.values(), reference::glu_forward(gate, gate_up.values(), size.ffn),
                       tolerance_of(dtype), "act");
          expect_close(d.values(),
                       reference::glu_backward(gate, dact.values(), gate_up.values(), size.ffn),
                       tolerance_of(dtype), "dgate_up");
          if (threads == 1) act_bits = act.bits(), d_bits = d.bits();
          EXPECT_EQ(act.bits(), act_bits);
          EXPECT_EQ(d.bits(), d_bits);
        }
      }
    }
  }
}

TEST_P(Glu, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  expect_same_bits([&] {
    const TestTensor gate_up = TestTensor::random(DType::kBF16, {60, 2 * 72}, 1, 3),
                     dact = TestTensor::random(DType::kBF16, {60, 72}, 2);
    TestTensor act(DType::kBF16, {60, 72}), d(DType::kBF16, {60, 2 * 72});
    glu_forward(context, kSilu, act, gate_up);
    glu_backward(context, kSilu, d, dact, gate_up);
    return act.bits() + d.bits();
  });
}

TEST_P(Glu, an_element_has_the_same_bits_at_any_place) {
  Context context = test_context(GetParam());
  for (const GluGate gate : kGates) {
    for (const std::int64_t ffn : {1, 7, 8, 16, 19, 37}) {
      const TestTensor one = TestTensor::of(DType::kF32, {1, 2}, {1.2345678, -0.87654321});
      TestTensor single(DType::kF32, {1, 1}), many(DType::kF32, {1, ffn}),
          gate_up(DType::kF32, {1, 2 * ffn});
      for (std::int64_t f = 0; f < ffn; ++f)
        gate_up.set(f, 1.2345678), gate_up.set(ffn + f, -0.87654321);
      glu_forward(context, gate, single, one);
      glu_forward(context, gate, many, gate_up);
      for (const double x : many.values()) EXPECT_EQ(x, single.values()[0]);
    }
  }
}

TEST_P(Glu, backward_makes_the_activation_once_more) {
  Context context = test_context(GetParam(), 2);
  for (const GluGate gate : kGates) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TestTensor gate_up = TestTensor::random(dtype, {90, 2 * 53}, 1, 3);
      TestTensor dact = TestTensor::random(dtype, {90, 53}, 2), act(dtype, {90, 53}),
                 d(dtype, gate_up.shape()), again(dtype, gate_up.shape());
      glu_forward(context, gate, act, gate_up);
      glu_backward(context, gate, d, dact, gate_up);
      glu_backward(context, gate, again, dact, gate_up, dact.view());
      EXPECT_EQ(dact.bits(), act.bits());
      EXPECT_EQ(again.bits(), d.bits());
    }
  }
}

TEST_P(Glu, the_gradient_may_replace_its_input) {
  Context context = test_context(GetParam(), 2);
  for (const GluGate gate : kGates) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      TestTensor gate_up = TestTensor::random(dtype, {90, 2 * 53}, 1), d(dtype, {90, 2 * 53});
      const TestTensor dact = TestTensor::random(dtype, {90, 53}, 2);
      glu_backward(context, gate, d, dact, gate_up);
      glu_backward(context, gate, gate_up, dact, gate_up);
      EXPECT_EQ(gate_up.bits(), d.bits());
    }
  }
}

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

struct CodesCase {
  GluGate gate;
  DType gradients;
  std::int64_t tokens, ffn;
  int offset, threads;
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

void expect_codes_of_separate_ops(Context& context, const CodesCase& of) {
  const std::int64_t tokens = of.tokens, ffn = of.ffn;
  const TestTensor gate_up = uneven({tokens, 2 * ffn}, 1, of.offset),
                   dact = uneven({tokens, ffn}, 2, of.offset);
  const ScaleDim token_dim(tokens, 1), act_dim(ffn, 1);
  ScaleDim both_dim(ffn, 1);
  both_dim.add({ffn, 0});
  struct All {
    Codes act, along, across, turned;
    All(const CodesCase& of, const ScaleDim& tokens_, const ScaleDim& act_, const ScaleDim& both_)
        : act(DType::kF8E4M3, tokens_, act_, of.offset),
          along(of.gradients, tokens_, both_, of.offset),
          across(of.gradients, both_, tokens_, of.offset),
          turned(DType::kF8E4M3, act_, tokens_, of.offset) {}
  };
  All made(of, token_dim, act_dim, both_dim), apart(of, token_dim, act_dim, both_dim);
  glu_forward_codes(context, of.gate, made.act.view(), gate_up);
  glu_backward_codes(context, of.gate, {made.along.view(), made.across.view(), made.turned.view()},
                     dact, gate_up);

  TestTensor act(DType::kBF16, {tokens, ffn}), d(DType::kBF16, {tokens, 2 * ffn});
  glu_forward(context, of.gate, act, gate_up);
  quantize(context, {apart.act.view(), act});
  glu_backward(context, of.gate, d, dact, gate_up, act.view());
  quantize_both(context, {apart.along.view(), apart.across.view(), d});
  quantize(context, {apart.turned.view(), act, {}, Transpose::kYes});
  EXPECT_EQ(made.act.bits(), apart.act.bits()) << tokens << " x " << ffn;
  EXPECT_EQ(made.along.bits(), apart.along.bits()) << tokens << " x " << ffn;
  EXPECT_EQ(made.across.bits(), apart.across.bits()) << tokens << " x " << ffn;
  EXPECT_EQ(made.turned.bits(), apart.turned.bits()) << tokens << " x " << ffn;
}

TEST_P(Glu, codes_are_the_bits_of_separate_ops) {
  constexpr Size kCodeSizes[] = {{1, 8}, {130, 136}, {141, 272}, {3, 2184}};
  for (const Size& size : kCodeSizes) {
    for (const GluGate gate : kGates) {
      const DType gradients = gate == kSilu ? DType::kF8E5M2 : DType::kF8E4M3;
      for (const int threads : {1, 3}) {
        Context context = test_context(GetParam(), threads);
        const int offset = threads == 1 ? 0 : TestTensor::kOffsetByEnvironment;
        expect_codes_of_separate_ops(context,
                                     {gate, gradients, size.tokens, size.ffn, offset, threads});
      }
    }
  }
}

TEST_P(Glu, codes_of_other_shapes_or_blocks_are_refused_by_name) {
  Context context = test_context(GetParam());
  const TestTensor gate_up(DType::kBF16, {3, 32}), dact(DType::kBF16, {3, 16});
  const ScaleDim tokens(3, 1), act_dim(16, 1);
  ScaleDim both(16, 1), shifted(16, 1, 16);
  both.add({16, 0});
  shifted.add({16, 16});
  Codes act(DType::kF8E4M3, tokens, act_dim, 0), turned(DType::kF8E4M3, act_dim, tokens, 0),
      along(DType::kF8E5M2, tokens, both, 0), across(DType::kF8E5M2, both, tokens, 0),
      of_shifted(DType::kF8E5M2, tokens, shifted, 0);
  const auto backward = [&](const QuantizedView& first) {
    glu_backward_codes(context, kSilu, {first, across.view(), turned.view()}, dact, gate_up);
  };
  expect_refused([&] { glu_forward_codes(context, kSilu, along.view(), gate_up); },
                 "swiglu_forward_codes.codes");
  expect_refused([&] { backward(act.view()); }, "swiglu_backward_codes.dgate_up");
  expect_refused([&] { backward(of_shifted.view()); }, "swiglu_backward_codes.dgate_up");
  expect_refused([&] { backward(across.view()); }, "swiglu_backward_codes.dgate_up");
}

TEST_P(Glu, gradient_equals_finite_differences) {
  Context context = test_context(GetParam());
  for (const GluGate gate : kGates) {
    const TestTensor gate_up = TestTensor::random(DType::kF32, {2, 10}, 1),
                     dact = TestTensor::random(DType::kF32, {2, 5}, 2);
    TestTensor d(DType::kF32, {2, 10});
    glu_backward(context, gate, d, dact, gate_up);
    const auto weights = dact.values();
    const auto loss = [&](const std::vector<double>& at) {
      const auto act = reference::glu_forward(gate, at, 5);
      double sum = 0;
      for (std::size_t i = 0; i < act.size(); ++i) sum += act[i] * weights[i];
      return sum;
    };
    expect_close(d.values(), finite_differences(gate_up.values(), loss), {1e-6, 1e-6}, "dgate_up");
  }
}

TEST_P(Glu, large_gates_neither_overflow_nor_lose_their_sign) {
  Context context = test_context(GetParam());
  const TestTensor gate_up =
      TestTensor::of(DType::kF32, {1, 8}, {1e4, -1e4, 200, -200, 2, 2, 2, 2});
  TestTensor act(DType::kF32, {1, 4}), d(DType::kF32, {1, 8});
  glu_forward(context, kSilu, act, gate_up);
  expect_close(act.values(), {2e4, 0, 400, 0}, {1e-6, 1e-20}, "act");
  glu_backward(context, kSilu, d, TestTensor::of(DType::kF32, {1, 4}, {1, 1, 1, 1}), gate_up);
  expect_close(d.values(), {2, 0, 2, 0, 1e4, 0, 200, 0}, {1e-6, 1e-20}, "dgate_up");
  glu_forward(context, kGelu, act, gate_up);
  expect_close(act.values(), {2e4, 0, 400, 0}, {1e-6, 1e-20}, "act");
  glu_backward(context, kGelu, d, TestTensor::of(DType::kF32, {1, 4}, {1, 1, 1, 1}), gate_up);
  expect_close(d.values(), {2, 0, 2, 0, 1e4, 0, 200, 0}, {1e-6, 1e-20}, "dgate_up");
}

TEST_P(Glu, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  TestTensor act(DType::kF32, {2, 3}), gate_up(DType::kF32, {2, 6}), half(DType::kBF16, {2, 6}),
      ids(DType::kI32, {2, 3});
  glu_forward(context, kSilu, act, gate_up);
  expect_refused([&] { glu_forward(context, kSilu, act, act); },
                 "swiglu_forward.gate_up: expected [2, 6] fp32");
  expect_refused([&] { glu_forward(context, kSilu, act, half); },
                 "swiglu_forward.gate_up: expected [2, 6] fp32");
  expect_refused([&] { glu_forward(context, kSilu, ids, gate_up); },
                 "swiglu_forward.act: expected fp32 or bf16");
  expect_refused([&] { glu_backward(context, kSilu, half, act, gate_up); },
                 "swiglu_backward.dgate_up: expected [2, 6] fp32");
  expect_refused(
      [&] {
        glu_backward(context, kSilu, gate_up, gate_up.view().reshape({4, 3}).rows(0, 2), gate_up);
      },
      "swiglu_backward.dgate_up: shares memory with dact");
  expect_refused([&] { glu_forward(context, kGelu, act, half); },
                 "geglu_forward.gate_up: expected [2, 6] fp32");
}

}  // namespace
}  // namespace trireme
