#include "kernels/grouped_gemm/grouped_gemm_quantized.h"

#include "kernels/common/gpu_kernels.h"
#include "kernels/gemm_support.h"
#include "kernels/grouped_gemm_reference.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_segments.h"
#include "kernels/quantize_reference.h"

namespace trireme {
namespace {

constexpr std::int64_t kBlock = QuantizedSegments::kBlock;
constexpr DType kE4M3 = DType::kF8E4M3, kE5M2 = DType::kF8E5M2;
using Begins = std::vector<std::int64_t>;

class GroupedGemmQuantizedTest : public OpTest {
  void SetUp() override {
    if (test_context(GetParam()).on_gpu() && gpu_kernels().grouped_gemm_fp8_sm90 == nullptr)
      GTEST_SKIP() << "no kernels for fp8 products of experts";
  }
};
TRIREME_FOR_ALL_ISAS(GroupedGemmQuantizedTest);

struct Rows {
  Begins begins;
  std::int64_t sources;
  [[nodiscard]] TestTensor table() const {
    return TestTensor::of(DType::kI32, {std::ssize(begins)}, {begins.begin(), begins.end()});
  }
  [[nodiscard]] std::int64_t segments() const { return std::ssize(begins) - 1; }
  [[nodiscard]] std::int64_t experts() const { return segments() / sources; }
  /// Some lie behind the last segment.
  [[nodiscard]] std::int64_t most() const { return begins.back() + 3; }
  [[nodiscard]] std::int64_t segment_of(std::int64_t row) const {
    std::int64_t s = 0;
    while (s < segments() && begins[static_cast<std::size_t>(s) + 1] <= row) ++s;
    return s;
  }
};
/// Empty experts, one of a row, one of more than a block; two sources, of which some have nothing.
const std::vector<Rows> kRows = {{{0, 0, 5, 5, 6, 145, 145}, 1},
                                 {{0, 0, 3, 9, 9, 9, 140, 141, 160}, 2},
                                 {{0, 0, 0}, 1},
                                 {{4, 9}, 1}};

ScaleDim dim_of(std::int64_t block, std::initializer_list<ScaleDim::Part> parts) {
  ScaleDim dim;
  dim.block = block;
  for (const ScaleDim::Part& part : parts) dim.add(part);
  return dim;
}

/// A GPU whose code a host executes has time for a fifth of the cases, mixed.
class Sample {
 public:
  explicit Sample(const Context& context) : step_(context.on_gpu() ? 5 : 1) {}
  bool takes_next() { return number_++ % step_ == 0; }

 private:
  int step_, number_ = 0;
};

/// Rows of x in fp8, and the values that their codes stand for, by the definition. Codes begin
/// where TMA can take them.
struct SegmentRows {
  TestTensor codes, scales;
  ScaleDim columns;
  bool across;
  std::vector<double> values;  ///< [most, columns]

  SegmentRows(Context& context, const Rows& rows, const ScaleDim& columns_, bool across_,
              DType format, std::uint64_t seed)
      : codes(format,
              QuantizedSegments::codes_shape(rows.most(), rows.segments(), columns_, across_), 0),
        scales(DType::kF32,
               QuantizedSegments::scales_shape(rows.most(), rows.segments(), columns_, across_)),
        columns(columns_),
        across(across_) {
    const TestTensor x = TestTensor::random(DType::kBF16, {rows.most(), columns.size()}, seed);
    quantize_segments(context, {{codes, scales, columns, across}, x, rows.table()});
    test_device::synchronize();
    decode(rows);
  }
  ConstQuantizedSegments view() const { return {codes.view(), scales.view(), columns, across}; }

