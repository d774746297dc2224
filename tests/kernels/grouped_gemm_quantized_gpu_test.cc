// Products of experts in fp8 by the kernels of a GPU, beside sums in double of what codes and
// scales stand for. What stands outside of segments is not a number.
#include <cstring>
#include <deque>
#include <limits>

#include "kernels/gemm_quantized_support.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized.h"
#include "kernels/grouped_gemm_support.h"
#include "support/tree_sum.h"

namespace trireme {
namespace {

using namespace gemm_quantized_testing;

class GroupedGemmQuantizedGpu : public QuantizedGpuTest {};
TRIREME_FOR_ALL_ISAS(GroupedGemmQuantizedGpu);

constexpr int kNan = 0x7f;

void fill(TestTensor& tensor, double value) {
  for (std::int64_t i = 0; i < tensor.shape().count(); ++i) tensor.set(i, value);
}
void copy_rows(TestTensor& to, std::int64_t first, const TestTensor& from) {
  std::memcpy(to.view().rows(first, from.shape()[0]).data, from.view().data, from.view().bytes());
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Segments along their columns.
struct Along {
  std::deque<Operand> parts;  // a segment's; of one row, where it has none
  TestTensor codes, scales;
  ConstQuantizedSegments view;

  Along(DType format, const Begins& begins, const ScaleDim& columns, std::int64_t rows)
      : codes(format, {rows, columns.padded_size()}, 0),
        scales(DType::kF32,
               QuantizedSegments::scales_shape(rows, std::ssize(begins) - 1, columns, false)),
        view(codes, scales, columns, false) {
    const bool blocks = columns.block != 0;
    fill(codes, kNan);
    fill(scales, std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t s = 0; s + 1 < std::ssize(begins); ++s) {
      const std::int64_t count = begins[at(s + 1)] - begins[at(s)];
      parts.emplace_back(format, ScaleDim{std::max<std::int64_t>(count, 1), blocks ? 1 : 0},
                         columns, 10 + at(s));
      if (count == 0) continue;
      copy_rows(codes, begins[at(s)], parts.back().codes);
      copy_rows(scales, blocks ? begins[at(s)] : s, parts.back().scales);
    }
  }
};

/// Segments across.
struct Across {
  std::deque<Operand> parts;
  TestTensor codes, scales;
  ConstQuantizedSegments view;

  Across(DType format, const Begins& begins, const ScaleDim& columns, std::uint64_t seed)
      : codes(format,
              QuantizedSegments::codes_shape(begins.back(), std::ssize(begins) - 1, columns, true),
              0),
        scales(DType::kF32, QuantizedSegments::scales_shape(begins.back(), std::ssize(begins) - 1,
                                                            columns, true)),
        view(codes, scales, columns, true) {
    fill(codes, kNan);
    fill(scales, std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t s = 0; s + 1 < std::ssize(begins); ++s) add(begins, s, seed + at(s));
  }

 private:
  void add(const Begins& begins, std::int64_t s, std::uint64_t seed) {
    const ScaleDim& columns = view.columns;
    const bool blocks = view.in_blocks();
    const std::int64_t rows = begins[at(s + 1)] - begins[at(s)], m = columns.size(),
                       first = QuantizedSegments::first_block(s, begins[at(s)]);
    parts.emplace_back(codes.dtype(), columns.with_block(blocks ? 1 : 0),
                       ScaleDim{std::max<std::int64_t>(rows, 1), blocks ? 128 : 0}, seed);
    if (rows == 0) return;
    const std::vector<double> code = parts.back().codes.values(),
                              scale = parts.back().scales.values();
    const std::int64_t count = ceil_div(rows, 128);
    for (std::int64_t i = 0; i < m * count * 128; ++i) {
      const std::int64_t row = i / (count * 128), block = i / 128 % count;
      codes.set(((first + block) * m + row) * 128 + i % 128, code[at(i)]);
    }
    for (std::int64_t i = 0; i < std::ssize(scale); ++i)
      scales.set(blocks ? (first + i % count) * m + i / count : s * std::ssize(scale) + i,
                 scale[at(i)]);
  }
};

/// Weights of experts behind each other.
struct Weights {
  std::deque<Operand> parts;
  TestTensor codes, scales;
  ConstQuantizedMatrices view;

  Weights(DType format, std::int64_t experts, const ScaleDim& rows, const ScaleDim& columns)
      : codes(format, {experts, rows.size(), columns.padded_size()}, 0),
        scales(DType::kF32, {experts, rows.blocks(), columns.blocks()}),
        view(codes, scales, rows, columns, true) {
    for (std::int64_t g = 0; g < experts; ++g) {
      parts.emplace_back(format, rows, columns, 90 + at(g));
      const Operand& of = parts.back();
      std::memcpy(codes.view().rows(g, 1).data, of.codes.view().data, of.codes.view().bytes());
      std::memcpy(scales.view().rows(g, 1).data, of.scales.view().data, of.scales.view().bytes());
    }
  }
};

struct Recipe {
  ScaleDim rows, columns;  ///< of weights
};
/// Parts that begin inside a block; whole ones.
const Recipe kBlocks = {dim_of(128, {{100, 60}, {40, 128}, {36, 200}}),
                        dim_of(128, {{112, 64}, {80, 0}})};
const Recipe kWhole = {dim_of(0, {{104, 0}, {72, 0}}), dim_of(0, {{192, 0}})};

/// For wide tiles there may be as many rows as fill some for each expert.
constexpr int kMany = 1 << 20;

void expect_rows(Context& context, const Recipe& recipe, DType format_a, DType format_b) {
  const Begins begins = {0, 0, 3, 70, 210};
  constexpr std::int64_t kRows = 4 * 256;
  const std::int64_t experts = std::ssize(begins) - 1, n = recipe.rows.size();
  const Along a(format_a, begins, recipe.columns, kRows);
  const Weights b(format_b, experts, recipe.rows, recipe.columns);
  const TestTensor table_of_rows = table(begins);
  TestTensor c(DType::kBF16, {kRows, n}, 0);
  std::string first;
  for (const int multiprocessors : {1, kMany}) {
    context.set_multiprocessors(multiprocessors);
    fill(c, 2);
    grouped_gemm_quantized(context, {.c_RN = c, .a = a.view, .b = b.view, .begins = table_of_rows});
    context.synchronize();
    if (multiprocessors == 1) {
      first = c.bits();
      continue;
    }
    EXPECT_TRUE(c.bits() == first) << "narrow tiles";
  }
  Sums expected{std::vector<double>(at(kRows * n), 2), std::vector<double>(at(kRows * n))};
  for (std::int64_t s = 0; s < experts; ++s) {
    if (begins[at(s)] == begins[at(s + 1)]) continue;
    const Sums of = sums_of(a.parts[at(s)], b.parts[at(s)]);
    std::copy(of.sums.begin(), of.sums.end(), expected.sums.begin() + begins[at(s)] * n);
    std::copy(of.magnitudes.begin(), of.magnitudes.end(),
              expected.magnitudes.begin() + begins[at(s)] * n);
  }
  expect_product(c, expected, std::vector<double>(expected.sums.size()), bits_of_sums(256),
                 std::string(name_of(format_a)) + " rows");
}

TEST_P(GroupedGemmQuantizedGpu, rows_in_blocks) {
  Context context = test_context(GetParam());
  expect_rows(context, kBlocks, kE4M3, kE4M3);
  expect_rows(context, kBlocks, kE5M2, kE4M3);
}
TEST_P(GroupedGemmQuantizedGpu, rows_with_a_scale_for_each_segment) {
  Context context = test_context(GetParam());
  expect_rows(context, kWhole, kE4M3, kE5M2);
}

/// A tile's rows are of several sources, with a scale each.
TEST_P(GroupedGemmQuantizedGpu, rows_of_several_sources) {
  Context context = test_context(GetParam());
  const Begins begins = {0, 30, 30, 31, 75};
  const Along a(kE4M3, begins, kWhole.columns, 75);
  const Weights b(kE4M3, 2, kWhole.rows, kWhole.columns);
  const TestTensor table_of_rows = table(begins);
  const std::int64_t n = kWhole.rows.size();
  TestTensor c(DType::kBF16, {75, n}, 0);
  expect_same_bits([&] {
    grouped_gemm_quantized(
        context, {.c_RN = c, .a = a.view, .b = b.view, .begins = table_of_rows, .sources = 2});
    context.synchronize();
    return c.bits();
  });
  for (std::int64_t s = 0; s < 4; ++s) {
    const std::int64_t rows = begins[at(s + 1)] - begins[at(s)];
    if (rows == 0) continue;
    TestTensor own(DType::kBF16, {rows, n}, 0);
    std::memcpy(own.view().data, c.view().rows(begins[at(s)], rows).data, own.view().bytes());
    const Sums of = sums_of(a.parts[at(s)], b.parts[at(s / 2)]);
    expect_product(own, of, std::vector<double>(of.sums.size()), bits_of_sums(192), "a source");
  }
}

void expect_weights(Context& context, std::int64_t block, DType format_a, DType format_b) {
  const ScaleDim m = dim_of(block, {{100, 60}, {40, 128}}), n = dim_of(block, {{136, 0}});
  const Begins begins = {0, 0, 5, 133, 133, 133, 333};
  constexpr std::int64_t kSources = 3;
  const Across a(format_a, begins, m, 10), b(format_b, begins, n, 50);
  const TestTensor table_of_rows = table(begins);
  const TestTensor before = TestTensor::random(DType::kF32, {2, 140, 136}, 5);
  for (const Accumulate accumulate : {Accumulate::kNo, Accumulate::kYes}) {
    TestTensor c = before;
    grouped_gemm_quantized_weights(context, {.c_GMN = c,
                                             .a = a.view,
                                             .b = b.view,
                                             .accumulate = accumulate,
                                             .begins = table_of_rows,
                                             .sources = kSources});
    context.synchronize();
    Sums expected;
    for (std::int64_t g = 0; g < 2; ++g) {
      Sums all{std::vector<double>(140 * 136), std::vector<double>(140 * 136)};
      for (std::int64_t s = g * kSources; s < (g + 1) * kSources; ++s) {
        if (begins[at(s)] == begins[at(s + 1)]) continue;
        const Sums of = sums_of(a.parts[at(s)], b.parts[at(s)]);
        for (std::size_t i = 0; i < of.sums.size(); ++i) {
          all.sums[i] += of.sums[i];
          all.magnitudes[i] += of.magnitudes[i];
        }
      }
      expected.sums.insert(expected.sums.end(), all.sums.begin(), all.sums.end());
      expected.magnitudes.insert(expected.magnitudes.end(), all.magnitudes.begin(),
                                 all.magnitudes.end());
    }
    const std::vector<double> start = accumulate == Accumulate::kYes
                                          ? before.values()
                                          : std::vector<double>(expected.sums.size());
    expect_product(c, expected, start, bits_of_sums(333),
                   std::string(name_of(format_a)) + " weights");
  }
}

TEST_P(GroupedGemmQuantizedGpu, weights_in_blocks) {
  Context context = test_context(GetParam());
  expect_weights(context, 128, kE4M3, kE4M3);
  expect_weights(context, 128, kE5M2, kE4M3);
}
TEST_P(GroupedGemmQuantizedGpu, weights_with_a_scale_for_each_segment) {
  Context context = test_context(GetParam());
  expect_weights(context, 0, kE4M3, kE5M2);
}

TEST_P(GroupedGemmQuantizedGpu, weights_of_segments_are_added_as_a_tree) {
  Context context = test_context(GetParam());
  const Begins begins = {0, 40, 40, 61, 61, 200};
  const ScaleDim m = {40, 128}, n = {72, 128};
  const Across a(kE4M3, begins, m, 10), b(kE4M3, begins, n, 50);
  TestTensor c(DType::kF32, {1, 40, 72}, 0), each(DType::kF32, {5, 40, 72}, 0);
  const TestTensor table_of_rows = table(begins);
  QuantizedGroupedGemmWeights args{
      .c_GMN = c, .a = a.view, .b = b.view, .begins = table_of_rows, .sources = 5};
  expect_same_bits([&] {
    grouped_gemm_quantized_weights(context, args);
    context.synchronize();
    return c.bits();
  });
  args.c_GMN = each;  // the segments as experts
  args.sources = 1;
  grouped_gemm_quantized_weights(context, args);
  context.synchronize();
  const std::vector<double> leaves = each.values(), sums = c.values();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(sums[i], tree_sum(5, [&](std::size_t p) {
                return static_cast<float>(leaves[p * sums.size() + i]);
              }));
  }
}

}  // namespace
}  // namespace trireme
