#include "kernels/embedding/embedding.h"

#include <cmath>

#include "kernels/embedding_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class Embedding : public OpTest {};
TRIREME_FOR_ALL_ISAS(Embedding);

constexpr std::int64_t kRows = 11, kPositions = 70;

TestTensor indices(std::int64_t count, std::int64_t below, int factor) {
  TestTensor ids(DType::kI32, {count});
  for (std::int64_t i = 0; i < count; ++i) ids.set(i, static_cast<double>(i * factor % below));
  return ids;
}

struct Operands {
  TestTensor ids, positions, table, position_table, out, dout, dtable;

  Operands(DType type, std::int64_t tokens, std::int64_t channels)
      : ids(indices(tokens, kRows, 7)),
        positions(indices(tokens, kPositions, 3)),
        table(TestTensor::random(type, {kRows, channels}, 1)),
        position_table(TestTensor::random(type, {kPositions, channels}, 2)),
        out(type, {tokens, channels}),
        dout(TestTensor::random(type, {tokens, channels}, 3)),
        dtable(TestTensor::random(DType::kF32, {kRows, channels}, 4)) {}
  EmbeddingForward forward(bool with_positions) {
    EmbeddingForward args;
    args.out_TC = out;
    args.ids_T = ids;
    args.table_VC = table;
    if (with_positions) {
      args.positions_T = positions;
      args.position_table_PC = position_table;
    }
    return args;
  }
  reference::EmbeddingCase reference_case(bool with_positions) const {
    const auto channels = static_cast<std::size_t>(table.shape()[1]);
    return {channels,
            ids.values(),
            table.values(),
            with_positions ? positions.values() : std::vector<double>(),
            position_table.values(),
            0};
  }
};

TEST_P(Embedding, values_by_hand) {
  Context context = test_context(GetParam());
  const TestTensor table = TestTensor::of(DType::kF32, {2, 2}, {1, 2, 3, 4});
  const TestTensor ids = TestTensor::of(DType::kI32, {3}, {1, 0, 1}),
                   dout = TestTensor::of(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6});
  TestTensor out(DType::kF32, {3, 2}),
      dtable = TestTensor::of(DType::kF32, {2, 2}, {100, 100, 100, 100});
  embedding_forward(context, {.out_TC = out, .ids_T = ids, .table_VC = table});
  EXPECT_EQ(out.values(), (std::vector<double>{3, 4, 1, 2, 3, 4}));
  embedding_backward(context, dtable, ids, dout);
  EXPECT_EQ(dtable.values(), (std::vector<double>{103, 104, 106, 108}));
}

TEST_P(Embedding, both_passes_equal_the_reference_for_odd_sizes) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t channels : {1, 7, 8, 9, 31, 33, 1000}) {
      for (const std::int64_t tokens : {0, 1, 3, 65}) {
        for (const bool with_positions : {false, true}) {
          Operands x(type, tokens, channels);
          embedding_forward(context, x.forward(with_positions));
          const auto c = x.reference_case(with_positions);
          expect_close(x.out.values(), reference::embedding_forward(c), tolerance_of(type), "out");
          const auto expected =
              reference::embedding_backward(c, x.dtable.values(), x.dout.values());
          embedding_backward(context, x.dtable, x.ids, x.dout);
          expect_close(x.dtable.values(), expected, {1e-6, 1e-6}, "dtable");
        }
      }
    }
  }
}

/// Rows [first, first + count) of a table.
TestTensor rows_of(const TestTensor& table, std::int64_t first, std::int64_t count) {
  const std::int64_t channels = table.shape()[1];
  TestTensor rows(table.dtype(), {count, channels});
  const auto values = table.values();
  for (std::int64_t i = 0; i < count * channels; ++i)
    rows.set(i, values[static_cast<std::size_t>(first * channels + i)]);
  return rows;
}

