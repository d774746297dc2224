#include "kernels/projection_norm/projection_norm.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/norm_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class ProjectionNorm : public OpTest {};
TRIREME_FOR_ALL_ISAS(ProjectionNorm);

/// Rows of `ranks` parts of heads, which stand beside other columns.
struct Operands {
  std::int64_t tokens, heads, head_dim, before;
  int ranks;
  TestTensor in, out, dout, din, weight, squares, dots, dweight;

  Operands(DType type, std::int64_t tokens_, std::int64_t heads_, std::int64_t head_dim_,
           std::int64_t before_ = 3, int ranks_ = 1)
      : tokens(tokens_),
        heads(heads_),
        head_dim(head_dim_),
        before(before_),
        ranks(ranks_),
        in(TestTensor::random(type, row(), 1)),
        out(type, row()),
        dout(TestTensor::random(type, row(), 2)),
        din(type, row()),
        weight(TestTensor::random(type, {width()}, 3)),
        squares(DType::kF32, {tokens}),
        dots(DType::kF32, {tokens}),
        dweight(TestTensor::random(DType::kF32, {width()}, 4)) {}
  [[nodiscard]] std::int64_t width() const { return heads * head_dim; }
  [[nodiscard]] Shape row() const { return {tokens, 2 * before + width()}; }
  /// Of a rank: its share of the heads.
  template <class View>
  auto part(const View& x, int rank) const {
    const std::int64_t of_rank = heads / ranks;
    return heads_of(x, before + rank * of_rank * head_dim, of_rank, head_dim);
  }
  /// The sum over ranks.
  void sum_dots(Context& context, TestTensor& sum, const TestTensor& a, const TestTensor& b) {
    std::vector<double> total(static_cast<std::size_t>(tokens));
    for (int rank = 0; rank < ranks; ++rank) {
      head_dots(context, sum, part(a.view(), rank), part(b.view(), rank));
      const std::vector<double> mine = sum.values();
      for (std::size_t t = 0; t < total.size(); ++t) total[t] += mine[t];
    }
    for (std::size_t t = 0; t < total.size(); ++t) sum.set(static_cast<std::int64_t>(t), total[t]);
  }
  ProjectionNormForward forward(int rank = 0) {
    const std::int64_t of_rank = width() / ranks;
    ProjectionNormForward args;
    args.out = part(out.view(), rank);
    args.in = part(std::as_const(in).view(), rank);
    args.squares_T = squares;
    args.weight_X = weight.view().rows(rank * of_rank, of_rank);
    args.columns = width();
    args.eps = 1e-3;
    return args;
  }
  ProjectionNormBackward backward(int rank = 0) {
    const std::int64_t of_rank = width() / ranks;
    ProjectionNormBackward args;
    args.din = part(din.view(), rank);
    args.dout = part(std::as_const(dout).view(), rank);
    args.in = part(std::as_const(in).view(), rank);
    args.squares_T = squares;
    args.dots_T = dots;
    args.weight_X = weight.view().rows(rank * of_rank, of_rank);
    args.dweight_X = dweight.view().rows(rank * of_rank, of_rank);
    args.columns = width();
    args.eps = 1e-3;
    return args;
  }
  void run(Context& context) {
    sum_dots(context, squares, in, in);
    for (int rank = 0; rank < ranks; ++rank) projection_norm_forward(context, forward(rank));
    sum_dots(context, dots, dout, out);
    for (int rank = 0; rank < ranks; ++rank) projection_norm_backward(context, backward(rank));
  }
  [[nodiscard]] std::vector<double> dense(const TestTensor& x) const {
    const std::vector<double> all = x.values();
    std::vector<double> columns;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto begin = all.begin() + t * x.shape()[1] + before;
      columns.insert(columns.end(), begin, begin + width());
    }
    return columns;
  }
};

void expect_reference(Context& context, Operands& x) {
  const DType type = x.in.dtype();
  const bool narrow = type == DType::kBF16;
  const reference::NormCase c{NormOp::kRms, 1e-3, x.dense(x.in), x.weight.values(), {}};
  const reference::NormGradients gradients = reference::norm_backward(c, x.dense(x.dout));
  std::vector<double> dweight = x.dweight.values();
  for (std::size_t i = 0; i < dweight.size(); ++i) dweight[i] += gradients.dweight[i];
  x.run(context);
  expect_close(x.dense(x.out), reference::norm_forward(c).y, tolerance_of(type), "out");
  // The dot with what was rounded is off by as much.
  expect_close(x.dense(x.din), gradients.ds,
               narrow ? Tolerance{1.02 / 256, 3e-3} : Tolerance{3e-6, 3e-6}, "din");
  expect_close(x.dweight.values(), dweight, {3e-6, 4e-6}, "dweight");
}

