#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/float8.h"
#include "base/random.h"
#include "kernels/quantize_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

constexpr DType kFormats[] = {DType::kF8E4M3, DType::kF8E5M2};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class QuantizeOp : public OpTest {};
TRIREME_FOR_ALL_ISAS(QuantizeOp);

/// A quantised matrix's memory.
struct Matrix {
  ScaleDim rows, columns;
  bool padded;
  TestTensor codes, scales;

  Matrix(DType format, const ScaleDim& rows_, const ScaleDim& columns_, bool padded_)
      : rows(rows_),
        columns(columns_),
        padded(padded_),
        codes(format, codes_shape(rows, columns, padded)),
        scales(DType::kF32, scales_shape(rows, columns)) {
    // What is not written is seen.
    for (std::int64_t i = 0; i < codes.shape().count(); ++i) codes.set(i, 0x55);
  }
  QuantizedView view() { return {codes, scales, rows, columns, padded}; }
};

ScaleDim dim_of(std::int64_t block, std::initializer_list<ScaleDim::Part> parts) {
  ScaleDim dim;
  dim.block = block;
  for (const ScaleDim::Part& part : parts) dim.add(part);
  return dim;
}

TestTensor bits_of(const std::vector<float>& amax, const Shape& shape) {
  TestTensor bits(DType::kI32, shape);
  for (std::size_t i = 0; i < amax.size(); ++i)
    bits.set(static_cast<std::int64_t>(i), std::bit_cast<std::int32_t>(amax[i]));
  return bits;
}

void expect_scales(const TestTensor& scales, const std::vector<float>& expected) {
  const std::vector<double> found = scales.values();
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(found[i])) << i;
    } else {
      EXPECT_EQ(found[i], expected[i]) << i;
    }
  }
}

/// Codes of values as they are: the factor is 1.
std::vector<double> codes_of(Context& context, const TestTensor& x, DType format) {
  const ScaleDim rows(x.shape()[0], 0), columns(x.shape()[1], 0);
  Matrix out(format, rows, columns, false);
  const TestTensor amax = bits_of({largest_of_f8(format)}, {1, 1});
  Quantize args;
  args.out = {out.codes, {}, rows, columns, false};
  args.x = x;
  args.amax = amax;
  quantize(context, args);
  return out.codes.values();
}

TEST_P(QuantizeOp, every_bf16_becomes_the_nearest_of_all_codes) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : {DType::kBF16, DType::kF32}) {
    TestTensor x(type, {256, 256});
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const BFloat16 value{static_cast<std::uint16_t>(bits)};
      if (type == DType::kBF16) {
        x.view().as<BFloat16>()[bits] = value;
      } else {
        x.view().as<float>()[bits] = to_float(value);
      }
    }
    for (const DType format : kFormats) {
      const std::vector<double> codes = codes_of(context, x, format);
      for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const float value = to_float(BFloat16{static_cast<std::uint16_t>(bits)});
        ASSERT_EQ(codes[bits], reference::nearest_code(value, format)) << value;
      }
    }
  }
}

/// Any sign and fraction, exponents where codes are and beyond; ties and their neighbours.
std::vector<float> hard_values(std::size_t count) {
  std::vector<float> x;
  for (std::uint64_t i = 0; x.size() < count; ++i) {
    const std::array<std::uint32_t, 4> random = philox(1, i, 0);
    const std::uint32_t exponent = 127 - 26 + random[0] % 46;
    const std::uint32_t fraction = random[1] & 0x807fffffU;
    x.push_back(std::bit_cast<float>(exponent << 23 | fraction));
    const std::uint32_t tie =
        (fraction & 0x80700000U) | (random[2] % 2 == 0 ? 0x80000U : 0x100000U);
    for (const std::uint32_t beside : {0xffffffffU, 0U, 1U})
      x.push_back(std::bit_cast<float>((exponent << 23 | tie) + beside));
  }
  x.resize(count);
  return x;
}

TEST_P(QuantizeOp, random_values_and_ties_become_the_nearest_of_all_codes) {
  Context context = test_context(GetParam(), 2);
  const Shape shape = context.on_gpu() ? Shape{223, 225} : Shape{1001, 1003};
  const std::int64_t count = shape.count();
  const std::vector<float> values = hard_values(static_cast<std::size_t>(count));
  TestTensor x(DType::kF32, shape);
  for (std::int64_t i = 0; i < count; ++i) x.set(i, values[static_cast<std::size_t>(i)]);
  for (const DType format : kFormats) {
    const std::vector<double> codes = codes_of(context, x, format);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(codes[i], reference::nearest_code(values[i], format)) << values[i];
  }
}