TEST_P(Embedding, the_parts_of_a_vocabulary_add_up_to_the_whole_and_have_its_gradients) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t channels : {1, 16, 33}) {
      for (const std::vector<std::int64_t>& sizes :
           {std::vector<std::int64_t>{11}, {4, 7}, {3, 1, 7}, {5, 0, 6, 0}}) {
        for (const int threads : {1, 3}) {
          Context context = test_context(GetParam(), threads);
          Operands whole(type, 65, channels);
          const Operands x = whole;
          embedding_forward(context, whole.forward(true));
          embedding_backward(context, whole.dtable, whole.ids, whole.dout);
          std::vector<double> sum(static_cast<std::size_t>(65 * channels));
          std::int64_t first = 0;
          for (const std::int64_t rows : sizes) {
            Operands part = x;
            part.table = rows_of(x.table, first, rows);
            part.dtable = rows_of(x.dtable, first, rows);
            EmbeddingForward args = part.forward(true);
            args.first_row = first;
            args.vocabulary = kRows;
            embedding_forward(context, args);
            auto expected = part.reference_case(true);
            expected.first_row = first;
            expect_close(part.out.values(), reference::embedding_forward(expected),
                         tolerance_of(type), "out");
            const auto dtable =
                reference::embedding_backward(expected, part.dtable.values(), part.dout.values());
            embedding_backward(context, part.dtable, part.ids, part.dout, first, kRows);
            expect_close(part.dtable.values(), dtable, {1e-6, 1e-6}, "dtable");
            EXPECT_EQ(part.dtable.bits(), rows_of(whole.dtable, first, rows).bits());
            const auto out = part.out.values();
            for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += out[i];
            first += rows;
          }
          EXPECT_EQ(sum, whole.out.values());
        }
      }
    }
  }
}

TEST_P(Embedding, any_thread_count_gives_the_same_bits) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    std::string out, dtable;
    for (const int threads : {1, 2, 3, 7}) {
      Context context = test_context(GetParam(), threads);
      Operands x(type, 1000, 65);
      embedding_forward(context, x.forward(true));
      embedding_backward(context, x.dtable, x.ids, x.dout);
      if (threads == 1) {
        out = x.out.bits();
        dtable = x.dtable.bits();
      }
      EXPECT_EQ(x.out.bits(), out);
      EXPECT_EQ(x.dtable.bits(), dtable);
    }
  }
}

TEST_P(Embedding, rows_that_are_hit_often_or_once_have_the_bits_of_the_cpu) {
  constexpr std::int64_t kTokens = 300, kChannels = 264, kTableRows = 500;
  // Every second token has one id, others ids of their own or few of one.
  TestTensor ids(DType::kI32, {kTokens});
  for (std::int64_t t = 0; t < kTokens; ++t)
    ids.set(t, t % 2 == 0 ? 77 : t % 3 == 0 ? kTableRows - 1 - t : t * t % kTableRows);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const TestTensor dout = TestTensor::random(type, {kTokens, kChannels}, 3);
    const auto sums = [&](Context context) {
      TestTensor dtable = TestTensor::random(DType::kF32, {kTableRows, kChannels}, 4);
      embedding_backward(context, dtable, ids, dout);
      return dtable.bits();
    };
    EXPECT_TRUE(sums(test_context(GetParam())) ==
                sums(Context({DeviceKind::kCpu, 0}, 1, GetParam())));
    expect_same_bits([&] { return sums(test_context(GetParam())); });
  }
}

TEST_P(Embedding, operands_may_begin_apart_from_each_other) {
  Context context = test_context(GetParam());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Operands x(type, 5, 16), y = x;
    y.out = TestTensor(type, {5, 16}, 3);
    embedding_forward(context, x.forward(true));
    embedding_forward(context, y.forward(true));
    EXPECT_EQ(x.out.bits(), y.out.bits());
    y.dtable = TestTensor(DType::kF32, {kRows, 16}, 2);
    x.dtable = TestTensor(DType::kF32, {kRows, 16}, 0);
    embedding_backward(context, x.dtable, x.ids, x.dout);
    embedding_backward(context, y.dtable, y.ids, y.dout);
    EXPECT_EQ(x.dtable.bits(), y.dtable.bits());
  }
}