 private:
  void decode(const Rows& rows) {
    const std::vector<double> code = codes.values(), scale = scales.values();
    const std::int64_t width = columns.size();
    for (std::int64_t r = 0; r < rows.most(); ++r) {
      const std::int64_t s = rows.segment_of(r);
      for (std::int64_t c = 0; c < width; ++c) {
        if (s == rows.segments() || r < rows.begins[0]) {
          values.push_back(0);
          continue;
        }
        const reference::Place at = reference::place_of(columns, c);
        const std::int64_t in = r - rows.begins[static_cast<std::size_t>(s)];
        const std::int64_t block =
            QuantizedSegments::first_block(s, rows.begins[static_cast<std::size_t>(s)]) +
            in / kBlock;
        const std::int64_t i = across ? (block * width + c) * kBlock + in % kBlock
                                      : r * columns.padded_size() + at.padded;
        const std::int64_t of_scale = columns.block == 0 ? s * columns.blocks() + at.block
                                      : across           ? block * width + c
                                                         : r * columns.blocks() + at.block;
        values.push_back(
            reference::value_of_code(static_cast<std::uint32_t>(code[static_cast<std::size_t>(i)]),
                                     codes.dtype()) *
            scale[static_cast<std::size_t>(of_scale)]);
      }
    }
  }
};

/// Weights [G, N, K] in fp8, and their values.
struct Weights {
  ScaleDim rows, columns;
  TestTensor codes, scales;
  std::vector<double> values;