/// A recipe's blocks, over parts of a global tensor that begin and end within blocks.
struct Case {
  ScaleDim rows, columns;
};
std::vector<Case> cases() {
  return {{ScaleDim(5, 1), ScaleDim(300, 128)},
          {dim_of(128, {{70, 100}, {20, 37}}), dim_of(128, {{50, 120}, {0, 0}, {90, 250}})},
          {dim_of(1, {{30, 3}, {7, 0}}), dim_of(128, {{129, 64}, {17, 127}})},
          {dim_of(128, {{140, 5}, {3, 126}}), dim_of(1, {{70, 1}, {5, 9}})},
          {dim_of(0, {{33, 7}, {20, 128}}), dim_of(0, {{65, 0}, {3, 131}})},
          {dim_of(0, {{40, 0}}), dim_of(1, {{19, 3}})},
          {dim_of(4, {{140, 3}}), dim_of(16, {{70, 5}})},
          {dim_of(1, {{17, 3}}), dim_of(1, {{140, 5}})}};
}

/// Blocks of ordinary numbers, of 0, of subnormal ones, of the largest, and not finite.
TestTensor values_of(DType type, const Case& of) {
  const std::int64_t width = of.columns.size();
  TestTensor x = TestTensor::random(type, {of.rows.size(), width}, 7, 3);
  const std::vector<double> random = x.values();
  for (std::int64_t r = 0; r < of.rows.size(); ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t block = reference::place_of(of.rows, r).block * of.columns.blocks() +
                                 reference::place_of(of.columns, c).block;
      const double value = random[static_cast<std::size_t>(r * width + c)];
      const double scales[] = {1, 0, 0x1p-130, 0x1p-149, 0x1p120, 1, 1, 448, 0x1p-100};
      x.set(r * width + c, value * scales[block % 9]);
      const bool at_end = c + 1 == width || reference::place_of(of.columns, c + 1).block !=
                                                reference::place_of(of.columns, c).block;
      if (block % 9 == 5 && at_end) x.set(r * width + c, -kInfinity);
      if (block % 9 == 6 && at_end) x.set(r * width + c, std::nan(""));
      if (block % 9 == 7) x.set(r * width + c, value > 0 ? 448 : -57344);
    }
  }
  return x;
}

/// Codes and scales, dense and padded, along and across, with an amax found there and given.
void expect_quantized(Context& context, const Case& of, const TestTensor& x, DType format) {
  const reference::Quantized expected =
      reference::quantize(x.values(), of.rows, of.columns, format);
  TestTensor amax(DType::kI32, scales_shape(of.rows, of.columns));
  absolute_max(context, amax, x, of.rows, of.columns);
  const std::vector<double> found = amax.values();
  for (std::size_t i = 0; i < expected.amax.size(); ++i) {
    const auto bits = static_cast<std::int32_t>(found[i]);
    if (std::isnan(expected.amax[i])) {
      EXPECT_GT(bits, 0x7f800000);
    } else {
      EXPECT_EQ(bits, std::bit_cast<std::int32_t>(expected.amax[i]));
    }
  }
  for (const bool across : {false, true}) {
    for (const bool padded : {false, true}) {
      const ScaleDim &rows = across ? of.columns : of.rows,
                     &columns = across ? of.rows : of.columns;
      const std::vector<float> scales =
          across ? reference::transposed(expected.scales, of.rows.blocks(), of.columns.blocks())
                 : expected.scales;
      const std::vector<double> codes =
          reference::arranged(expected.codes, of.rows, of.columns, padded, across);
      for (const bool given : {false, true}) {
        Matrix out(format, rows, columns, padded);
        Quantize args;
        args.out = out.view();
        args.x = x;
        if (given) args.amax = amax;
        if (given && padded) args.out.scales = {};
        args.transpose = across ? Transpose::kYes : Transpose::kNo;
        quantize(context, args);
        EXPECT_EQ(out.codes.values(), codes) << across << padded << given;
        if (args.out.scales.given()) expect_scales(out.scales, scales);
      }
    }
  }
}

TEST_P(QuantizeOp, codes_and_scales_equal_the_formulas_for_blocks_of_parts_in_all_orders) {
  Context context = test_context(GetParam());
  for (const Case& of : cases()) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const DType format = type == DType::kF32 ? DType::kF8E4M3 : DType::kF8E5M2;
      expect_quantized(context, of, values_of(type, of), format);
    }
  }
}

