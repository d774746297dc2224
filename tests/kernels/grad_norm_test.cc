#include "kernels/grad_norm/grad_norm.h"

#include <cmath>
#include <cstring>

#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class GradNorm : public OpTest {};
TRIREME_FOR_ALL_ISAS(GradNorm);

void accumulate_one(Context& context, ExactSum& sum, ConstTensorView gradient) {
  grad_norm_accumulate(context, sum, {&gradient, 1});
}

double squares(Context& context, ConstTensorView gradient) {
  ExactSum sum;
  accumulate_one(context, sum, gradient);
  return sum.value();
}

/// The tree of the header written out: lane l of 16 sums elements l, l + 16, ...; lanes are folded
/// in halves.
double row_reference(const std::vector<double>& x, std::size_t begin, std::size_t count) {
  double lanes[16] = {};
  for (std::size_t i = 0; i < count; ++i) lanes[i % 16] += x[begin + i] * x[begin + i];
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

TEST_P(GradNorm, values_by_hand) {
  Context context = test_context(GetParam());
  ExactSum sum;
  sum.add(1);
  accumulate_one(context, sum, TestTensor::of(DType::kF32, {2, 2}, {1, -2, 3, 4}));
  accumulate_one(context, sum, TestTensor::of(DType::kF32, {1}, {-5}));
  EXPECT_EQ(sum.value(), 56);
}

TEST_P(GradNorm, every_device_has_the_bits_of_the_written_tree) {
  Context context = test_context(GetParam());
  for (const std::int64_t count : {1, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 260, 1000}) {
    const TestTensor x = TestTensor::random(DType::kF32, {count}, 1);
    EXPECT_EQ(squares(context, x), row_reference(x.values(), 0, static_cast<std::size_t>(count)))
        << count;
  }
}

TEST_P(GradNorm, threads_and_cuts_of_rows_change_no_bit) {
  const TestTensor x = TestTensor::random(DType::kF32, {700, 101}, 1, 1e-3);
  ExactSum expected;
  for (std::size_t r = 0; r < 700; ++r) expected.add(row_reference(x.values(), r * 101, 101));
  for (const int threads : {1, 2, 3}) {
    Context context = test_context(GetParam(), threads);
    EXPECT_EQ(squares(context, x), expected.value());
    ExactSum ranks[3];
    accumulate_one(context, ranks[0], x.view().rows(300, 400));
    accumulate_one(context, ranks[1], x.view().rows(0, 1));
    accumulate_one(context, ranks[2], x.view().rows(1, 299));
    ranks[0].add(ranks[1]);
    ranks[0].add(ranks[2]);
    EXPECT_EQ(ranks[0].value(), expected.value());
  }
}

TEST_P(GradNorm, sums_that_stay_where_they_are_computed_have_the_bits_of_those_that_come_back) {
  const TestTensor x = TestTensor::random(DType::kF32, {70, 101}, 1, 1e-3),
                   y = TestTensor::random(DType::kF32, {33}, 2, 10);
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    TestTensor words(DType::kF64, {ExactSum::kWords});
    const ConstTensorView both[] = {x, y};
    add_squares(context, words, {both, 1});
    add_squares(context, words, both);
    add_squares(context, words, {});
    test_device::synchronize();
    ExactSum expected, found;
    for (const ConstTensorView& each : {both[0], both[0], both[1]})
      accumulate_one(context, expected, each);
    const std::string bits = words.bits();
    std::memcpy(found.words().data(), bits.data(), bits.size());
    EXPECT_EQ(found.value(), expected.value());
    TestTensor bad(DType::kF32, {3});
    bad.set(1, std::nan(""));
    const ConstTensorView of_bad = bad;
    add_squares(context, words, {&of_bad, 1});
    test_device::synchronize();
    const std::string after = words.bits();
    std::memcpy(found.words().data(), after.data(), after.size());
    EXPECT_TRUE(found.non_finite());
  }
}

TEST_P(GradNorm, huge_and_tiny_elements_neither_overflow_nor_vanish) {
  Context context = test_context(GetParam());
  EXPECT_EQ(squares(context, TestTensor::of(DType::kF32, {2}, {0x1p127, 0x1p127})), 0x1p255);
  EXPECT_EQ(squares(context, TestTensor::of(DType::kF32, {1}, {0x1p-149})), 0x1p-298);
}

