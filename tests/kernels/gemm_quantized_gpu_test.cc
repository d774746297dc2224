// Products of fp8 by the kernels of a GPU, beside sums in double of what codes and scales stand
// for.
#include <utility>

#include "kernels/gelu/gelu.h"
#include "kernels/gemm/gemm_fp8_tiles.h"
#include "kernels/gemm_quantized_support.h"
#include "kernels/glu/glu.h"
#include "kernels/quantize/quantize.h"

namespace trireme {
namespace {

using namespace gemm_quantized_testing;

class GemmQuantizedGpu : public QuantizedGpuTest {};
TRIREME_FOR_ALL_ISAS(GemmQuantizedGpu);
/// Exponentials have other bits in other executors (tests/ptx_host/compare_bits.py).
class GemmEpilogueQuantizedGpu : public QuantizedGpuTest {};
TRIREME_FOR_ALL_ISAS(GemmEpilogueQuantizedGpu);

/// Stored in bf16 with a bias and, where the recipe asks for that, in f32 and added to. Tiles of
/// every size give the same bits.
void expect_stored(Context& context, const Operand& a, const Operand& b, bool gradients) {
  const std::int64_t m = a.rows.size(), n = b.rows.size();
  const Sums expected = sums_of(a, b);
  const double bits = bits_of_sums(a.columns.padded_size());
  const std::vector<double> zero(expected.sums.size());
  const TestTensor bias = TestTensor::random(DType::kBF16, {n}, 5);
  std::string of_large;
  const auto expect_bits = [&](const Way& way, const std::string& bits_of_c) {
    if (way.library) return;
    if (of_large.empty()) of_large = bits_of_c;
    EXPECT_EQ(bits_of_c, of_large) << way.name;
  };
  for (const Way& way : kWays) {
    if (gradients) {
      const TestTensor before = TestTensor::random(DType::kF32, {m, n}, 6);
      TestTensor c = before;
      QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view(), .accumulate = Accumulate::kYes};
      if (!serves(context, args, way)) continue;
      multiply(context, args, way);
      expect_product(c, expected, before.values(), bits, std::string(way.name) + ", added");
      expect_bits(way, c.bits());
      args.accumulate = Accumulate::kNo;
      multiply(context, args, way);
      expect_product(c, expected, zero, bits, std::string(way.name) + ", f32");
    } else {
      TestTensor c(DType::kBF16, {m, n});
      const QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view(), .bias_N = bias};
      if (!serves(context, args, way)) continue;
      multiply(context, args, way);
      expect_product(c, expected, repeated(bias, m), bits, std::string(way.name) + ", bias");
      expect_bits(way, c.bits());
    }
  }
}

constexpr std::int64_t kRows = 300;  // beyond half a large tile of a cluster
/// Of gradients' products.
constexpr std::pair<DType, DType> kFormats[] = {{kE4M3, kE4M3}, {kE5M2, kE4M3}, {kE4M3, kE5M2}};

TEST_P(GemmQuantizedGpu, blocks_of_rows_and_of_weights) {
  Context context = test_context(GetParam());
  const ScaleDim k = dim_of(128, {{112, 64}, {80, 0}}), tokens = {kRows, 1, 7};
  for (const DType format : {kE4M3, kE5M2}) {
    const Operand a(format, tokens, k, 1);
    expect_stored(context, a, {kE4M3, dim_of(128, {{100, 60}, {40, 128}, {36, 200}}), k, 2}, false);
    expect_stored(context, a, {kE4M3, dim_of(128, {{71, 125}, {0, 3}, {38, 1}}), k, 3}, false);
  }
  // Tiles that all leave by TMA, several of a block: each waits for what left its place before.
  expect_stored(context, {kE4M3, tokens, k, 1}, {kE4M3, {384, 128}, k, 4}, false);
}

TEST_P(GemmQuantizedGpu, blocks_of_rows_of_both) {
  Context context = test_context(GetParam());
  const ScaleDim k = dim_of(128, {{300, 84}}), rows = dim_of(1, {{200, 0}, {kRows - 200, 50}});
  for (const auto& [of_a, of_b] : kFormats)
    expect_stored(context, {of_a, rows, k, 1}, {of_b, {156, 1, 3}, k, 2}, true);
  expect_stored(context, {kE4M3, {67, 1}, k, 3}, {kE5M2, {71, 1}, k, 4}, true);
}