/// What two calls write, from one reading: of each recipe, blocks of rows with blocks of columns,
/// of tensors with parts; and of pairs for which no kernel does both.
TEST_P(QuantizeOp, codes_of_both_orders_are_those_of_two_calls) {
  const ScaleDim rows = dim_of(0, {{140, 5}, {3, 126}}),
                 columns = dim_of(0, {{50, 120}, {0, 0}, {90, 250}, {8, 3}});
  const ScaleDim even_rows(136, 0), even_columns(264, 0);
  struct Blocks {
    std::int64_t along_rows, along_columns, across_rows, across_columns;
  };
  // Of x's rows and columns, along and across.
  const Blocks all[] = {{1, 128, 128, 1}, {0, 0, 0, 0},     {128, 128, 128, 128},
                        {1, 128, 0, 0},   {128, 1, 1, 128}, {4, 16, 128, 1}};
  const auto expect_both = [&](const ScaleDim& r, const ScaleDim& c, const Blocks& of, DType type,
                               bool padded, bool given) {
    Context context = test_context(GetParam(), 2);
    const Case along{r.with_block(of.along_rows), c.with_block(of.along_columns)},
        across{r.with_block(of.across_rows), c.with_block(of.across_columns)};
    const TestTensor x = values_of(type, along);
    const DType format = type == DType::kF32 ? DType::kF8E4M3 : DType::kF8E5M2;
    TestTensor amaxes[] = {{DType::kI32, scales_shape(along.rows, along.columns)},
                           {DType::kI32, scales_shape(across.rows, across.columns)}};
    if (given) {
      absolute_max(context, amaxes[0], x, along.rows, along.columns);
      absolute_max(context, amaxes[1], x, across.rows, across.columns);
    }
    const auto amax = [&](int i) { return given ? amaxes[i].view() : TensorView(); };
    Matrix expected[] = {{format, along.rows, along.columns, padded},
                         {format, across.columns, across.rows, padded}};
    Matrix found[] = {{format, along.rows, along.columns, padded},
                      {format, across.columns, across.rows, padded}};
    quantize(context, {expected[0].view(), x, amax(0), Transpose::kNo});
    quantize(context, {expected[1].view(), x, amax(1), Transpose::kYes});
    quantize_both(context, {found[0].view(), found[1].view(), x, amax(0), amax(1)});
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(found[i].codes.bits(), expected[i].codes.bits()) << i;
      EXPECT_EQ(found[i].scales.bits(), expected[i].scales.bits()) << i;
    }
  };
  for (const Blocks& of : all) {
    SCOPED_TRACE(testing::Message() << of.along_rows << " " << of.along_columns << " "
                                    << of.across_rows << " " << of.across_columns);
    expect_both(rows, columns, of, DType::kBF16, true, false);
    expect_both(rows, columns, of, DType::kF32, false, true);
    expect_both(even_rows, even_columns, of, DType::kBF16, false, false);
  }
}

TEST_P(QuantizeOp, more_threads_give_the_same_bits) {
  if (test_context(GetParam()).on_gpu()) return;
  const Case large[] = {{dim_of(0, {{300, 5}, {90, 0}}), dim_of(0, {{301, 0}})},
                        {dim_of(128, {{300, 5}, {90, 0}}), dim_of(128, {{301, 7}})},
                        {dim_of(1, {{390, 5}}), dim_of(128, {{301, 7}})},
                        {dim_of(128, {{390, 5}}), dim_of(1, {{301, 7}})},
                        {dim_of(0, {{390, 5}}), dim_of(1, {{301, 7}})}};
  for (const Case& of : large) {
    const TestTensor x = values_of(DType::kBF16, of);
    for (int threads = 1; threads <= 3; ++threads) {
      Context context = test_context(GetParam(), threads);
      expect_quantized(context, of, x, DType::kF8E4M3);
    }
  }
}

