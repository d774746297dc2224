#include "kernels/elementwise/elementwise.h"

#include <array>
#include <numeric>

#include "kernels/elementwise_reference.h"
#include "kernels/support/op_test.h"
#include "support/tree_sum.h"

namespace trireme {
namespace {

constexpr std::int64_t kCounts[] = {1, 7, 8, 9, 15, 16, 17, 31, 33, 1000};

class Elementwise : public OpTest {};
TRIREME_FOR_ALL_ISAS(Elementwise);

TEST_P(Elementwise, cast_rounds_to_nearest_even_and_widens_exactly) {
  Context context = test_context(GetParam());
  // 1 + 2^-8 lies half-way between two bf16 numbers, 1 + 3 * 2^-8 too: both go to the even one.
  const TestTensor x =
      TestTensor::of(DType::kF32, {4}, {1 + 0x1p-8, 1 + 3 * 0x1p-8, -3.5, 1 + 0x1.01p-8});
  TestTensor y(DType::kBF16, {4}), back(DType::kF32, {4});
  cast(context, y, x);
  EXPECT_EQ(y.values(), (std::vector<double>{1, 1 + 0x1p-6, -3.5, 1 + 0x1p-7}));
  cast(context, back, y);
  EXPECT_EQ(back.values(), y.values());
}

TEST_P(Elementwise, cast_to_the_same_type_copies_bits) {
  Context context = test_context(GetParam(), 2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
    const TestTensor x = TestTensor::random(dtype, {3, 70001}, 1, 100);
    TestTensor y(dtype, {3, 70001});
    cast(context, y, x);
    EXPECT_EQ(y.bits(), x.bits());
  }
}

TEST_P(Elementwise, copied_heads_leave_the_rest_of_wider_rows_alone) {
  Context context = test_context(GetParam(), 2);
  const TestTensor from = TestTensor::random(DType::kBF16, {5, 12}, 1);
  TestTensor to = TestTensor::random(DType::kBF16, {9, 7}, 2);
  std::vector<double> expected = to.values();
  for (std::int64_t t = 0; t < 5; ++t) {
    for (std::int64_t c = 0; c < 6; ++c) expected[(t + 3) * 7 + c] = from.values()[t * 12 + 4 + c];
  }
  copy_heads(context, heads_of(to.view().rows(3, 5), 0, 2, 3), heads_of(from.view(), 4, 2, 3));
  EXPECT_EQ(to.values(), expected);
}

TEST_P(Elementwise, heads_are_put_into_the_rows_that_a_table_names) {
  Context context = test_context(GetParam(), 2);
  for (const std::int64_t columns : {6, 16}) {  // of 16 all rows are aligned
    const TestTensor from = TestTensor::random(DType::kBF16, {3, 2 * columns}, 1);
    const TestTensor rows = TestTensor::of(DType::kI32, {3}, {7, 0, 4});
    TestTensor to = TestTensor::random(DType::kBF16, {9, columns}, 2);
    std::vector<double> expected = to.values();
    for (std::size_t t = 0; t < 3; ++t) {
      const auto row = static_cast<std::size_t>(rows.values()[t]),
                 width = static_cast<std::size_t>(columns);
      for (std::size_t c = 0; c < width; ++c)
        expected[row * width + c] = from.values()[t * 2 * width + width + c];
    }
    put_heads(context, heads_of(to.view(), 0, 2, columns / 2),
              heads_of(from.view(), columns, 2, columns / 2), rows);
    EXPECT_EQ(to.values(), expected);
  }
}

TEST_P(Elementwise, accumulate_equals_the_reference_at_odd_sizes_for_any_thread_count) {
  for (const int threads : {1, 2, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t count : {1, 7, 8, 9, 31, 33, 1000, 100001}) {
        const TestTensor x = TestTensor::random(dtype, {count}, 1);
        TestTensor y = TestTensor::random(DType::kF32, {count}, 2);
        const auto expected = reference::accumulate(y.values(), x.values());
        accumulate(context, y, x);
        expect_close(y.values(), expected, tolerance_of(DType::kF32), "accumulate");
      }
    }
  }
}

TEST_P(Elementwise, accumulate_in_bf16_rounds_the_sum_once) {
  Context context = test_context(GetParam(), 2);
  for (const std::int64_t count : {1, 7, 8, 33, 1000}) {
    const TestTensor x = TestTensor::random(DType::kBF16, {count}, 1);
    TestTensor y = TestTensor::random(DType::kBF16, {count}, 2);
    std::vector<double> expected = reference::accumulate(y.values(), x.values());
    for (double& value : expected)
      value = static_cast<double>(to_float(to_bfloat16(static_cast<float>(value))));
    accumulate(context, y, x);
    EXPECT_EQ(y.values(), expected);
  }
}

TEST_P(Elementwise, an_element_has_the_same_bits_at_any_offset_and_length) {
  Context context = test_context(GetParam());
  const TestTensor x = TestTensor::random(DType::kBF16, {70}, 1);
  TestTensor whole = TestTensor::random(DType::kF32, {70}, 2);
  const TestTensor before = whole;
  accumulate(context, whole, x);
  for (std::int64_t begin = 0; begin < 40; ++begin) {
    for (const std::int64_t count : {1, 7, 8, 9, 17, 30}) {
      TestTensor part = before;
      accumulate(context, part.view().rows(begin, count), x.view().rows(begin, count));
      const auto at = static_cast<std::size_t>(begin) * 4,
                 size = static_cast<std::size_t>(count) * 4;
      ASSERT_EQ(part.bits().substr(at, size), whole.bits().substr(at, size));
    }
  }
}

TEST_P(Elementwise, sum_ranks_adds_neighbours_in_f32_and_rounds_once) {
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t count : {1, 7, 8, 33, 1000}) {
        for (const int others_count : {0, 1, 2, 3, 4, 7, 8}) {
          const TestTensor others = TestTensor::random(dtype, {others_count, count}, 1);
          for (int rank = 0; rank <= others_count; ++rank) {
            TestTensor own = TestTensor::random(dtype, {count}, 2);
            const std::vector<double> mine = own.values(), rest = others.values();
            std::vector<double> expected(mine.size());
            for (std::size_t i = 0; i < expected.size(); ++i) {
              const auto part = [&, own_rank = static_cast<std::size_t>(rank)](std::size_t r) {
                const std::size_t row = r < own_rank ? r : r - 1;
                return static_cast<float>(r == own_rank ? mine[i] : rest[row * mine.size() + i]);
              };
              const float sum = tree_sum(static_cast<std::size_t>(others_count) + 1, part);
              expected[i] = dtype == DType::kF32 ? static_cast<double>(sum)
                                                 : static_cast<double>(to_float(to_bfloat16(sum)));
            }
            sum_ranks(context, own, others, rank);
            EXPECT_EQ(own.values(), expected) << count << " elements, rank " << rank;
          }
        }
      }
    }
  }
}

