// Products of a batch-invariant context: right, and a row as it is alone.

#include <array>
#include <functional>

#include "kernels/gemm_support.h"

namespace trireme {
namespace {

class GemmRows : public OpTest {};
TRIREME_FOR_ALL_ISAS(GemmRows);

Context invariant_context(Isa isa, int threads) {
  Context context = test_context(isa, threads);
  context.set_batch_invariant(true);
  return context;
}

using Sizes = std::array<std::int64_t, 3>;

TEST_P(GemmRows, equal_the_reference_with_b_either_way) {
  for (const int threads : {1, 3}) {
    Context context = invariant_context(GetParam(), threads);
    for (const auto& [type, c_type] : {std::pair{DType::kF32, DType::kF32},
                                       {DType::kBF16, DType::kF32},
                                       {DType::kBF16, DType::kBF16}}) {
      for (const auto& [m, n, k] :
           {Sizes{1, 1, 1}, {2, 7, 5}, {5, 130, 33}, {6, 200, 64}, {13, 75, 257}, {1, 65, 0}}) {
        for (const bool transpose : {false, true}) {
          SCOPED_TRACE(fmt::format("[{}, {}] {} {}", m, n, k, transpose));
          const GemmOperands x({m, n, k, false, transpose}, type, c_type);
          Gemm args = x.args;
          TestTensor c = x.before;
          args.c_MN = c;
          gemm(context, args);
          expect_close(c.values(), x.expected(std::vector<double>(static_cast<std::size_t>(m * n))),
                       gemm_tolerance(c_type), "product");
          args.bias_N = x.bias;
          gemm(context, args);
          expect_close(c.values(), x.expected(x.bias_rows()), gemm_tolerance(c_type), "with bias");
        }
      }
    }
  }
}

TEST_P(GemmRows, have_the_bits_that_they_have_alone) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const bool transpose : {false, true}) {
      constexpr std::int64_t kM = 29, kN = 131, kK = 517;
      const GemmOperands x({kM, kN, kK, false, transpose}, type, type);
      const auto rows_from = [&](std::int64_t first, std::int64_t count, int threads) {
        Context context = invariant_context(GetParam(), threads);
        TestTensor c(type, {count, kN});
        Gemm args = x.args;
        args.a = args.a.rows(first, count);
        args.bias_N = x.bias;
        args.c_MN = c;
        gemm(context, args);
        return c.bits();
      };
      const std::string all = rows_from(0, kM, 1);
      EXPECT_EQ(rows_from(0, kM, 3), all);
      const std::size_t row = all.size() / kM;
      for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                         {3, 1},
                                         {28, 1},
                                         {5, 2},
                                         {7, 6},
                                         {9, 17}}) {
        EXPECT_EQ(rows_from(first, count, 2), all.substr(static_cast<std::size_t>(first) * row,
                                                         static_cast<std::size_t>(count) * row))
            << first << "+" << count << " of " << name_of(type);
      }
    }
  }
}

TEST_P(GemmRows, go_on_to_what_follows_the_product) {
  Context context = invariant_context(GetParam(), 2);
  const TestTensor a = TestTensor::random(DType::kF32, {3, 40}, 1),
                   b = TestTensor::random(DType::kF32, {24, 40}, 2);
  TestTensor c(DType::kF32, {3, 12}), saved(DType::kF32, {3, 24});
  std::int64_t rows = 0;
  const auto count_rows = [&](Context&, std::int64_t first, std::int64_t count) {
    EXPECT_EQ(first, rows);
    rows += count;
  };
  Gemm args;
  args.c_MN = c;
  args.a = a;
  args.b = b;
  args.transpose_b = Transpose::kYes;
  args.epilogue = GemmEpilogue::kSwiglu;
  args.saved = saved;
  args.then = count_rows;
  gemm(context, args);
  EXPECT_EQ(rows, 3);
  Context other = test_context(GetParam(), 2);
  TestTensor expected(DType::kF32, {3, 12});
  args.c_MN = expected;
  args.then = {};
  gemm(other, args);
  expect_close(c.values(), expected.values(), {1e-5, 1e-5}, "swiglu");
}

TEST_P(GemmRows, refuse_columns_and_sums) {
  Context context = invariant_context(GetParam(), 1);
  const TestTensor a = TestTensor::random(DType::kF32, {4, 4}, 1);
  TestTensor c(DType::kF32, {4, 4});
  Gemm args;
  args.c_MN = c;
  args.a = args.b = a;
  args.transpose_a = Transpose::kYes;
  expect_refused([&] { gemm(context, args); }, "batch-invariant");
  args.transpose_a = Transpose::kNo;
  args.accumulate = Accumulate::kYes;
  expect_refused([&] { gemm(context, args); }, "batch-invariant");
}

}  // namespace
}  // namespace trireme