TEST_P(QuantizeOp, a_shard_has_the_codes_that_the_whole_has_there) {
  Context context = test_context(GetParam(), 2);
  const ScaleDim rows(200, 128), columns(300, 128);
  const TestTensor x = TestTensor::random(DType::kBF16, {200, 300}, 3);
  Matrix whole(DType::kF8E4M3, rows, columns, false);
  TestTensor amax(DType::kI32, {2, 3});
  absolute_max(context, amax, x, rows, columns);
  Quantize args;
  args.out = whole.view();
  args.x = x;
  quantize(context, args);
  // Rows 60 to 150 lie in both of the blocks; so do their maxima, as a sum over ranks leaves them.
  const ScaleDim some(90, 128, 60);
  Matrix part(DType::kF8E4M3, some, columns, false);
  args.out = part.view();
  args.x = x.view().rows(60, 90);
  args.amax = amax;
  quantize(context, args);
  EXPECT_EQ(part.codes.bits(), whole.codes.bits().substr(60 * 300, 90 * 300));
  EXPECT_EQ(part.scales.bits(), whole.scales.bits());
  // An amax goes on from what it has.
  TestTensor rest(DType::kI32, {2, 3});
  absolute_max(context, rest, x.view().rows(60, 140), ScaleDim(140, 128, 60), columns);
  absolute_max(context, rest.view().rows(0, 1), x.view().rows(0, 60), ScaleDim(60, 128), columns);
  EXPECT_EQ(rest.bits(), amax.bits());
}

TEST_P(QuantizeOp, scales_are_one_over_the_largest_value_over_amax) {
  Context context = test_context(GetParam(), 2);
  const std::vector<float> amax = {0,
                                   448,
                                   57344,
                                   3,
                                   0x1p-149F,
                                   0x1p-140F,
                                   1e30F,
                                   3.4e38F,
                                   std::numeric_limits<float>::infinity(),
                                   std::nanf("")};
  const TestTensor bits = bits_of(amax, {2, 5});
  for (const DType format : kFormats) {
    TestTensor scales(DType::kF32, {2, 5});
    scales_of(context, scales, bits, format);
    std::vector<float> expected;
    for (const float value : amax) {
      const float s = std::min(largest_of_f8(format) / value, std::numeric_limits<float>::max());
      expected.push_back(value == 0 ? 1 : std::isfinite(value) ? 1 / s : std::nanf(""));
    }
    expect_scales(scales, expected);
  }
}

/// As they are, or rounded to bf16.
void expect_values(const TestTensor& y, const std::vector<double>& expected) {
  const std::vector<double> found = y.values();
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto value = static_cast<float>(expected[i]);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(found[i])) << i;
    } else if (y.dtype() == DType::kF32) {
      ASSERT_EQ(found[i], value) << i;
    } else if (std::abs(value) >= 0x1p-126F) {  // below, some CPUs store 0
      ASSERT_EQ(found[i], to_float(to_bfloat16(value))) << i;
    }
  }
}

TEST_P(QuantizeOp, dequantized_values_are_codes_times_scales) {
  Context context = test_context(GetParam(), 2);
  for (const Case& of : cases()) {
    for (const DType format : kFormats) {
      const TestTensor x = values_of(DType::kF32, of);
      const reference::Quantized expected =
          reference::quantize(x.values(), of.rows, of.columns, format);
      for (const bool padded : {false, true}) {
        Matrix from(format, of.rows, of.columns, padded);
        Quantize args;
        args.out = from.view();
        args.x = x;
        quantize(context, args);
        for (const DType type : {DType::kF32, DType::kBF16}) {
          TestTensor y(type, x.shape());
          dequantize(context, y, from.view());
          expect_values(y, reference::dequantize(expected, of.rows, of.columns, format));
        }
      }
    }
  }
}

TEST_P(QuantizeOp, codes_decode_to_their_values) {
  Context context = test_context(GetParam());
  for (const DType format : kFormats) {
    Matrix from(format, ScaleDim(1, 0), ScaleDim(256, 0), false);
    for (int code = 0; code < 256; ++code) from.codes.set(code, code);
    from.scales.set(0, 1);
    TestTensor y(DType::kF32, {1, 256});
    dequantize(context, y, from.view());
    const std::vector<double> found = y.values();
    for (std::uint32_t code = 0; code < 256; ++code) {
      const double value = reference::value_of_code(code, format);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(found[code])) << code;
      } else {
        EXPECT_EQ(found[code], value) << code;
      }
    }
  }
}

TEST_P(QuantizeOp, reordered_codes_and_scales_are_the_same_elsewhere) {
  Context context = test_context(GetParam(), 2);
  for (const Case& of : cases()) {
    const TestTensor x = TestTensor::random(DType::kF32, {of.rows.size(), of.columns.size()}, 5);
    const reference::Quantized expected =
        reference::quantize(x.values(), of.rows, of.columns, DType::kF8E4M3);
    for (const bool from_padded : {false, true}) {
      Matrix from(DType::kF8E4M3, of.rows, of.columns, from_padded);
      Quantize args;
      args.out = from.view();
      args.x = x;
      quantize(context, args);
      for (const bool across : {false, true}) {
        for (const bool padded : {false, true}) {
          Matrix to(DType::kF8E4M3, across ? of.columns : of.rows, across ? of.rows : of.columns,
                    padded);
          reorder(context, to.view(), from.view(), across ? Transpose::kYes : Transpose::kNo);
          EXPECT_EQ(to.codes.values(),
                    reference::arranged(expected.codes, of.rows, of.columns, padded, across));
          expect_scales(to.scales, across ? reference::transposed(expected.scales, of.rows.blocks(),
                                                                  of.columns.blocks())
                                          : expected.scales);
        }
      }
    }
  }
}