TEST_P(Embedding, an_id_outside_makes_its_row_nan_on_a_gpu_and_has_no_gradient) {
  Context context = test_context(GetParam());
  if (!context.on_gpu()) return;  // refused there
  Operands x(DType::kF32, 4, 8);
  const TestTensor before = x.dtable;
  x.ids = TestTensor::of(DType::kI32, {4}, {kRows, -1, 0, 1 << 30});
  embedding_forward(context, x.forward(true));
  embedding_backward(context, x.dtable, x.ids, x.dout);
  const auto out = x.out.values(), sums = x.dtable.values();
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(std::isnan(out[i]), i / 8 != 2) << i;
  for (std::size_t i = 0; i < sums.size(); ++i)
    EXPECT_EQ(sums[i] != before.values()[i], i < 8) << i;
  x.ids = TestTensor::of(DType::kI32, {4}, {0, 1, 2, 3});
  x.positions = TestTensor::of(DType::kI32, {4}, {0, kPositions, -1, 1});
  embedding_forward(context, x.forward(true));
  for (std::size_t i = 0; i < 32; ++i)
    EXPECT_EQ(std::isnan(x.out.values()[i]), i / 8 == 1 || i / 8 == 2) << i;
}

TEST_P(Embedding, an_id_outside_the_vocabulary_is_told_from_one_of_another_part) {
  Context context = test_context(GetParam());
  Operands x(DType::kF32, 4, 8);
  x.table = rows_of(x.table, 3, 4);
  x.dtable = rows_of(x.dtable, 3, 4);
  x.ids = TestTensor::of(DType::kI32, {4}, {2, 7, kRows, -1});
  const std::string before = x.dtable.bits();
  EmbeddingForward args = x.forward(false);
  args.first_row = 3;
  args.vocabulary = kRows;
  if (!context.on_gpu()) {
    expect_refused([&] { embedding_forward(context, args); },
                   "embedding_forward.ids[2]: expected 0 to 10, found 11");
    expect_refused([&] { embedding_backward(context, x.dtable, x.ids, x.dout, 3, kRows); },
                   "embedding_backward.ids[2]: expected 0 to 10, found 11");
    return;
  }
  embedding_forward(context, args);
  const auto out = x.out.values();
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(out[i], 0);
  for (std::size_t i = 16; i < 32; ++i) EXPECT_TRUE(std::isnan(out[i]));
  embedding_backward(context, x.dtable, x.ids, x.dout, 3, kRows);
  EXPECT_EQ(x.dtable.bits(), before);
}

TEST_P(Embedding, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  Operands x(DType::kF32, 5, 8);
  const auto refuse = [&](auto change, const std::string& message) {
    EmbeddingForward args = x.forward(true);
    change(args);
    expect_refused([&] { embedding_forward(context, args); }, message);
  };
  const TestTensor narrow(DType::kF32, {kRows, 7}), half(DType::kBF16, {kPositions, 8});
  TestTensor beyond = x.ids;
  beyond.set(4, kRows);
  TestTensor negative = x.positions;
  negative.set(0, -1);
  refuse([&](auto& a) { a.table_VC = narrow; },
         "embedding_forward.out: expected [5, 7] fp32, found [5, 8] fp32");
  refuse([&](auto& a) { a.position_table_PC = half; },
         "embedding_forward.position_table: expected [70, 8] fp32, found [70, 8] bf16");
  refuse([&](auto& a) { a.positions_T = {}; },
         "embedding_forward.positions: expected [5] int32, found nothing");
  const std::string beyond_vocabulary = "first_row: the table's rows must be among those";
  refuse([&](auto& a) { a.first_row = -1; }, beyond_vocabulary);
  refuse([&](auto& a) { a.first_row = 1; }, beyond_vocabulary);
  refuse([&](auto& a) { a.vocabulary = kRows - 1; }, beyond_vocabulary);
  expect_refused([&] { embedding_backward(context, x.dtable, x.ids, x.dout, 2, kRows + 1); },
                 beyond_vocabulary);
  expect_refused([&] { embedding_backward(context, x.dtable, x.ids, narrow); },
                 "embedding_backward.dout: expected [5, 8] fp32, found [11, 7] fp32");
  if (context.on_gpu()) return;  // what ids say stands in its memory
  refuse([&](auto& a) { a.ids_T = beyond; },
         "embedding_forward.ids[4]: expected 0 to 10, found 11");
  refuse([&](auto& a) { a.positions_T = negative; },
         "embedding_forward.positions[0]: expected 0 to 69, found -1");
  expect_refused([&] { embedding_backward(context, x.dtable, beyond, x.dout); },
                 "embedding_backward.ids[4]");
}

}  // namespace
}  // namespace trireme