TEST_P(ProjectionNorm, both_passes_equal_the_norm_of_whole_rows_for_odd_sizes_and_any_threads) {
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t head_dim : {2, 6, 24, 64}) {
        for (const std::int64_t tokens : {1, 3, 65}) {
          Operands x(type, tokens, 4, head_dim);
          expect_reference(context, x);
        }
      }
    }
  }
}

TEST_P(ProjectionNorm, wide_aligned_rows_of_many_tokens_equal_the_reference) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Operands few(type, 3, 32, 128, 8), many(type, 700, 3, 40, 16);
    expect_reference(context, few);
    expect_reference(context, many);
  }
}

TEST_P(ProjectionNorm, ranks_with_a_share_of_the_heads_each_norm_the_whole_row) {
  Context context = test_context(GetParam());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int ranks : {2, 4}) {
      Operands x(type, 17, 8, 16, 8, ranks);
      expect_reference(context, x);
    }
  }
}

TEST_P(ProjectionNorm, heads_that_ranks_hold_twice_count_twice_in_sums_and_columns) {
  Context context = test_context(GetParam());
  Operands once(DType::kF32, 5, 2, 16);
  once.run(context);
  // Two ranks with the same heads, whose gradients are parts: together what one has.
  Operands x = once;
  x.dweight = TestTensor(DType::kF32, {x.width()});
  for (std::int64_t t = 0; t < x.tokens; ++t) {
    x.squares.set(t, 2 * once.squares.values()[static_cast<std::size_t>(t)]);
  }
  std::vector<double> din(once.dense(once.din).size());
  for (const double share : {0.25, 0.75}) {
    const std::vector<double> whole = once.dout.values();
    for (std::size_t i = 0; i < whole.size(); ++i)
      x.dout.set(static_cast<std::int64_t>(i), share * whole[i]);
    ProjectionNormBackward args = x.backward();
    args.dots_T = once.dots;
    args.columns = 2 * x.width();
    projection_norm_backward(context, args);
    const std::vector<double> mine = x.dense(x.din);
    for (std::size_t i = 0; i < din.size(); ++i) din[i] += mine[i];
  }
  expect_close(din, once.dense(once.din), {1e-5, 1e-6}, "din of both");
}

TEST_P(ProjectionNorm, two_runs_and_every_order_of_threads_give_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  for (const std::int64_t before : {3, 8}) {
    expect_same_bits([&] {
      Operands x(DType::kBF16, 70, 5, 64, before);
      x.run(context);
      return x.squares.bits() + x.out.bits() + x.din.bits() + x.dweight.bits();
    });
  }
}

TEST_P(ProjectionNorm, the_gradient_may_replace_its_input_and_sums_may_be_left_out) {
  Context context = test_context(GetParam());
  Operands x(DType::kBF16, 9, 3, 24);
  x.run(context);
  ProjectionNormBackward args = x.backward();
  args.din = x.part(x.dout.view(), 0);
  args.dweight_X = {};
  projection_norm_backward(context, args);
  EXPECT_EQ(x.dense(x.dout), x.dense(x.din));
}

TEST_P(ProjectionNorm, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  Operands x(DType::kF32, 2, 3, 4);
  ProjectionNormForward args = x.forward();
  projection_norm_forward(context, args);
  ProjectionNormForward narrow = args;
  narrow.columns = 11;
  expect_refused([&] { projection_norm_forward(context, narrow); },
                 "projection_norm_forward.columns: are fewer than this rank's");
  ProjectionNormForward same = args;
  same.out = x.part(x.in.view(), 0);
  expect_refused([&] { projection_norm_forward(context, same); },
                 "projection_norm_forward.out: may not be in");
  args.weight_X = x.squares;
  expect_refused([&] { projection_norm_forward(context, args); },
                 "projection_norm_forward.weight: expected [12] fp32, found [2] fp32");
  expect_refused([&] { head_dots(context, x.weight, args.in, args.in); },
                 "head_dots.dots: expected [2] fp32");
}

}  // namespace
}  // namespace trireme