TEST_P(QuantizeOp, the_same_bits_in_any_order_of_threads) {
  const Case of = cases()[1];
  const TestTensor x = TestTensor::random(DType::kBF16, {of.rows.size(), of.columns.size()}, 5);
  expect_same_bits([&] {
    Context context = test_context(GetParam(), 3);
    Matrix out(DType::kF8E4M3, of.columns, of.rows, true);
    Quantize args;
    args.out = out.view();
    args.x = x;
    args.transpose = Transpose::kYes;
    quantize(context, args);
    return out.codes.bits() + out.scales.bits();
  });
}

TEST_P(QuantizeOp, nothing_is_quantised_where_nothing_is) {
  Context context = test_context(GetParam());
  const ScaleDim none(0, 128, 5), some(7, 128);
  TestTensor x(DType::kF32, {0, 7}), codes(DType::kF8E4M3, {0, 7}), scales(DType::kF32, {0, 1});
  Quantize args;
  args.out = {codes, scales, none, some, false};
  args.x = x;
  quantize(context, args);
  dequantize(context, x, args.out);
  reorder(context, args.out, args.out, Transpose::kNo);
}

TEST_P(QuantizeOp, wrong_operands_are_refused) {
  Context context = test_context(GetParam());
  const ScaleDim rows(3, 1), columns(200, 128, 100);
  const TestTensor x = TestTensor::random(DType::kF32, {3, 200}, 1);
  Matrix dense(DType::kF8E4M3, rows, columns, false);
  Quantize args;
  args.out = dense.view();
  args.x = x;
  args.out.padded = true;
  expect_refused([&] { quantize(context, args); }, "quantize.out.codes: expected [3, 384] e4m3");
  args.out = dense.view();
  args.out.scales = {};
  expect_refused([&] { quantize(context, args); }, "quantize.out.scales: expected [3, 3] fp32");
  args.out = dense.view();
  args.out.columns.block = 96;
  expect_refused([&] { quantize(context, args); }, "blocks of 96 do not divide 128");
  args.out = dense.view();
  const TestTensor wide(DType::kF64, {3, 200});
  args.x = wide;
  expect_refused([&] { quantize(context, args); }, "quantize.x: expected fp32 or bf16");
  args.x = x;
  args.transpose = Transpose::kYes;
  expect_refused([&] { quantize(context, args); }, "quantize.x: expected [200, 3]");
  TestTensor amax(DType::kF32, {3, 3});
  expect_refused([&] { absolute_max(context, amax, x, rows, columns); },
                 "absolute_max.amax: expected [3, 3] int32");
  expect_refused([&] { scales_of(context, dense.scales, amax, DType::kBF16); }, "has no scales");
  Matrix other(DType::kF8E5M2, rows, columns, false);
  expect_refused([&] { reorder(context, other.view(), dense.view(), Transpose::kNo); },
                 "another type than from");
  expect_refused([&] { reorder(context, dense.view(), other.view(), Transpose::kYes); },
                 "other rows, columns or blocks");
  Matrix across(DType::kF8E4M3, columns, rows, false),
      of_other(DType::kF8E5M2, columns, rows, false);
  expect_refused(
      [&] {
        quantize_both(context, {dense.view(), of_other.view(), x});
      },
      "across: has another type than along");
  expect_refused(
      [&] {
        quantize_both(context, {dense.view(), across.view(), wide});
      },
      "quantize_both.x: expected fp32 or bf16");
  QuantizedView same = across.view();
  same.codes = {dense.view().codes.data, DType::kF8E4M3, {200, 3}};
  expect_refused(
      [&] {
        quantize_both(context, {dense.view(), same, x});
      },
      "along: shares memory with across.codes");
  Matrix parts(DType::kF8E4M3, dim_of(128, {{100, 100}, {100, 0}}), rows, false);
  expect_refused(
      [&] {
        quantize_both(context, {dense.view(), parts.view(), x});
      },
      "across: has other parts than along");
}

}  // namespace
}  // namespace trireme