  Weights(Context& context, std::int64_t experts, const ScaleDim& rows_, const ScaleDim& columns_)
      : rows(rows_),
        columns(columns_),
        codes(kE4M3, {experts, rows.size(), columns.padded_size()}, 0),
        scales(DType::kF32, {experts, rows.blocks(), columns.blocks()}) {
    for (std::int64_t g = 0; g < experts; ++g) {
      const TestTensor x = TestTensor::random(DType::kBF16, {rows.size(), columns.size()},
                                              100 + static_cast<std::uint64_t>(g));
      Quantize one;
      one.out = QuantizedMatrices(codes.view(), scales.view(), rows, columns, true)[g];
      one.x = x;
      quantize(context, one);
      test_device::synchronize();
      const reference::Quantized expected = reference::quantize(x.values(), rows, columns, kE4M3);
      const std::vector<double> of = reference::dequantize(expected, rows, columns, kE4M3);
      values.insert(values.end(), of.begin(), of.end());
    }
  }
  ConstQuantizedMatrices view() const { return {codes.view(), scales.view(), rows, columns, true}; }
};

/// A tensor core's sums have 13 bits of the largest of their terms.
Tolerance tolerance(DType c) {
  Tolerance of = gemm_tolerance(c);
  if (test_device::tensor_core_sums()) of.of_largest = std::max(of.of_largest, 1.0 / 2048);
  return of;
}

TEST_P(GroupedGemmQuantizedTest, rows_are_products_with_their_experts_and_others_stay) {
  Context context = test_context(GetParam(), 3);
  Sample sample(context);
  for (const std::int64_t block : {std::int64_t{0}, kBlock}) {
    for (const DType format : {kE4M3, kE5M2}) {
      for (const ScaleDim& k : {dim_of(block, {{32}}), dim_of(block, {{304}}),
                                dim_of(block, {{96}, {96}}), dim_of(block, {{64, 96, 160}})}) {
        for (const Rows& rows : kRows) {
          if (!sample.takes_next()) continue;
          const ScaleDim n = dim_of(block, {{48}, {160}});
          SCOPED_TRACE(testing::Message() << "block " << block << " k " << k.size() << " rows "
                                          << rows.begins.back() << " " << name_of(format));
          const TestTensor table = rows.table();
          const SegmentRows a(context, rows, k, false, format, 1);
          const Weights b(context, rows.experts(), n, k);
          TestTensor c = TestTensor::random(DType::kBF16, {rows.most(), n.size()}, 3);
          const reference::GroupedCase sizes{rows.experts(), k.size(),    n.size(),
                                             true,           rows.begins, rows.sources};
          const std::vector<double> expected =
              reference::grouped_gemm(sizes, c.values(), a.values, b.values);
          QuantizedGroupedGemm args;
          args.c_RN = c;
          args.a = a.view();
          args.b = b.view();
          args.begins = table;
          args.sources = rows.sources;
          for (const bool precise : {true, false}) {
            args.precise_sums = precise || block != 0;
            grouped_gemm_quantized(context, args);
            test_device::synchronize();
            expect_close(c.values(), expected, tolerance(DType::kBF16), "rows");
          }
        }
      }
    }
  }
}

TEST_P(GroupedGemmQuantizedTest, weights_are_products_of_the_rows_of_each_expert) {
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    Sample sample(context);
    for (const std::int64_t block : {std::int64_t{0}, kBlock}) {
      for (const Rows& rows : kRows) {
        for (const Accumulate accumulate : {Accumulate::kNo, Accumulate::kYes}) {
          if (!sample.takes_next()) continue;
          const ScaleDim m = dim_of(block, {{48}, {112, 16, 300}}), n = dim_of(block, {{272}});
          SCOPED_TRACE(testing::Message() << "block " << block << " rows " << rows.begins.back());
          const TestTensor table = rows.table();
          const SegmentRows a(context, rows, m, true, kE5M2, 1);
          const SegmentRows b(context, rows, n, true, kE4M3, 2);
          TestTensor c = TestTensor::random(DType::kF32, {rows.experts(), m.size(), n.size()}, 3);
          std::vector<double> start = c.values();
          if (accumulate == Accumulate::kNo) std::fill(start.begin(), start.end(), 0);
          const reference::GroupedCase sizes{rows.experts(), m.size(),    n.size(),
                                             false,          rows.begins, rows.sources};
          const std::vector<double> expected =
              reference::grouped_gemm_weights(sizes, start, a.values, b.values);
          grouped_gemm_quantized_weights(context,
                                         {c, a.view(), b.view(), accumulate, table, rows.sources});
          test_device::synchronize();
          expect_close(c.values(), expected, tolerance(DType::kF32), "weights");
        }
      }
    }
  }
}

/// What a row comes to depends on nothing beside it.
TEST_P(GroupedGemmQuantizedTest, a_row_has_the_bits_that_it_has_alone) {
  Context context = test_context(GetParam(), 2);
  const ScaleDim k = dim_of(kBlock, {{304}}), n = dim_of(kBlock, {{160}});
  const Rows many = {{0, 70, 300}, 1}, few = {{0, 3, 233}, 1};
  const TestTensor table = many.table(), part = few.table();
  const SegmentRows a(context, many, k, false, kE4M3, 1);
  const Weights b(context, 2, n, k);
  TestTensor all(DType::kBF16, {many.most(), n.size()}),
      without(DType::kBF16, {few.most(), n.size()});
  grouped_gemm_quantized(context, {all, a.view(), b.view(), table});
  // Rows 67 to 300, of which the first three are the first expert's.
  const ConstQuantizedSegments rest(a.codes.view().rows(67, few.most()),
                                    a.scales.view().rows(67, few.most()), k, false);
  grouped_gemm_quantized(context, {without, rest, b.view(), part});
  test_device::synchronize();
  const std::vector<double> x = all.values(), y = without.values();
  for (std::size_t i = 0; i < static_cast<std::size_t>(233 * n.size()); ++i)
    ASSERT_EQ(x[i + static_cast<std::size_t>(67 * n.size())], y[i]) << i;
}

TEST_P(GroupedGemmQuantizedTest, what_does_not_fit_is_refused) {
  Context context = test_context(GetParam());
  const Rows rows = {{0, 5, 9}, 1};
  const TestTensor table = rows.table();
  const ScaleDim k(32, kBlock), n(48, kBlock);
  const SegmentRows along(context, rows, k, false, kE4M3, 1),
      across(context, rows, k, true, kE5M2, 1);
  const Weights b(context, 2, n, k), other(context, 2, n, ScaleDim(64, kBlock));
  TestTensor c(DType::kBF16, {rows.most(), 48}), wide(DType::kF32, {2, 32, 32});
  expect_refused(
      [&] {
        grouped_gemm_quantized(context, {c, across.view(), b.view(), table});
      },
      "lies along");
  expect_refused(
      [&] {
        grouped_gemm_quantized(context, {c, along.view(), other.view(), table});
      },
      "K");
  expect_refused(
      [&] {
        grouped_gemm_quantized_weights(
            context, {wide, across.view(), across.view(), Accumulate::kNo, table});
      },
      "e5m2");
}

}  // namespace
}  // namespace trireme
