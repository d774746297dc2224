// fp8 products whose blocks share sums over k: the bits of products of ranges of k, added to the
// result one after the other.
#include "kernels/common/gpu_info.h"
#include "kernels/gemm/gemm_fp8_tiles.h"
#include "kernels/gemm/gemm_split.h"
#include "kernels/gemm_quantized_support.h"

namespace trireme {
namespace {

using namespace gemm_quantized_testing;

class GemmQuantizedSplit : public QuantizedGpuTest {};
TRIREME_FOR_ALL_ISAS(GemmQuantizedSplit);

constexpr std::int64_t kStep = 128, kTileRows = 256;

/// Steps of k of an operand whose k has no padding.
Operand steps_of(const Operand& of, std::int64_t first, std::int64_t steps) {
  const std::int64_t begin = first * kStep, block = of.columns.block_of(begin);
  Operand out(of.codes.dtype(), of.rows, of.columns.slice(begin, steps * kStep), 0);
  const auto copy = [](TestTensor& to, const TestTensor& from, std::int64_t column) {
    const std::vector<double> values = from.values();
    const std::int64_t width = to.shape()[1], all = from.shape()[1];
    for (std::int64_t i = 0; i < to.shape().count(); ++i)
      to.set(i, values[static_cast<std::size_t>(i / width * all + column + i % width)]);
  };
  copy(out.codes, of.codes, begin);
  copy(out.scales, of.scales, block);
  return out;
}

struct Product {
  Operand a, b;
  int multiprocessors;
  int offset;  ///< of c, as TestTensor's
  [[nodiscard]] Way way() const {
    return {.name = "shared sums", .multiprocessors = multiprocessors, .split = true};
  }
  [[nodiscard]] std::int64_t m() const { return a.rows.size(); }
  [[nodiscard]] std::int64_t n() const { return b.rows.size(); }
};

/// The elements of a tile of `c` become those of `from`.
void copy_tile(TestTensor& c, const TestTensor& from, std::int64_t row,
               const cuda::ColumnTile& columns) {
  const std::vector<double> values = from.values();
  const std::int64_t n = c.shape()[1], end = std::min(row + kTileRows, c.shape()[0]);
  for (; row < end; ++row)
    for (std::int64_t i = row * n + columns.begin; i < row * n + columns.end; ++i)
      c.set(i, values[static_cast<std::size_t>(i)]);
}

/// Each piece of each tile as a product of its own by a kernel that shares nothing.
TestTensor sums_of_pieces(Context& context, const Product& product, QuantizedGemm args,
                          const TestTensor& before) {
  const cuda::ColumnTiles columns(gemm_quantized_internal::gpu_args(context, args).b, false);
  const std::int64_t rows = ceil_div(product.m(), kTileRows);
  EXPECT_LE(rows, 8) << "tiles stand in columns";
  const cuda::SplitTiles split(rows * columns.count(), product.a.columns.size() / kStep,
                               product.multiprocessors);
  TestTensor sums = before;
  const bool adds = args.accumulate == Accumulate::kYes;
  for (int block = 0; block < split.blocks; ++block) {
    cuda::TilePiece piece{};
    for (int i = 0; split.find(block, i, piece); ++i) {
      const Operand a = steps_of(product.a, piece.first, piece.steps),
                    b = steps_of(product.b, piece.first, piece.steps);
      TestTensor c = sums;
      args.c_MN = c;
      args.a = a.view(), args.b = b.view();
      args.accumulate = adds || piece.before > 0 ? Accumulate::kYes : Accumulate::kNo;
      multiply(context, args, kOwnWays[0]);
      copy_tile(sums, c, piece.tile % rows * kTileRows,
                columns.at(static_cast<int>(piece.tile / rows)));
    }
  }
  return sums;
}

void expect_sums_of_pieces(Context& context, const Product& product) {
  const Sums expected = sums_of(product.a, product.b);
  const double bits = bits_of_sums(product.a.columns.size());
  const Shape shape{product.m(), product.n()};
  const TestTensor before = TestTensor::random(DType::kF32, shape, 6, 1, product.offset);
  for (const Accumulate accumulate : {Accumulate::kNo, Accumulate::kYes}) {
    TestTensor c = before;
    const QuantizedGemm args{
        .c_MN = c, .a = product.a.view(), .b = product.b.view(), .accumulate = accumulate};
    ASSERT_TRUE(serves(context, args, product.way()));
    multiply(context, args, product.way());
    const bool adds = accumulate == Accumulate::kYes;
    const std::vector<double> zero(expected.sums.size());
    expect_product(c, expected, adds ? before.values() : zero, bits, adds ? "added" : "stored");
    EXPECT_EQ(c.bits(), sums_of_pieces(context, product, args, before).bits());
  }
}

/// Of a gradient's products.
constexpr std::pair<DType, DType> kFormats[] = {{kE4M3, kE4M3}, {kE5M2, kE4M3}, {kE4M3, kE5M2}};

/// Four tiles for three blocks; what leaves by TMA, and what is cut at the result's ends or stands
/// nowhere that TMA can write.
TEST_P(GemmQuantizedSplit, sums_are_those_of_their_pieces_in_order_with_scales_of_each_column) {
  Context context = test_context(GetParam());
  const ScaleDim k(3 * kStep, 128), rows = dim_of(1, {{200, 0}, {100, 50}});
  for (const auto& [of_a, of_b] : kFormats)
    expect_sums_of_pieces(context, {{of_a, rows, k, 1}, {of_b, {156, 1, 3}, k, 2}, 3, 0});
  expect_sums_of_pieces(context, {{kE4M3, rows, k, 1}, {kE5M2, {155, 1}, k, 2}, 3, 1});
}

/// k in parts, each with a scale of its own.
TEST_P(GemmQuantizedSplit, sums_are_those_of_their_pieces_in_order_with_a_scale_of_a_part) {
  Context context = test_context(GetParam());
  const ScaleDim k = dim_of(0, {{2 * kStep, 0}, {3 * kStep, 0}}),
                 rows = dim_of(0, {{144, 0}, {156, 9}});
  for (const auto& [of_a, of_b] : kFormats)
    expect_sums_of_pieces(context, {{of_a, rows, k, 1}, {of_b, {160, 0}, k, 2}, 3, 0});
  expect_sums_of_pieces(context, {{kE4M3, rows, k, 1}, {kE4M3, {131, 0}, k, 2}, 3, 1});
}

/// Between whole tiles and ranges: ten tiles for four blocks, of which each takes one first.
TEST_P(GemmQuantizedSplit, whole_tiles_come_before_shared_ones) {
  Context context = test_context(GetParam());
  const ScaleDim k(2 * kStep, 128);
  expect_sums_of_pieces(context, {{kE4M3, {40, 1}, k, 1}, {kE4M3, {1240, 1}, k, 2}, 4, 0});
}

/// Ranges shorter than a tile: three blocks add to it, the second in the middle.
TEST_P(GemmQuantizedSplit, several_blocks_share_one_tile) {
  Context context = test_context(GetParam());
  const ScaleDim k(48 * kStep, 128);
  const Product product{{kE5M2, {40, 1}, k, 1}, {kE4M3, {24, 1}, k, 2}, 5, 0};
  expect_sums_of_pieces(context, product);
}

TEST_P(GemmQuantizedSplit, gives_the_same_bits_in_every_order) {
  Context context = test_context(GetParam());
  const ScaleDim k(3 * kStep, 128);
  for (const int offset : {0, 1}) {
    const Product product{{kE4M3, {300, 1}, k, 1}, {kE4M3, {156, 1}, k, 2}, 3, offset};
    expect_same_bits([&] {
      TestTensor c(DType::kF32, {300, 156}, offset);
      multiply(context, {.c_MN = c, .a = product.a.view(), .b = product.b.view()}, product.way());
      return c.bits();
    });
  }
}

TEST_P(GemmQuantizedSplit, serves_gradients_whose_tiles_fill_no_turns) {
  Context context = test_context(GetParam());
  const ScaleDim k(3 * kStep, 128);
  const Operand a(kE4M3, {300, 1}, k, 1), b(kE4M3, {156, 1}, k, 2), weight(kE4M3, {156, 128}, k, 2);
  const TestTensor bias(DType::kBF16, {156});
  TestTensor c(DType::kF32, {300, 156}), rounded(DType::kBF16, {300, 156});
  QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view()};
  const auto served = [&](int multiprocessors) {
    return serves(context, args, {"shared sums", multiprocessors, false, false, true});
  };
  EXPECT_TRUE(served(3));
  EXPECT_FALSE(served(2)) << "two whole turns";
  EXPECT_FALSE(served(132)) << "fewer steps than are worth sharing";
  args.bias_N = bias;
  EXPECT_FALSE(served(3)) << "each piece would add it";
  args.bias_N = {};
  args.c_MN = rounded, args.b = weight.view();
  EXPECT_FALSE(served(3)) << "each piece would be rounded";
}

/// By rule nothing is shared; a choice that was measured is obeyed.
TEST_P(GemmQuantizedSplit, serves_where_it_was_chosen) {
  Context context = test_context(GetParam());
  if (!runs_sm90a(gpu::info(context.device().index))) GTEST_SKIP() << "kernels for Hopper";
  const ScaleDim k(40 * kStep, 128);
  const Operand a(kE4M3, {16, 1}, k, 1), b(kE4M3, {16, 1}, k, 2);
  TestTensor c(DType::kF32, {16, 16});
  const QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view()};
  KernelChoices choices;
  context.set_kernel_choices(&choices);
  EXPECT_EQ(gemm_quantized_internal::choose_kernel(context, args), gpu_kernels().gemm_fp8_sm90);
  const auto raw = gemm_quantized_internal::gpu_args(context, args);
  choices.set_measuring(true);
  gemm_quantized_internal::choose_kernel(context, args);  // c is what was measured last
  const ProductChoice* const measured = choices.find(gemm_quantized_internal::key_of(raw));
  ASSERT_NE(measured, nullptr);
  const auto time = [&](ProductKernel kernel) {
    return measured->microseconds[static_cast<std::size_t>(kernel)];
  };
  EXPECT_GT(time(ProductKernel::kHopper), 0);
  EXPECT_GT(time(ProductKernel::kSplit), 0);
  KernelChoices split;
  split.add(gemm_quantized_internal::key_of(raw), {ProductKernel::kSplit, {}});
  context.set_kernel_choices(&split);
  EXPECT_EQ(gemm_quantized_internal::choose_kernel(context, args),
            gpu_kernels().gemm_fp8_split_sm90);
}

}  // namespace
}  // namespace trireme