TEST_P(GemmQuantizedGpu, one_scale_for_a_part) {
  Context context = test_context(GetParam());
  const ScaleDim parts = dim_of(0, {{144, 0}, {0, 9}, {130, 77}, {kRows - 274, 0}});
  const ScaleDim k = dim_of(0, {{100, 0}, {90, 0}}), tokens = {kRows, 0, 40};
  const ScaleDim whole = {800, 0};  // more steps than a tile has stages
  for (const DType format : {kE4M3, kE5M2}) {
    expect_stored(context, {format, tokens, k, 1}, {kE4M3, {136, 0}, k, 2}, false);
    expect_stored(context, {format, tokens, whole, 3},
                  {kE4M3, dim_of(0, {{72, 0}, {40, 8}, {64, 2}}), whole, 4}, false);
  }
  for (const auto& [of_a, of_b] : kFormats)
    expect_stored(context, {of_a, parts, whole, 5}, {of_b, {92, 0}, whole, 6}, true);
  expect_stored(context, {kE4M3, tokens, whole, 7},
                {kE4M3, dim_of(0, {{33, 0}, {38, 0}}), whole, 8}, false);
}

TEST_P(GemmQuantizedGpu, one_scale_for_all_of_k_may_be_left_to_the_end) {
  Context context = test_context(GetParam());
  const ScaleDim k = {340, 0};
  const Operand a(kE4M3, {kRows, 0}, k, 1), b(kE4M3, dim_of(0, {{100, 0}, {60, 0}}), k, 2);
  const Sums expected = sums_of(a, b);
  const std::vector<double> zero(expected.sums.size());
  for (const Way& way : kWays) {
    TestTensor c(DType::kBF16, {kRows, 160});
    const QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view(), .precise_sums = false};
    if (!serves(context, args, way)) continue;
    multiply(context, args, way);
    expect_product(c, expected, zero, bits_of_sums(340), way.name);
  }
}

/// The bits of the product, then the op.
TEST_P(GemmEpilogueQuantizedGpu, epilogues_are_the_ops_that_they_stand_for) {
  Context context = test_context(GetParam());
  const ScaleDim k = {200, 128, 20};
  const Operand a(kE4M3, {kRows, 1}, k, 1);
  for (const ScaleDim& columns : {dim_of(128, {{88, 88}, {80, 40}}), dim_of(128, {{40, 5}})}) {
    const Operand b(kE4M3, columns, k, 2);
    const std::int64_t n = columns.size();
    const TestTensor bias = TestTensor::random(DType::kBF16, {n}, 3),
                     operand = TestTensor::random(DType::kBF16, {kRows, n}, 4),
                     gate_up = TestTensor::random(DType::kBF16, {kRows, 2 * n}, 5);
    for (const Way& way : kOwnWays) {
      const auto tensor = [&](std::int64_t width) {
        return TestTensor(DType::kBF16, {kRows, width}, n % 8 == 0 ? 0 : 1);
      };
      TestTensor y = tensor(n), c = tensor(n), saved = tensor(n), wanted = tensor(n),
                 kept = tensor(n), wide = tensor(2 * n), wanted_wide = tensor(2 * n);
      QuantizedGemm args{.c_MN = y, .a = a.view(), .b = b.view(), .bias_N = bias};
      multiply(context, args, way);

      args.c_MN = c, args.saved = saved, args.epilogue = GemmEpilogue::kGelu;
      multiply(context, args, way);
      gelu_forward(context, wanted, y);
      EXPECT_EQ(saved.bits(), y.bits()) << way.name;
      EXPECT_EQ(c.bits(), wanted.bits()) << way.name;

      args.operand = operand, args.epilogue = GemmEpilogue::kGeluBackward;
      multiply(context, args, way);
      gelu_backward(context, wanted, y, operand, kept);
      EXPECT_EQ(saved.bits(), kept.bits()) << way.name;
      EXPECT_EQ(c.bits(), wanted.bits()) << way.name;

      args.c_MN = wide, args.operand = gate_up, args.epilogue = GemmEpilogue::kSwigluBackward;
      multiply(context, args, way);
      glu_backward(context, GluGate::kSilu, wanted_wide, y, gate_up, kept);
      EXPECT_EQ(saved.bits(), kept.bits()) << way.name;
      EXPECT_EQ(wide.bits(), wanted_wide.bits()) << way.name;

      args.c_MN = c, args.operand = operand, args.saved = {};
      args.epilogue = GemmEpilogue::kAddResidual;
      multiply(context, args, way);
      std::vector<double> sum = y.values();
      const std::vector<double> added = operand.values();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
      EXPECT_EQ(c.bits(), TestTensor::of(DType::kBF16, {kRows, n}, sum).bits()) << way.name;
    }
  }
}