TEST_P(GradNorm, a_non_finite_element_anywhere_is_noticed) {
  Context context = test_context(GetParam(), 2);
  for (const std::int64_t at : {0, 16, 36, 73}) {
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      TestTensor x = TestTensor::random(DType::kF32, {2, 37}, 1);
      x.set(at, bad);
      ExactSum sum;
      accumulate_one(context, sum, x);
      EXPECT_TRUE(sum.non_finite());
    }
  }
}

TEST_P(GradNorm, a_non_finite_element_of_any_thread_is_noticed) {
  Context context = test_context(GetParam(), 3);
  const std::int64_t rows = 700, columns = 141;
  for (const std::int64_t row : {std::int64_t{0}, rows / 2, rows - 1}) {
    TestTensor x(DType::kF32, {rows, columns});
    x.set(row * columns, std::nan(""));
    ExactSum sum;
    accumulate_one(context, sum, x);
    EXPECT_TRUE(sum.non_finite()) << row;
  }
}

/// Tensors of many shapes, some empty, more than one block of a GPU's.
std::vector<TestTensor> many_gradients(std::size_t count) {
  std::vector<TestTensor> gradients;
  for (std::size_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::int64_t>(i);
    const Shape shape = n % 5 == 4   ? Shape{0, 3}
                        : n % 3 == 0 ? Shape{n * 7 + 1}
                        : n % 3 == 1 ? Shape{n * 11 % 140 + 1, n % 36 + 1}
                                     : Shape{n, 4 * n};
    gradients.push_back(TestTensor::random(DType::kF32, shape, i + 1, std::pow(10.0, n % 40 - 20)));
  }
  return gradients;
}

double squares_of_all(Context& context, const std::vector<TestTensor>& gradients) {
  const std::vector<ConstTensorView> views(gradients.begin(), gradients.end());
  ExactSum sum;
  grad_norm_accumulate(context, sum, views);
  return sum.value();
}

TEST_P(GradNorm, many_tensors_have_the_bits_of_one_after_another) {
  for (const std::size_t count : {0, 1, 2, 31, 33, 70}) {
    Context context = test_context(GetParam(), 2);
    const std::vector<TestTensor> gradients = many_gradients(count);
    ExactSum expected;
    for (const TestTensor& each : gradients) {
      const auto columns = static_cast<std::size_t>(each.shape()[each.shape().rank() - 1]);
      const std::vector<double> values = each.values();
      for (std::size_t first = 0; first < values.size(); first += columns)
        expected.add(row_reference(values, first, columns));
    }
    EXPECT_EQ(squares_of_all(context, gradients), expected.value()) << count;
  }
}

TEST_P(GradNorm, the_order_of_threads_changes_no_bit) {
  expect_same_bits([&] {
    Context context = test_context(GetParam(), 2);
    const double sum = squares_of_all(context, many_gradients(70));
    return std::string(reinterpret_cast<const char*>(&sum), sizeof(sum));
  });
}

TEST_P(GradNorm, a_device_has_the_bits_of_the_cpu) {
  Context context = test_context(GetParam()), cpu({DeviceKind::kCpu, 0}, 1, GetParam());
  const std::vector<TestTensor> gradients = many_gradients(20);
  EXPECT_EQ(squares_of_all(context, gradients), squares_of_all(cpu, gradients));
}

TEST_P(GradNorm, empty_gradients_add_nothing) {
  Context context = test_context(GetParam());
  EXPECT_EQ(squares(context, ConstTensorView(nullptr, DType::kF32, {0, 8})), 0);
}

TEST_P(GradNorm, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  ExactSum sum;
  expect_refused([&] { accumulate_one(context, sum, TestTensor(DType::kBF16, {4})); },
                 "grad_norm_accumulate.gradient: expected [4] fp32, found [4] bf16");
  expect_refused(
      [&] {
        accumulate_one(context, sum, TestTensor(DType::kF32, {4, 1, 2}));
      },
      "grad_norm_accumulate.gradient: expected 2 dims, found [4, 1, 2] fp32");
}

}  // namespace
}  // namespace trireme
