#include "kernels/dropout/dropout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class Dropout : public OpTest {};
TRIREME_FOR_ALL_ISAS(Dropout);

constexpr std::uint64_t kKey = 0x1234567890abcdef;

/// [T, 2]: samples from `first` on, of `length` tokens each.
TestTensor tokens_of(std::int64_t rows, std::int64_t length, std::int64_t first = 0) {
  std::vector<double> values;
  for (std::int64_t t = 0; t < rows; ++t) {
    values.push_back(static_cast<double>(first + t / length));
    values.push_back(static_cast<double>(t % length));
  }
  return TestTensor::of(DType::kI32, {rows, 2}, values);
}

/// The formula of the header.
std::vector<double> reference(const std::vector<double>& x, const std::vector<double>& tokens,
                              std::int64_t columns, double share, std::int64_t first_column) {
  const double dropped = std::min(std::round(share * 65536), 65535.0);
  std::vector<double> y;
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    const std::int64_t row = i / columns, column = first_column + i % columns;
    const auto at = [&](std::int64_t k) {
      return static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(2 * row + k)]);
    };
    const std::uint32_t word =
        philox(kKey, at(0) << 32 | at(1),
               static_cast<std::uint64_t>(column / 8))[static_cast<std::size_t>(column % 8 / 2)];
    const std::uint32_t number = column % 2 == 0 ? word & 0xffff : word >> 16;
    const double value = x[static_cast<std::size_t>(i)];
    y.push_back(number >= dropped ? value * 65536 / (65536 - dropped) : 0);
  }
  return y;
}

TEST_P(Dropout, equals_the_formula_at_odd_sizes_for_any_thread_count) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [rows, columns, first] : {std::array{1, 1, 0},
                                               {3, 7, 5},
                                               {9, 16, 8},
                                               {5, 136, 0},
                                               {31, 133, 1000003},
                                               {40, 400, 12}}) {
      const TestTensor x = TestTensor::random(dtype, {rows, columns}, 1),
                       tokens = tokens_of(rows, 6, 70000);
      for (const double share : {0.0, 0.1, 0.5, 0.999999}) {
        const std::vector<double> expected =
            reference(x.values(), tokens.values(), columns, share, first);
        for (const int threads : {1, 2, 3}) {
          Context context = test_context(GetParam(), threads);
          TestTensor y(dtype, {rows, columns});
          dropout(context, y, x, {share, kKey, tokens.view(), first});
          expect_close(y.values(), expected, tolerance_of(dtype), "y");
        }
      }
    }
  }
}

TEST_P(Dropout, keeps_the_share_and_the_mean) {
  Context context = test_context(GetParam(), 2);
  constexpr std::int64_t kRows = 256, kColumns = 512;
  const std::vector<double> ones(static_cast<std::size_t>(kRows * kColumns), 1);
  const TestTensor x = TestTensor::of(DType::kF32, {kRows, kColumns}, ones),
                   tokens = tokens_of(kRows, 64);
  TestTensor y(DType::kF32, {kRows, kColumns});
  dropout(context, y, x, {0.1, kKey, tokens.view()});
  const std::vector<double> values = y.values();
  const auto zeros = static_cast<double>(std::count(values.begin(), values.end(), 0.0));
  const double count = static_cast<double>(values.size());
  // Four standard deviations.
  EXPECT_NEAR(zeros / count, 0.1, 4 * std::sqrt(0.1 * 0.9 / count));
  EXPECT_NEAR(std::accumulate(values.begin(), values.end(), 0.0) / count, 1,
              4 * std::sqrt(0.1 / 0.9 / count));
}

TEST_P(Dropout, parts_have_the_bits_of_the_whole_and_other_keys_others) {
  Context context = test_context(GetParam(), 2);
  const TestTensor tokens = tokens_of(12, 4);
  TestTensor whole = TestTensor::random(DType::kF32, {12, 40}, 3), y(DType::kF32, {12, 40}),
             other(DType::kF32, {12, 40});
  dropout(context, y, whole, {0.3, kKey, tokens.view()});
  dropout(context, other, whole, {0.3, kKey + 1, tokens.view()});
  EXPECT_NE(y.bits(), other.bits());
  dropout(context, other, whole, {0.3, kKey, tokens.view()});
  EXPECT_EQ(y.bits(), other.bits());
  // Columns from 13 on, of rows from 5 on.
  const std::vector<double> values = whole.values(), expected = y.values();
  std::vector<double> part, part_expected;
  for (std::size_t t = 5; t < 12; ++t) {
    for (std::size_t k = 13; k < 40; ++k) {
      part.push_back(values[t * 40 + k]);
      part_expected.push_back(expected[t * 40 + k]);
    }
  }
  TestTensor in_place = TestTensor::of(DType::kF32, {7, 27}, part);
  dropout(context, in_place, in_place, {0.3, kKey, tokens.view().rows(5, 7), 13});
  EXPECT_EQ(in_place.values(), part_expected);
}

TEST_P(Dropout, hides_no_nan) {
  Context context = test_context(GetParam());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const TestTensor x = TestTensor::of(DType::kF32, {1, 16}, std::vector<double>(16, nan)),
                   tokens = tokens_of(1, 1);
  TestTensor y(DType::kF32, {1, 16});
  dropout(context, y, x, {0.5, kKey, tokens.view()});
  for (const double value : y.values()) EXPECT_TRUE(std::isnan(value));
}

TEST_P(Dropout, wrong_operands_are_refused) {
  Context context = test_context(GetParam());
  const TestTensor x(DType::kF32, {4, 3}), tokens = tokens_of(4, 4), few = tokens_of(3, 4);
  TestTensor y(DType::kF32, {4, 3}), narrow(DType::kBF16, {4, 3});
  EXPECT_THROW(dropout(context, y, x, {0.1, kKey, few.view()}), InternalError);
  EXPECT_THROW(dropout(context, narrow, x, {0.1, kKey, tokens.view()}), InternalError);
  EXPECT_THROW(dropout(context, y, x, {1, kKey, tokens.view()}), InternalError);
  EXPECT_THROW(dropout(context, y, x, {0.1, kKey, tokens.view(), -1}), InternalError);
}

}  // namespace
}  // namespace trireme