/// Of so many parts of c's columns.
std::string maxima_of(Context& context, const TestTensor& c, std::int64_t parts) {
  TestTensor amax(DType::kI32, {1, parts});
  ScaleDim columns;
  for (std::int64_t i = 0; i < parts; ++i) columns.add({c.shape()[1] / parts});
  absolute_max(context, amax, c, ScaleDim(c.shape()[0], 0), columns);
  return amax.bits();
}

/// Of tiles that leave by TMA and of those that do not, of columns that are even and odd.
TEST_P(GemmEpilogueQuantizedGpu, activations_leave_their_largest_magnitudes) {
  Context context = test_context(GetParam());
  const ScaleDim k = {200, 0};
  const Operand a(kE4M3, {kRows, 0}, k, 1);
  for (const std::int64_t half : {72, 37}) {
    const Operand b(kE4M3, dim_of(0, {{half, 0}, {half, 0}}), k, 2);
    const std::int64_t n = 2 * half;
    const TestTensor bias = TestTensor::random(DType::kBF16, {n}, 3),
                     operand = TestTensor::random(DType::kBF16, {kRows, n}, 4),
                     gate_up = TestTensor::random(DType::kBF16, {kRows, 2 * n}, 5);
    for (const Way& way : kOwnWays) {
      const auto expect_left = [&](GemmEpilogue epilogue, std::int64_t width, std::int64_t parts,
                                   const ConstTensorView& read) {
        TestTensor c(DType::kBF16, {kRows, width}, half % 8 == 0 ? 0 : 1),
            amax(DType::kI32, {parts});
        QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view(), .precise_sums = false};
        args.epilogue = epilogue;
        args.operand = read;
        args.amax_P = amax;
        TestTensor saved(DType::kBF16, {kRows, n});
        if (epilogue == GemmEpilogue::kSwiglu) args.saved = saved;
        if (!read.given()) args.bias_N = bias;
        multiply(context, args, way);
        EXPECT_EQ(amax.bits(), maxima_of(context, c, parts)) << way.name << ", " << half;
      };
      expect_left(GemmEpilogue::kGelu, n, 1, {});
      if (half % 8 == 0) expect_left(GemmEpilogue::kSwiglu, half, 1, {});
      expect_left(GemmEpilogue::kGeluBackward, n, 1, operand);
      expect_left(GemmEpilogue::kSwigluBackward, 2 * n, 2, gate_up);
    }
  }
}

TEST_P(GemmEpilogueQuantizedGpu, swiglu_takes_gate_and_up_from_one_tile) {
  Context context = test_context(GetParam());
  struct Case {
    ScaleDim columns, k;
    bool precise;
  };
  for (const Case& of : {Case{dim_of(128, {{152, 88}, {152, 216}}), {200, 128, 20}, true},
                         Case{dim_of(0, {{72, 0}, {72, 30}}), {200, 0}, false},
                         Case{dim_of(0, {{72, 0}, {72, 30}}), {200, 0}, true}}) {
    const std::int64_t f = of.columns.size() / 2;
    const Operand a(kE4M3, {kRows, of.k.block == 0 ? 0 : 1}, of.k, 1),
        b(kE4M3, of.columns, of.k, 2);
    const TestTensor bias = TestTensor::random(DType::kBF16, {2 * f}, 3);
    for (const Way& way : kOwnWays) {
      TestTensor y(DType::kBF16, {kRows, 2 * f}), saved(DType::kBF16, {kRows, 2 * f}, 0),
          c(DType::kBF16, {kRows, f}, 0), wanted(DType::kBF16, {kRows, f});
      QuantizedGemm args{.c_MN = y, .a = a.view(), .b = b.view(), .bias_N = bias};
      args.precise_sums = of.precise;
      multiply(context, args, way);
      args.c_MN = c, args.saved = saved, args.epilogue = GemmEpilogue::kSwiglu;
      multiply(context, args, way);
      glu_forward(context, GluGate::kSilu, wanted, y);
      EXPECT_EQ(saved.bits(), y.bits()) << way.name;
      EXPECT_EQ(c.bits(), wanted.bits()) << way.name;
    }
  }
}

