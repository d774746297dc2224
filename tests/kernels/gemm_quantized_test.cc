#include "kernels/gemm/gemm_quantized.h"

#include <algorithm>
#include <cmath>

#include "kernels/gemm_support.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize_reference.h"

namespace trireme {
namespace {

using enum GemmEpilogue;

class GemmQuantizedOp : public OpTest {
  void SetUp() override {
    if (test_device::device().kind != DeviceKind::kCpu) GTEST_SKIP() << "no product for GPUs";
  }
};
TRIREME_FOR_ALL_ISAS(GemmQuantizedOp);

/// Random values of an operand [rows, columns], quantised, padded along the columns.
struct Operand {
  ScaleDim rows, columns;
  TestTensor codes, scales;

  Operand(Context& context, DType format, const ScaleDim& rows_, const ScaleDim& columns_,
          std::uint64_t seed)
      : rows(rows_),
        columns(columns_),
        codes(format, codes_shape(rows, columns, true)),
        scales(DType::kF32, scales_shape(rows, columns)) {
    const TestTensor x = TestTensor::random(DType::kBF16, {rows.size(), columns.size()}, seed);
    Quantize args;
    args.out = view();
    args.x = x;
    quantize(context, args);
  }
  QuantizedView view() { return {codes, scales, rows, columns, true}; }

  /// What the codes stand for, by the definition.
  [[nodiscard]] std::vector<double> values() const {
    const std::vector<double> code = codes.values(), scale = scales.values();
    std::vector<double> x;
    for (std::int64_t r = 0; r < rows.size(); ++r) {
      for (std::int64_t c = 0; c < columns.size(); ++c) {
        const reference::Place at = reference::place_of(columns, c);
        const std::int64_t block = reference::place_of(rows, r).block * columns.blocks() + at.block;
        const double of = code[static_cast<std::size_t>(r * columns.padded_size() + at.padded)];
        x.push_back(reference::value_of_code(static_cast<std::uint32_t>(of), codes.dtype()) *
                    scale[static_cast<std::size_t>(block)]);
      }
    }
    return x;
  }
};

struct Blocks {
  std::int64_t a_rows, b_rows, k;
};
/// One scale, DeepSeek's forward, and its weight gradient.
constexpr Blocks kRecipes[] = {{0, 0, 0}, {1, 128, 128}, {1, 1, 128}};

struct Formats {
  DType a = DType::kF8E4M3, b = DType::kF8E4M3;
};

struct Product {
  reference::GemmCase sizes;
  Operand a, b;
  QuantizedGemm args;

