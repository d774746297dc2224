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