TEST_P(GemmEpilogueQuantizedGpu, what_no_kernel_does_at_once_is_the_product_and_an_op) {
  Context context = test_context(GetParam());
  const ScaleDim k = {136, 128};
  const Operand a(kE4M3, {9, 1}, k, 1), b(kE4M3, dim_of(128, {{24, 0}, {24, 90}}), k, 2);
  TestTensor y(DType::kBF16, {9, 48}), saved = y, c(DType::kBF16, {9, 24}), wanted = c;
  QuantizedGemm args{.c_MN = y, .a = a.view(), .b = b.view()};
  gemm_quantized(context, args);
  for (const auto& [epilogue, gate] :
       {std::pair{GemmEpilogue::kSwiglu, GluGate::kSilu}, {GemmEpilogue::kGeglu, GluGate::kGelu}}) {
    args.c_MN = c, args.saved = saved, args.epilogue = epilogue;
    gemm_quantized(context, args);
    glu_forward(context, gate, wanted, y);
    EXPECT_EQ(saved.bits(), y.bits());
    EXPECT_EQ(c.bits(), wanted.bits());
  }
  TestTensor wide(DType::kBF16, {9, 96}), wanted_wide = wide, kept = y;
  const TestTensor gate_up = TestTensor::random(DType::kBF16, {9, 96}, 3);
  args.c_MN = wide, args.operand = gate_up, args.epilogue = GemmEpilogue::kGegluBackward;
  gemm_quantized(context, args);
  glu_backward(context, GluGate::kGelu, wanted_wide, y, gate_up, kept);
  EXPECT_EQ(saved.bits(), kept.bits());
  EXPECT_EQ(wide.bits(), wanted_wide.bits());
}

TEST_P(GemmQuantizedGpu, nothing_to_add_and_what_no_kernel_serves) {
  Context context = test_context(GetParam());
  for (const std::int64_t block : {0, 128})
    EXPECT_EQ(gemm_quantized_missing(context.device(), block), "");
  const ScaleDim none = {0, 128};
  const Operand a(kE4M3, {3, 1}, none, 1), b(kE4M3, {5, 1}, none, 2);
  const TestTensor before = TestTensor::random(DType::kF32, {3, 5}, 3);
  TestTensor c = before;
  QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view(), .accumulate = Accumulate::kYes};
  gemm_quantized(context, args);
  EXPECT_EQ(c.bits(), before.bits());
  args.accumulate = Accumulate::kNo;
  gemm_quantized(context, args);
  EXPECT_EQ(c.values(), std::vector<double>(15));
  const Operand fine(kE4M3, {3, 1}, {128, 32}, 4), fine_b(kE4M3, {5, 1}, {128, 32}, 5);
  args.a = fine.view(), args.b = fine_b.view();
  expect_refused([&] { gemm_quantized(context, args); },
                 "no kernel of this GPU serves a product of [3, 128] e4m3 (scales of 1 x 32)");
}

TEST_P(GemmQuantizedGpu, gives_the_same_bits_in_every_order) {
  Context context = test_context(GetParam());
  const ScaleDim k = {400, 128, 100};
  const Operand a(kE4M3, {kRows, 1}, k, 1), b(kE4M3, {72, 128, 90}, k, 2),
      d(kE4M3, {72, 1, 90}, k, 2);
  for (const Way& way : kOwnWays) {
    expect_same_bits([&] {
      TestTensor c(DType::kBF16, {kRows, 72}, 0), dw(DType::kF32, {kRows, 72});
      multiply(context, {.c_MN = c, .a = a.view(), .b = b.view()}, way);
      multiply(context, {.c_MN = dw, .a = a.view(), .b = d.view()}, way);
      return c.bits() + dw.bits();
    });
  }
}

/// 448 x 448 beside 16,383 ones: an accumulator of 13 bits beside 2^17 counts in steps of 16.
TEST_P(GemmQuantizedGpu, sums_that_stay_in_a_tensor_core_lose_what_is_small) {
  const test_device::TensorCoreSums as_a_tensor_core;
  if (!as_a_tensor_core.given) GTEST_SKIP() << "sums are f32's here";
  Context context = test_context(GetParam());
  const std::int64_t k = 16384;
  Operand a(kE4M3, {3, 0}, {k, 0}, 1), b(kE4M3, {5, 0}, {k, 0}, 2);
  for (Operand* side : {&a, &b}) {
    side->scales.set(0, 1);
    for (std::int64_t i = 0; i < side->codes.shape().count(); ++i)
      side->codes.set(i, i % k == 0 ? 0x7e : 0x38);
    side->decode();
  }
  const Sums expected = sums_of(a, b);
  ASSERT_EQ(expected.sums[0], 448.0 * 448 + k - 1);
  TestTensor c(DType::kBF16, {3, 5});
  for (const bool precise : {true, false}) {
    gemm_quantized(context, {.c_MN = c, .a = a.view(), .b = b.view(), .precise_sums = precise});
    // All but the first 127 ones are added in f32, or none is.
    const double wanted = precise ? expected.sums[0] : 448.0 * 448;
    for (const double value : c.values()) EXPECT_NEAR(value, wanted, 0x1p-8 * wanted);
  }
}