  Product(Context& context, std::int64_t m, std::int64_t n, ScaleDim k, const Blocks& blocks,
          const Formats& formats = {})
      : sizes{m, n, k.size(), false, true},
        a(context, formats.a, ScaleDim(m, blocks.a_rows), with(k, blocks.k), 1),
        b(context, formats.b, ScaleDim(n, blocks.b_rows), with(k, blocks.k), 2) {
    args.a = a.view();
    args.b = b.view();
  }
  static ScaleDim with(ScaleDim k, std::int64_t block) {
    k.block = block;
    return k;
  }
  [[nodiscard]] std::vector<double> expected(const std::vector<double>& start) const {
    return reference::gemm(sizes, start, a.values(), b.values());
  }
};

ScaleDim parts_of(std::initializer_list<ScaleDim::Part> parts) {
  ScaleDim dim;
  for (const ScaleDim::Part& part : parts) dim.add(part);
  return dim;
}

TEST_P(GemmQuantizedOp, product_equals_the_sums_of_what_the_codes_stand_for) {
  for (const int threads : {1, 2}) {
    Context context = test_context(GetParam(), threads);
    for (const Blocks& blocks : kRecipes) {
      for (const auto& [m, n] : {std::pair<int, int>{1, 1}, {3, 17}, {130, 65}}) {
        for (const ScaleDim& k :
             {ScaleDim(1, 0), ScaleDim(200, 0, 60), parts_of({{70, 100}, {0, 7}, {129, 0}})}) {
          const Product x(context, m, n, k, blocks);
          const TestTensor before = TestTensor::random(DType::kF32, {m, n}, 4),
                           bias = TestTensor::random(DType::kBF16, {n}, 3);
          QuantizedGemm args = x.args;
          TestTensor wide(DType::kF32, {m, n}), narrow(DType::kBF16, {m, n}), added = before;
          args.c_MN = wide;
          gemm_quantized(context, args);
          const std::vector<double> none(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
          expect_close(wide.values(), x.expected(none), gemm_tolerance(DType::kF32), "c");
          args.c_MN = added;
          args.accumulate = Accumulate::kYes;
          gemm_quantized(context, args);
          expect_close(added.values(), x.expected(before.values()), gemm_tolerance(DType::kF32),
                       "c added to");
          args = x.args;
          args.c_MN = narrow;
          args.bias_N = bias;
          gemm_quantized(context, args);
          std::vector<double> rows;
          for (int i = 0; i < m; ++i) {
            const std::vector<double> row = bias.values();
            rows.insert(rows.end(), row.begin(), row.end());
          }
          expect_close(narrow.values(), x.expected(rows), gemm_tolerance(DType::kBF16),
                       "c with a bias");
        }
      }
    }
  }
}

TEST_P(GemmQuantizedOp, either_operand_may_be_e5m2) {
  Context context = test_context(GetParam());
  for (const bool first : {true, false}) {
    const DType a = first ? DType::kF8E5M2 : DType::kF8E4M3,
                b = first ? DType::kF8E4M3 : DType::kF8E5M2;
    Product x(context, 20, 30, ScaleDim(150, 0), kRecipes[0], {a, b});
    TestTensor c(DType::kF32, {20, 30});
    x.args.c_MN = c;
    gemm_quantized(context, x.args);
    expect_close(c.values(), x.expected(std::vector<double>(600)), gemm_tolerance(DType::kF32),
                 "c");
  }
}

/// More than one of the blocks in which a CPU decodes them, of both operands and K.
TEST_P(GemmQuantizedOp, large_products_are_made_of_blocks) {
  Context context = test_context(GetParam(), 2);
  if (context.on_gpu()) return;
  for (const auto& [m, n, k] : {std::array<int, 3>{520, 1030, 130}, {33, 40, 4300}}) {
    Product x(context, m, n, ScaleDim(k, 0, 64), kRecipes[1]);
    TestTensor c(DType::kF32, {m, n});
    x.args.c_MN = c;
    gemm_quantized(context, x.args);
    expect_close(c.values(), x.expected(std::vector<double>(static_cast<std::size_t>(m * n))),
                 {1e-6, 5e-6}, "c");
  }
}

/// y rounded to bf16, then the op that the epilogue stands for: the same as of a bf16 product whose
/// operands have the decoded values.
TEST_P(GemmQuantizedOp, epilogues_work_on_the_rounded_product) {
  Context context = test_context(GetParam(), 2);
  constexpr std::int64_t kM = 21, kN = 34;
  for (const GemmEpilogue epilogue :
       {kAddResidual, kGelu, kGeluBackward, kSwiglu, kSwigluBackward, kGeglu, kGegluBackward}) {
    Product x(context, kM, kN, ScaleDim(140, 0), kRecipes[1]);
    const std::int64_t columns = is_glu(epilogue)            ? kN / 2
                                 : is_glu_backward(epilogue) ? 2 * kN
                                                             : kN;
    const TestTensor operand =
        TestTensor::random(DType::kBF16, {kM, is_glu_backward(epilogue) ? 2 * kN : kN}, 5, 2);
    TestTensor c(DType::kBF16, {kM, columns}), saved(DType::kBF16, {kM, kN});
    TestTensor y(DType::kBF16, {kM, kN});
    QuantizedGemm args = x.args;
    args.c_MN = y;
    gemm_quantized(context, args);
    args.c_MN = c;
    args.epilogue = epilogue;
    if (epilogue != kGelu && !is_glu(epilogue)) args.operand = operand;
    if (epilogue != kAddResidual) args.saved = saved;
    const std::int64_t parts = is_glu_backward(epilogue) ? 2 : 1;
    TestTensor amax(DType::kI32, {parts}), most(DType::kI32, {1, parts});
    args.amax_P = amax;
    gemm_quantized(context, args);
    ScaleDim parts_of_c;
    for (std::int64_t part = 0; part < parts; ++part) parts_of_c.add({columns / parts});
    absolute_max(context, most, c, ScaleDim(kM, 0), parts_of_c);
    EXPECT_EQ(amax.bits(), most.bits());

    // The identity times y is y.
    TestTensor identity(DType::kBF16, {kM, kM});
    for (std::int64_t i = 0; i < kM; ++i) identity.set(i * kM + i, 1);
    TestTensor like_c(DType::kBF16, {kM, columns}), like_saved(DType::kBF16, {kM, kN});
    Gemm like;
    like.c_MN = like_c;
    like.a = identity;
    like.b = y;
    like.epilogue = epilogue;
    like.operand = args.operand;
    if (args.saved.given()) like.saved = like_saved;
    gemm(context, like);
    const int number = static_cast<int>(epilogue);
    EXPECT_EQ(c.bits(), like_c.bits()) << number;
    EXPECT_EQ(saved.bits(), like_saved.bits()) << number;
  }
}

TEST_P(GemmQuantizedOp, a_block_that_is_not_finite_shows_in_the_product) {
  Context context = test_context(GetParam());
  Product x(context, 4, 5, ScaleDim(200, 0), kRecipes[1]);
  x.a.scales.set(1 * 2 + 1, std::nan(""));  // of row 1
  TestTensor c(DType::kF32, {4, 5});
  x.args.c_MN = c;
  gemm_quantized(context, x.args);
  const std::vector<double> found = c.values();
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(found[i]), i / 5 == 1) << i;
}

TEST_P(GemmQuantizedOp, what_follows_is_called_once_for_all_rows_and_sees_them) {
  Context context = test_context(GetParam(), 2);
  Product x(context, 150, 20, ScaleDim(128, 0), kRecipes[0]);
  TestTensor c(DType::kBF16, {150, 20}), seen(DType::kBF16, {150, 20});
  x.args.c_MN = c;
  int calls = 0;
  const auto then = [&](Context&, std::int64_t first, std::int64_t count) {
    ++calls;
    EXPECT_EQ(first, 0);
    EXPECT_EQ(count, 150);
    seen = c;
  };
  x.args.then = then;
  gemm_quantized(context, x.args);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(seen.bits(), c.bits());
}

TEST_P(GemmQuantizedOp, without_terms_a_sum_is_0_or_the_bias_or_what_was_there) {
  Context context = test_context(GetParam());
  Product x(context, 3, 4, ScaleDim(0, 0), kRecipes[1]);
  const TestTensor bias = TestTensor::of(DType::kBF16, {4}, {1, 2, 3, 4});
  TestTensor c = TestTensor::random(DType::kF32, {3, 4}, 1);
  const std::string before = c.bits();
  x.args.c_MN = c;
  x.args.accumulate = Accumulate::kYes;
  gemm_quantized(context, x.args);
  EXPECT_EQ(c.bits(), before);
  x.args.accumulate = Accumulate::kNo;
  gemm_quantized(context, x.args);
  EXPECT_EQ(c.values(), std::vector<double>(12));
  x.args.bias_N = bias;
  gemm_quantized(context, x.args);
  EXPECT_EQ(c.values(), (std::vector<double>{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}));
}

TEST_P(GemmQuantizedOp, rows_alone_have_the_bits_that_they_have_among_others_where_asked_for) {
  Context context = test_context(GetParam(), 2);
  if (context.on_gpu()) return;
  context.set_batch_invariant(true);
  Product x(context, 200, 70, ScaleDim(300, 0), kRecipes[1]);
  TestTensor all(DType::kF32, {200, 70}), one(DType::kF32, {1, 70});
  x.args.c_MN = all;
  gemm_quantized(context, x.args);
  x.args.a.rows = ScaleDim(1, 1);
  x.args.a.codes = x.args.a.codes.rows(9, 1);
  x.args.a.scales = x.args.a.scales.rows(9, 1);
  x.args.c_MN = one;
  gemm_quantized(context, x.args);
  EXPECT_EQ(one.bits(), all.bits().substr(9 * 70 * 4, 70 * 4));
}

TEST_P(GemmQuantizedOp, wrong_operands_are_refused) {
  Context context = test_context(GetParam());
  Product x(context, 3, 4, ScaleDim(200, 0, 60), kRecipes[1]);
  TestTensor c(DType::kBF16, {3, 4}), wide(DType::kF32, {3, 4});
  QuantizedGemm args = x.args;
  args.c_MN = c;
  args.accumulate = Accumulate::kYes;
  expect_refused([&] { gemm_quantized(context, args); }, "a bf16 result accumulates nothing");
  args.accumulate = Accumulate::kNo;
  args.epilogue = kGelu;
  args.c_MN = wide;
  expect_refused([&] { gemm_quantized(context, args); }, "gemm_quantized.c: expected [3, 4] bf16");
  args = x.args;
  args.c_MN = c;
  args.b.columns = ScaleDim(200, 128, 188);
  expect_refused([&] { gemm_quantized(context, args); }, "other parts along K");
  args = x.args;
  args.c_MN = c;
  args.a.padded = false;
  args.a.codes.shape = {3, 200};
  expect_refused([&] { gemm_quantized(context, args); }, "gemm_quantized.a: is not padded along K");
  const Product e5m2(context, 3, 4, ScaleDim(128, 0), kRecipes[0],
                     {DType::kF8E5M2, DType::kF8E5M2});
  args = e5m2.args;
  args.c_MN = c;
  expect_refused([&] { gemm_quantized(context, args); }, "is e5m2 as a is");
}

}  // namespace
}  // namespace trireme
