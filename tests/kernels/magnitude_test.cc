#include "kernels/magnitude/magnitude.h"

#include <cmath>
#include <string>
#include <vector>

#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class Magnitude : public OpTest {};
TRIREME_FOR_ALL_ISAS(Magnitude);

TEST_P(Magnitude, values_by_hand) {
  Context context = test_context(GetParam());
  const TestTensor magnitude = TestTensor::of(DType::kF32, {2}, {6, -1}),
                   squares = TestTensor::of(DType::kF32, {2}, {9, 4});
  TestTensor gain(DType::kF32, {2}), inverse(DType::kF32, {2});
  magnitude_gains(context, gain, inverse, magnitude, squares);
  expect_close(gain.values(), {2, -0.5}, {1e-7}, "gain");
  const TestTensor v = TestTensor::of(DType::kF32, {2, 2}, {1, 2, 3, 4}),
                   bias = TestTensor::of(DType::kF32, {2}, {10, 20}),
                   dy = TestTensor::of(DType::kF32, {2, 2}, {1, 1, 2, -1});
  TestTensor y(DType::kF32, {2, 2}), dv(DType::kF32, {2, 2});
  TestTensor dgain = TestTensor::of(DType::kF32, {2}, {100, 0}),
             dmagnitude = TestTensor::of(DType::kF32, {2}, {1, 1});
  magnitude_forward(context, y, v, gain, bias);
  expect_close(y.values(), {12, 19, 16, 18}, {1e-7}, "y");
  magnitude_backward(context, {dv, dgain, dy, v, gain});
  expect_close(dv.values(), {2, -0.5, 4, 0.5}, {1e-7}, "dv");
  expect_close(dgain.values(), {107, -2}, {1e-7}, "dgain");
  magnitude_gradient(context, dmagnitude, dgain, inverse);
  expect_close(dmagnitude.values(), {1 + 107.0 / 3, 0}, {1e-6}, "dmagnitude");
}

TEST_P(Magnitude, equals_the_formula_at_odd_sizes_for_any_thread_count) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [tokens, columns] :
         {std::pair{1, 1}, {3, 7}, {65, 16}, {131, 33}, {200, 256}}) {
      const TestTensor v = TestTensor::random(dtype, {tokens, columns}, 1),
                       dy = TestTensor::random(dtype, {tokens, columns}, 2),
                       bias = TestTensor::random(dtype, {columns}, 3),
                       gain = TestTensor::random(DType::kF32, {columns}, 4);
      const std::vector<double> v_values = v.values(), dy_values = dy.values(),
                                bias_values = bias.values(), gains = gain.values();
      std::vector<double> y_expected, dv_expected,
          dgain_expected(static_cast<std::size_t>(columns), 100);
      for (std::size_t i = 0; i < v_values.size(); ++i) {
        const std::size_t column = i % static_cast<std::size_t>(columns);
        y_expected.push_back(v_values[i] * gains[column] + bias_values[column]);
        dv_expected.push_back(dy_values[i] * gains[column]);
        dgain_expected[column] += dy_values[i] * v_values[i];
      }
      for (const int threads : {1, 2, 3}) {
        Context context = test_context(GetParam(), threads);
        TestTensor y(dtype, {tokens, columns}), dv(dtype, {tokens, columns});
        TestTensor dgain = TestTensor::of(
            DType::kF32, {columns}, std::vector<double>(static_cast<std::size_t>(columns), 100));
        magnitude_forward(context, y, v, gain, bias);
        expect_close(y.values(), y_expected, tolerance_of(dtype), "y");
        magnitude_backward(context, {dv, dgain, dy, v, gain});
        expect_close(dv.values(), dv_expected, tolerance_of(dtype), "dv");
        expect_close(dgain.values(), dgain_expected, {1e-5}, "dgain");
      }
    }
  }
}

TEST_P(Magnitude, results_may_replace_their_inputs_and_sums_stand_alone) {
  Context context = test_context(GetParam(), 2);
  const TestTensor v = TestTensor::random(DType::kBF16, {70, 24}, 1),
                   gain = TestTensor::random(DType::kF32, {24}, 2);
  TestTensor y(DType::kBF16, {70, 24}), dv(DType::kBF16, {70, 24}),
      in_place = TestTensor::random(DType::kBF16, {70, 24}, 1);
  magnitude_forward(context, y, v, gain);
  magnitude_forward(context, in_place, in_place, gain);
  EXPECT_EQ(in_place.bits(), y.bits());
  TestTensor dy = TestTensor::random(DType::kBF16, {70, 24}, 3);
  TestTensor first(DType::kF32, {24}), second(DType::kF32, {24}), third(DType::kF32, {24});
  magnitude_backward(context, {dv, first, dy, v, gain});
  magnitude_backward(context, {{}, second, dy, v, gain});
  magnitude_backward(context, {dy, third, dy, v, gain});
  EXPECT_EQ(dy.bits(), dv.bits());
  EXPECT_EQ(first.bits(), second.bits());
  EXPECT_EQ(first.bits(), third.bits());
}

TEST_P(Magnitude, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  expect_same_bits([&] {
    const TestTensor v = TestTensor::random(DType::kF32, {201, 40}, 1),
                     dy = TestTensor::random(DType::kF32, {201, 40}, 2),
                     gain = TestTensor::random(DType::kF32, {40}, 3);
    TestTensor dv(DType::kF32, {201, 40}), dgain(DType::kF32, {40});
    magnitude_backward(context, {dv, dgain, dy, v, gain});
    return dv.bits() + dgain.bits();
  });
}

TEST_P(Magnitude, wrong_operands_are_refused) {
  Context context = test_context(GetParam());
  const TestTensor v(DType::kF32, {4, 3}), gain(DType::kF32, {3}), other(DType::kF32, {4});
  TestTensor y(DType::kF32, {4, 3}), narrow(DType::kBF16, {4, 3});
  EXPECT_THROW(magnitude_forward(context, y, v, other), InternalError);
  EXPECT_THROW(magnitude_forward(context, narrow, v, gain), InternalError);
  TestTensor dgain(DType::kF32, {4});
  EXPECT_THROW(magnitude_backward(context, {y, dgain, v, v, gain}), InternalError);
}

}  // namespace
}  // namespace trireme