TEST_P(GemmQuantizedGpu, a_tensor_cores_sums_of_128_are_near_those_of_f32) {
  const test_device::TensorCoreSums as_a_tensor_core;
  if (!as_a_tensor_core.given) GTEST_SKIP() << "sums are f32's here";
  Context context = test_context(GetParam());
  const ScaleDim k = {1500, 128};
  const Operand a(kE4M3, {20, 1}, k, 1), b(kE4M3, {24, 1}, k, 2);
  TestTensor c(DType::kF32, {20, 24});
  gemm_quantized(context, {.c_MN = c, .a = a.view(), .b = b.view()});
  const Sums expected = sums_of(a, b);
  expect_product(c, expected, std::vector<double>(expected.sums.size()), 11, "sums of 128");
}

TEST(GemmFp8Tiles, each_column_is_in_the_tile_of_its_scale) {
  for (const std::int64_t block : {0, 1, 128}) {
    for (const ScaleDim& dim :
         {dim_of(block, {{300, 100}, {0, 7}, {1, 127}, {200, 128}}), ScaleDim(513, block, 255)}) {
      ScalesGpu raw{};
      raw.row_block = block;
      for (int i = 0; i < dim.part_count; ++i) {
        const ScaleDim::Part part = dim.parts[static_cast<std::size_t>(i)];
        if (part.size == 0) continue;
        raw.sizes[raw.parts] = part.size;
        raw.offsets[raw.parts++] = part.offset;
      }
      const std::vector<std::int64_t> blocks = plain_blocks(dim);
      const cuda::ColumnTiles tiles(raw, false);
      int next = 0;
      for (int i = 0; i < tiles.count(); ++i) {
        const cuda::ColumnTile tile = tiles.at(i);
        ASSERT_EQ(tile.begin, next);
        ASSERT_GT(tile.end, tile.begin);
        ASSERT_LE(tile.end, tile.begin + cuda::ColumnTiles::kWidth);
        next = tile.end;
        for (int column = tile.begin; column < tile.end; ++column) {
          const auto wanted = static_cast<int>(blocks[static_cast<std::size_t>(column)]);
          ASSERT_EQ(block == 1 ? tile.block + column - tile.begin : tile.block, wanted);
          ASSERT_EQ(tiles.blocks.block_of(column), wanted);
        }
      }
      ASSERT_EQ(next, dim.size());
    }
  }
}

TEST(GemmFp8Tiles, dual_tiles_have_a_scale_of_each_product) {
  for (const std::int64_t block : {0, 128}) {
    ScalesGpu raw{};
    raw.row_block = block;
    raw.parts = 2;
    raw.sizes[0] = raw.sizes[1] = 200;
    raw.offsets[0] = 88, raw.offsets[1] = 216;
    ASSERT_TRUE(cuda::ColumnTiles::can_be_dual(raw));
    const std::vector<std::int64_t> blocks = plain_blocks(dim_of(block, {{200, 88}, {200, 216}}));
    const cuda::ColumnTiles tiles(raw, true);
    std::size_t next = 0;
    for (int i = 0; i < tiles.count(); ++i) {
      const cuda::ColumnTile tile = tiles.at(i);
      ASSERT_EQ(tile.begin, static_cast<int>(next));
      ASSERT_EQ(tile.begin % 8, 0);
      ASSERT_LE(tile.end, tile.begin + cuda::ColumnTiles::kWidth / 2);
      for (; next < static_cast<std::size_t>(tile.end); ++next) {
        ASSERT_EQ(tile.block, blocks[next]);
        ASSERT_EQ(tile.second_block, blocks[next + 200]);
      }
    }
    ASSERT_EQ(next, 200U);
    raw.offsets[1] = 224;
    EXPECT_EQ(cuda::ColumnTiles::can_be_dual(raw), block == 0);
    raw.sizes[1] = 208;
    EXPECT_FALSE(cuda::ColumnTiles::can_be_dual(raw));
    raw.sizes[0] = raw.sizes[1] = 204;
    EXPECT_FALSE(cuda::ColumnTiles::can_be_dual(raw));
  }
}

}  // namespace
}  // namespace trireme
