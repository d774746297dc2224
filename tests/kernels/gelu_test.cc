#include "kernels/gelu/gelu.h"

#include <cmath>

#include "kernels/gelu_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class Gelu : public OpTest {};
TRIREME_FOR_ALL_ISAS(Gelu);

TEST_P(Gelu, values_by_hand) {
  Context context = test_context(GetParam());
  const TestTensor x = TestTensor::of(DType::kF32, {3}, {0, 1, -1});
  TestTensor act(DType::kF32, {3}), dx(DType::kF32, {3});
  gelu_forward(context, act, x);
  // gelu(x) - gelu(-x) = x; gelu_new(1) as transformers prints it.
  expect_close(act.values(), {0, 0.841192, -0.158808}, {2e-6}, "act");
  gelu_backward(context, dx, TestTensor::of(DType::kF32, {3}, {2, 1, 1}), x);
  EXPECT_NEAR(dx.values()[0], 1, 1e-6);
  EXPECT_NEAR(dx.values()[1] + dx.values()[2], 1, 1e-6);
}

TEST_P(Gelu, backward_makes_the_activation_once_more) {
  Context context = test_context(GetParam(), 2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TestTensor x = TestTensor::random(dtype, {9001}, 1, 3);
    TestTensor dact = TestTensor::random(dtype, {9001}, 2), act(dtype, {9001}), dx(dtype, {9001}),
               again(dtype, {9001});
    gelu_forward(context, act, x);
    gelu_backward(context, dx, dact, x);
    gelu_backward(context, again, dact, x, dact.view());
    EXPECT_EQ(dact.bits(), act.bits());
    EXPECT_EQ(again.bits(), dx.bits());
  }
}

TEST_P(Gelu, equals_the_reference_at_odd_sizes_for_any_thread_count) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t count : {1, 7, 8, 9, 16, 17, 33, 1000, 50001}) {
      const TestTensor x = TestTensor::random(dtype, {count}, 1, 2),
                       dact = TestTensor::random(dtype, {count}, 2);
      std::string act_bits, dx_bits;
      for (const int threads : {1, 2, 3}) {
        Context context = test_context(GetParam(), threads);
        TestTensor act(dtype, {count}), dx(dtype, {count});
        gelu_forward(context, act, x);
        gelu_backward(context, dx, dact, x);
        expect_close(act.values(), reference::gelu_forward(x.values()), tolerance_of(dtype), "act");
        expect_close(dx.values(), reference::gelu_backward(dact.values(), x.values()),
                     tolerance_of(dtype), "dx");
        if (threads == 1) act_bits = act.bits(), dx_bits = dx.bits();
        EXPECT_EQ(act.bits(), act_bits);
        EXPECT_EQ(dx.bits(), dx_bits);
      }
    }
  }
}

TEST_P(Gelu, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  expect_same_bits([&] {
    const TestTensor x = TestTensor::random(DType::kBF16, {3001}, 1, 2),
                     dact = TestTensor::random(DType::kBF16, {3001}, 2);
    TestTensor act(DType::kBF16, {3001}), dx(DType::kBF16, {3001});
    gelu_forward(context, act, x);
    gelu_backward(context, dx, dact, x);
    return act.bits() + dx.bits();
  });
}

TEST_P(Gelu, an_element_has_the_same_bits_at_any_offset) {
  Context context = test_context(GetParam());
  const TestTensor x = TestTensor::random(DType::kBF16, {70}, 1, 2);
  TestTensor whole(DType::kBF16, {70});
  gelu_forward(context, whole, x);
  for (std::int64_t begin = 0; begin < 40; ++begin) {
    for (const std::int64_t count : {1, 7, 8, 9, 17, 30}) {
      TestTensor part(DType::kBF16, {count});
      gelu_forward(context, part, x.view().rows(begin, count));
      ASSERT_EQ(part.bits(), whole.bits().substr(static_cast<std::size_t>(begin) * 2,
                                                 static_cast<std::size_t>(count) * 2));
    }
  }
}

TEST_P(Gelu, results_may_replace_their_inputs) {
  Context context = test_context(GetParam(), 2);
  const TestTensor x = TestTensor::random(DType::kF32, {20003}, 1),
                   dact = TestTensor::random(DType::kF32, {20003}, 2);
  TestTensor act(DType::kF32, {20003}), dx(DType::kF32, {20003}), in_x = x, in_dact = dact,
                                                                  in_place = x;
  gelu_forward(context, act, x);
  gelu_forward(context, in_place, in_place);
  EXPECT_EQ(in_place.bits(), act.bits());
  gelu_backward(context, dx, dact, x);
  gelu_backward(context, in_x, dact, in_x);
  gelu_backward(context, in_dact, in_dact, x);
  EXPECT_EQ(in_x.bits(), dx.bits());
  EXPECT_EQ(in_dact.bits(), dx.bits());
}

TEST_P(Gelu, gradient_equals_finite_differences) {
  Context context = test_context(GetParam());
  const TestTensor x = TestTensor::random(DType::kF32, {19}, 1, 2),
                   dact = TestTensor::random(DType::kF32, {19}, 2);
  TestTensor dx(DType::kF32, {19});
  gelu_backward(context, dx, dact, x);
  const auto weights = dact.values();
  const auto loss = [&](const std::vector<double>& at) {
    const auto act = reference::gelu_forward(at);
    double sum = 0;
    for (std::size_t i = 0; i < act.size(); ++i) sum += act[i] * weights[i];
    return sum;
  };
  expect_close(dx.values(), finite_differences(x.values(), loss), {1e-6, 1e-6}, "dx");
}

TEST_P(Gelu, values_of_any_size_stay_finite_and_nan_shows) {
  Context context = test_context(GetParam());
  const TestTensor x = TestTensor::of(DType::kF32, {5}, {1e30, -1e30, 100, -100, std::nan("")});
  TestTensor act(DType::kF32, {5}), dx(DType::kF32, {5});
  gelu_forward(context, act, x);
  gelu_backward(context, dx, TestTensor::of(DType::kF32, {5}, {1, 1, 1, 1, 1}), x);
  expect_close(act.values(), {1e30, 0, 100, 0, std::nan("")}, {1e-6, 1e-40}, "act");
  expect_close(dx.values(), {1, 0, 1, 0, std::nan("")}, {1e-6, 1e-20}, "dx");
}

TEST_P(Gelu, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  TestTensor a(DType::kF32, {4}), b(DType::kF32, {5}), h(DType::kBF16, {4}), ids(DType::kI32, {4});
  expect_refused([&] { gelu_forward(context, a, b); },
                 "gelu_forward.act: expected [5] fp32, found [4] fp32");
  expect_refused([&] { gelu_forward(context, ids, ids); }, "gelu_forward.x: expected fp32 or bf16");
  expect_refused([&] { gelu_backward(context, a, h, a); }, "gelu_backward.dact: expected [4] fp32");
  expect_refused([&] { gelu_forward(context, b.view().rows(0, 4), b.view().rows(1, 4)); },
                 "gelu_forward.act: shares part of its memory with x");
}

}  // namespace
}  // namespace trireme