TEST_P(Elementwise, sum_ranks_refuses_operands_that_do_not_belong_together) {
  Context context = test_context(GetParam());
  TestTensor own = TestTensor::random(DType::kF32, {6}, 1);
  const TestTensor others = TestTensor::random(DType::kF32, {2, 6}, 2);
  const TestTensor other_type = TestTensor::random(DType::kBF16, {2, 6}, 2);
  EXPECT_THROW(sum_ranks(context, own, others, 3), InternalError);
  EXPECT_THROW(sum_ranks(context, own, others, -1), InternalError);
  EXPECT_THROW(sum_ranks(context, own, other_type, 0), InternalError);
  EXPECT_THROW(sum_ranks(context, own, own.view().reshape({2, 3}), 0), InternalError);
}

TEST_P(Elementwise, clear_zeroes_all_bytes_and_no_others) {
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const std::int64_t count : kCounts) {
      TestTensor x = TestTensor::random(DType::kBF16, {count, 37}, 1);
      clear(context, x);
      EXPECT_EQ(x.bits(), TestTensor(DType::kBF16, {count, 37}).bits());
    }
  }
}

TEST_P(Elementwise, column_sum_equals_the_reference_and_has_the_same_bits_for_any_thread_count) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t tokens : {0, 1, 3, 64, 65, 200}) {
      for (const std::int64_t columns : {1, 7, 8, 9, 31, 33, 64, 300, 1000}) {
        const TestTensor x = TestTensor::random(dtype, {tokens, columns}, 1);
        const TestTensor before = TestTensor::random(DType::kF32, {columns}, 2);
        std::string bits;
        for (const int threads : {1, 2, 3}) {
          Context context = test_context(GetParam(), threads);
          TestTensor sum = before;
          column_sum(context, sum, x);
          expect_close(sum.values(), reference::column_sum(before.values(), x.values()),
                       {1e-6, 1e-6}, "column_sum");
          if (threads == 1) bits = sum.bits();
          EXPECT_EQ(sum.bits(), bits);
        }
      }
    }
  }
}

