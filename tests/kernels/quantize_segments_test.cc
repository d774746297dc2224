#include "kernels/quantize/quantize_segments.h"

#include "kernels/common/gpu_kernels.h"
#include "kernels/expert_rows/expert_rows.h"
#include "kernels/quantize_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

constexpr std::int64_t kBlock = QuantizedSegments::kBlock;
using Begins = std::vector<std::int64_t>;

class QuantizeSegmentsTest : public OpTest {
  void SetUp() override {
    if (test_context(GetParam()).on_gpu() && gpu_kernels().quantize_segments == nullptr)
      GTEST_SKIP() << "no kernels for fp8 rows of experts";
  }
};
TRIREME_FOR_ALL_ISAS(QuantizeSegmentsTest);

/// Empty ones at both ends and between, one row, a block and a row, some in front of the first.
const std::vector<Begins> kSegments = {
    {0, 0, 5, 5, 6, 135, 135}, {3, 131, 260, 264}, {0, 0, 0}, {0, 300}};

ScaleDim columns_of(std::int64_t block, std::initializer_list<ScaleDim::Part> parts) {
  ScaleDim dim;
  dim.block = block;
  for (const ScaleDim::Part& part : parts) dim.add(part);
  return dim;
}

/// Of one matrix by the definitions; across, columns are rows.
struct Expected {
  std::vector<double> codes;
  std::vector<float> scales;
};
Expected expected_of(const TestTensor& x, Slice rows, const QuantizedSegments& out) {
  const std::vector<double> all = x.values();
  const std::int64_t width = out.columns.size();
  const std::vector<double> own(all.begin() + rows.begin * width,
                                all.begin() + (rows.begin + rows.size) * width);
  const bool blocks = out.in_blocks();
  const ScaleDim of_rows(rows.size, !blocks ? 0 : out.across ? kBlock : 1);
  const ScaleDim columns = out.across ? out.columns.with_block(blocks ? 1 : 0) : out.columns;
  const reference::Quantized quantized = reference::quantize(own, of_rows, columns, out.format());
  return {reference::arranged(quantized.codes, of_rows, columns, true, out.across),
          out.across ? reference::transposed(quantized.scales, of_rows.blocks(), columns.blocks())
                     : quantized.scales};
}

/// Rows [begin, ...) of `actual`, [rows, width].
void expect_rows(const std::vector<double>& actual, std::int64_t begin,
                 const std::vector<double>& expected, std::int64_t width, const char* what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[static_cast<std::size_t>(begin * width) + i], expected[i])
        << what << " " << begin << "+" << i / static_cast<std::size_t>(width);
  }
}

/// [C, blocks 128] as blocks of [C, 128]; scales [C, blocks] as [blocks, C].
std::vector<double> by_block(const std::vector<double>& of, std::int64_t rows, std::int64_t block) {
  std::vector<double> out;
  const std::int64_t width = std::ssize(of) / rows;
  for (std::int64_t begin = 0; begin < width; begin += block) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = begin; c < begin + block; ++c)
        out.push_back(of[static_cast<std::size_t>(r * width + c)]);
  }
  return out;
}

void expect_segments(const TestTensor& x, const Begins& begins, const QuantizedSegments& out,
                     const TestTensor& codes, const TestTensor& scales) {
  for (std::int64_t s = 0; s + 1 < std::ssize(begins); ++s) {
    const std::int64_t begin = begins[static_cast<std::size_t>(s)];
    const Slice rows = {begin, begins[static_cast<std::size_t>(s) + 1] - begin};
    if (rows.size == 0) continue;
    const Expected expected = expected_of(x, rows, out);
    const std::vector<double> of_scales(expected.scales.begin(), expected.scales.end());
    const std::int64_t first = QuantizedSegments::first_block(s, begin), width = out.columns.size();
    if (out.across) {
      expect_rows(codes.values(), first, by_block(expected.codes, width, kBlock), width * kBlock,
                  "codes");
    } else {
      expect_rows(codes.values(), begin, expected.codes, out.columns.padded_size(), "codes");
    }
    if (!out.in_blocks()) {
      expect_rows(scales.values(), s, of_scales, out.columns.blocks(), "scales");
    } else if (out.across) {
      expect_rows(scales.values(), first, by_block(of_scales, width, 1), width, "scales");
    } else {
      expect_rows(scales.values(), begin, of_scales, out.columns.blocks(), "scales");
    }
  }
}

TEST_P(QuantizeSegmentsTest, each_segment_has_the_codes_and_scales_that_it_has_alone) {
  Context context = test_context(GetParam(), 2);
  for (const std::int64_t block : {std::int64_t{0}, kBlock}) {
    for (const ScaleDim& columns : {columns_of(block, {{16}}), columns_of(block, {{200}, {136}}),
                                    columns_of(block, {{72, 40, 300}, {256}})}) {
      for (const bool across : {false, true}) {
        for (const DType format : {DType::kF8E4M3, DType::kF8E5M2}) {
          for (const Begins& begins : kSegments) {
            SCOPED_TRACE(testing::Message()
                         << "block " << block << " columns " << columns.size()
                         << (across ? " across" : " along") << " segments to " << begins.back());
            const std::int64_t most = begins.back() + 9, segments = std::ssize(begins) - 1;
            const TestTensor x = TestTensor::random(DType::kBF16, {most, columns.size()}, 1);
            const TestTensor table =
                TestTensor::of(DType::kI32, {std::ssize(begins)}, {begins.begin(), begins.end()});
            TestTensor codes(format,
                             QuantizedSegments::codes_shape(most, segments, columns, across));
            TestTensor scales(DType::kF32,
                              QuantizedSegments::scales_shape(most, segments, columns, across));
            const QuantizedSegments out(codes, scales, columns, across);
            quantize_segments(context, {out, x, table});
            test_device::synchronize();
            expect_segments(x, begins, out, codes, scales);
          }
        }
      }
    }
  }
}

TEST_P(QuantizeSegmentsTest, tokens_have_the_codes_of_their_gathered_rows) {
  Context context = test_context(GetParam(), 2);
  constexpr std::int64_t kTokens = 61, kSlots = 3;
  for (const ScaleDim& columns :
       {columns_of(kBlock, {{16}}), columns_of(kBlock, {{72, 40}, {264}})}) {
    const TestTensor x = TestTensor::random(DType::kBF16, {kTokens, columns.size()}, 1);
    for (const Begins& begins : kSegments) {
      const std::int64_t most = begins.back() + 9, segments = std::ssize(begins) - 1;
      TestTensor row_slot(DType::kI32, {most}), rows(DType::kBF16, {most, columns.size()});
      for (std::int64_t r = 0; r < most; ++r)
        row_slot.set(r, static_cast<double>(r * 37 % (kTokens * kSlots)));
      const TestTensor table =
          TestTensor::of(DType::kI32, {std::ssize(begins)}, {begins.begin(), begins.end()});
      gather_rows(context, rows, x, row_slot, table, kSlots);
      for (const bool across : {false, true}) {
        for (const DType format : {DType::kF8E4M3, DType::kF8E5M2}) {
          SCOPED_TRACE(testing::Message()
                       << "columns " << columns.size() << (across ? " across" : " along")
                       << " segments to " << begins.back());
          const auto codes_of = [&](const QuantizeSegments& args) {
            TestTensor codes(format,
                             QuantizedSegments::codes_shape(most, segments, columns, across));
            TestTensor scales(DType::kF32,
                              QuantizedSegments::scales_shape(most, segments, columns, across));
            QuantizeSegments with = args;
            with.out = {codes, scales, columns, across};
            quantize_segments(context, with);
            test_device::synchronize();
            return codes.bits() + scales.bits();
          };
          EXPECT_TRUE(codes_of({{}, x, table, row_slot, kSlots}) == codes_of({{}, rows, table}));
        }
      }
    }
  }
}

TEST_P(QuantizeSegmentsTest, gives_the_same_bits_in_every_order) {
  Context context = test_context(GetParam(), 2);
  const TestTensor x = TestTensor::random(DType::kBF16, {140, 72}, 1);
  const TestTensor table = TestTensor::of(DType::kI32, {3}, {0, 130, 140});
  for (const std::int64_t block : {std::int64_t{0}, kBlock}) {
    for (const bool across : {false, true}) {
      const ScaleDim columns(72, block);
      const Shape of_codes = QuantizedSegments::codes_shape(140, 2, columns, across),
                  of_scales = QuantizedSegments::scales_shape(140, 2, columns, across);
      expect_same_bits([&] {
        TestTensor codes(DType::kF8E4M3, of_codes), scales(DType::kF32, of_scales);
        quantize_segments(context, {{codes, scales, columns, across}, x, table});
        test_device::synchronize();
        return codes.bits() + scales.bits();
      });
    }
  }
}

TEST_P(QuantizeSegmentsTest, what_does_not_fit_is_refused) {
  Context context = test_context(GetParam());
  const ScaleDim columns(32, kBlock);
  const TestTensor x(DType::kBF16, {10, 32});
  const TestTensor table = TestTensor::of(DType::kI32, {3}, {0, 4, 10});
  TestTensor codes(DType::kF8E4M3, {10, 128}), scales(DType::kF32, {10, 1}),
      few(DType::kF32, {9, 1});
  const auto call = [&](TensorView of_scales, bool across) {
    quantize_segments(context, {{codes, of_scales, columns, across}, x, table});
  };
  expect_refused([&] { call(few, false); }, "out.scales");
  expect_refused([&] { call(scales, true); }, "out.codes");
  const TestTensor row_slot(DType::kI32, {10});
  TestTensor one(DType::kF32, {2, 1});
  expect_refused(
      [&] {
        quantize_segments(context, {{codes, one, ScaleDim(32, 0), false}, x, table, row_slot, 1});
      },
      "row_slot");
  expect_refused(
      [&] {
        quantize_segments(context, {{codes, scales, columns, false}, x, table, row_slot, 0});
      },
      "slots");
  if (context.on_gpu()) return;
  const TestTensor beyond = TestTensor::of(DType::kI32, {3}, {0, 4, 11});
  expect_refused(
      [&] {
        quantize_segments(context, {{codes, scales, columns, false}, x, beyond});
      },
      "begins");
}

}  // namespace
}  // namespace trireme