TEST_P(Elementwise, sum_in_order_is_32_chains_of_double_additions) {
  Context context = test_context(GetParam());
  for (const std::int64_t count : {0, 1, 31, 32, 33, 1000, 2048, 2049, 5000}) {
    const TestTensor x = TestTensor::random(DType::kF32, {count}, 1, 1e3);
    TestTensor sum = TestTensor::of(DType::kF64, {1}, {0.1});
    std::array<double, 32> chains{};
    const std::vector<double> values = x.values();
    for (std::size_t i = 0; i < values.size(); ++i) chains[i % 32] += values[i];
    const double expected = std::accumulate(chains.begin(), chains.end(), 0.0);
    sum_in_order(context, sum, x);
    EXPECT_EQ(sum.values()[0], 0.1 + expected);
  }
}

TEST_P(Elementwise, column_sum_of_a_tall_matrix_keeps_its_digits_in_every_order) {
  Context context = test_context(GetParam(), 2);
  for (const std::int64_t columns : {3, 72}) {
    const TestTensor x = TestTensor::random(DType::kBF16, {20001, columns}, 1);
    const TestTensor before = TestTensor::random(DType::kF32, {columns}, 2);
    const auto expected = reference::column_sum(before.values(), x.values());
    expect_same_bits([&] {
      TestTensor sum = before;
      column_sum(context, sum, x);
      expect_close(sum.values(), expected, {1e-6, 2e-6}, "column_sum");
      return sum.bits();
    });
  }
}

TEST_P(Elementwise, a_tensor_may_be_added_to_itself) {
  Context context = test_context(GetParam());
  TestTensor x = TestTensor::of(DType::kF32, {3}, {1, -2, 4});
  accumulate(context, x, x);
  EXPECT_EQ(x.values(), (std::vector<double>{2, -4, 8}));
}

TEST_P(Elementwise, nothing_is_done_for_empty_tensors) {
  Context context = test_context(GetParam());
  cast(context, TensorView(nullptr, DType::kBF16, {0, 4}),
       ConstTensorView(nullptr, DType::kF32, {0, 4}));
  clear(context, TensorView(nullptr, DType::kBF16, {0}));
  accumulate(context, TensorView(nullptr, DType::kF32, {0}),
             ConstTensorView(nullptr, DType::kF32, {0}));
}

TEST_P(Elementwise, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  TestTensor a(DType::kF32, {4}), b(DType::kF32, {5}), h(DType::kBF16, {4}), ids(DType::kI32, {4}),
      x(DType::kF32, {3, 4});
  expect_refused([&] { cast(context, a, b); }, "cast.source: expected [4] fp32, found [5] fp32");
  expect_refused([&] { cast(context, h, ids); }, "cast.source: expected fp32 or bf16, found int32");
  expect_refused([&] { accumulate(context, h, a); },
                 "accumulate.destination: expected [4] fp32, found [4] bf16");
  expect_refused([&] { accumulate(context, ids, h); },
                 "accumulate.destination: expected [4] fp32, found [4] int32");
  expect_refused([&] { accumulate(context, a, {}); },
                 "accumulate.source: expected [4] fp32, found nothing");
  expect_refused([&] { accumulate(context, b.view().rows(0, 4), b.view().rows(1, 4)); },
                 "accumulate.destination: shares part of its memory with source");
  expect_refused([&] { column_sum(context, b, x); },
                 "column_sum.sum: expected [4] fp32, found [5] fp32");
  expect_refused([&] { column_sum(context, a, b); },
                 "column_sum.x: expected 2 dims, found [5] fp32");
}

TEST_P(Elementwise, scale_rounds_once) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t count : {0, 1, 7, 40, 5003}) {
      TestTensor x = TestTensor::random(type, {count}, 1);
      std::vector<double> expected = x.values();
      for (double& value : expected) value *= 33.5;
      scale(context, x, 33.5F);
      expect_close(x.values(), expected, tolerance_of(type), "x");
    }
  }
  TestTensor ids(DType::kI32, {3});
  expect_refused([&] { scale(context, ids, 2); }, "scale.x: expected fp32 or bf16");
}

}  // namespace
}  // namespace trireme
