#include "kernels/grouped_gemm/grouped_gemm.h"

#include <algorithm>
#include <cstring>

#include "kernels/gemm_support.h"
#include "kernels/grouped_gemm_support.h"
#include "support/tree_sum.h"

namespace trireme {
namespace {

class GroupedGemmTest : public OpTest {};
TRIREME_FOR_ALL_ISAS(GroupedGemmTest);

/// The numbers of threads to test; a GPU has its own.
std::vector<int> threads_to_test(Isa isa) {
  return test_context(isa).on_gpu() ? std::vector{1} : std::vector{1, 2, 3};
}

/// Empty experts at both ends and between, one of a row, one of many; then two sources.
const std::vector<std::pair<Begins, std::int64_t>> kSegments = {
    {{0, 0, 5, 5, 6, 71, 71}, 1}, {{0, 0, 3, 9, 9, 9, 9, 10, 40}, 2}, {{0, 0, 0}, 1}, {{4, 9}, 1}};

TEST_P(GroupedGemmTest, rows_are_products_with_their_experts_and_others_stay) {
  for (const int threads : threads_to_test(GetParam())) {
    Context context = test_context(GetParam(), threads);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const auto& [begins, sources] : kSegments) {
        for (const auto& [k, n] :
             {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 37}, {34, 65}, {130, 200}}) {
          for (const bool transpose : {false, true}) {
            Experts x(type, k, n, begins, sources, transpose);
            SCOPED_TRACE(x.name());
            const std::vector<double> expected =
                reference::grouped_gemm(x.sizes, x.c.values(), x.a.values(), x.b.values());
            grouped_gemm(context, x.product());
            expect_close(x.c.values(), expected, gemm_tolerance(type), "rows");
          }
        }
      }
    }
  }
}

TEST_P(GroupedGemmTest, weights_are_products_of_the_rows_of_each_expert) {
  for (const int threads : threads_to_test(GetParam())) {
    Context context = test_context(GetParam(), threads);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const auto& [begins, sources] : kSegments) {
        for (const auto& [m, n] :
             {std::pair<std::int64_t, std::int64_t>{1, 1}, {37, 7}, {65, 34}, {100, 131}}) {
          for (const Accumulate accumulate : {Accumulate::kNo, Accumulate::kYes}) {
            Experts x(type, m, n, begins, sources);
            SCOPED_TRACE(x.name());
            std::vector<double> start = x.gradients.values();
            if (accumulate == Accumulate::kNo) std::fill(start.begin(), start.end(), 0);
            const std::vector<double> expected =
                reference::grouped_gemm_weights(x.sizes, start, x.a.values(), x.right.values());
            grouped_gemm_weights(context, x.weights(accumulate));
            expect_close(x.gradients.values(), expected, gemm_tolerance(DType::kF32), "weights");
          }
        }
      }
    }
  }
}

/// K beyond what is multiplied at once, of bf16 pairs too; rows and columns beyond a part.
TEST_P(GroupedGemmTest, sums_of_a_long_k_are_rounded_once) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const auto& [k, transpose] :
         {std::pair<std::int64_t, bool>{2500, false}, {2500, true}, {2501, true}}) {
      Experts x(type, k, context.on_gpu() ? 5 : 70, {0, 13, 18}, 1, transpose);
      SCOPED_TRACE(x.name());
      const std::vector<double> expected =
          reference::grouped_gemm(x.sizes, x.c.values(), x.a.values(), x.b.values());
      grouped_gemm(context, x.product());
      expect_close(x.c.values(), expected, gemm_tolerance(type), "rows");
    }
  }
}

/// What `count` rows of an expert give alone.
std::string rows_alone(Context& context, Experts& x, std::int64_t expert, std::int64_t first,
                       std::int64_t count) {
  const TestTensor begins = table({0, count});
  TestTensor c(x.c.dtype(), {count, x.sizes.n});
  GroupedGemm args = x.product();
  args.c_RN = c;
  args.a_RK = args.a_RK.rows(first, count);
  args.b = args.b.rows(expert, 1);
  args.begins = begins;
  args.sources = 1;
  grouped_gemm(context, args);
  return c.bits();
}

TEST_P(GroupedGemmTest, a_row_has_the_bits_that_it_has_alone) {
  Context one = test_context(GetParam(), 1), three = test_context(GetParam(), 3);
  // A CPU cuts the third expert in rows and columns.
  const std::int64_t k = one.on_gpu() ? 70 : 402, n = one.on_gpu() ? 80 : 300;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const bool transpose : {false, true}) {
      Experts x(type, k, n, {0, 1, 20, 420}, 1, transpose);
      three.set_multiprocessors(1);  // tiles of another size
      grouped_gemm(one, x.product());
      const std::string all = x.c.bits();
      grouped_gemm(three, x.product());
      EXPECT_EQ(x.c.bits(), all) << x.name();
      const std::size_t row = all.size() / static_cast<std::size_t>(x.rows);
      for (const auto& [expert, first, count] : {std::array<std::int64_t, 3>{0, 0, 1},
                                                 {1, 1, 1},
                                                 {1, 5, 9},
                                                 {2, 20, 1},
                                                 {2, 29, 4},
                                                 {2, 401, 19},
                                                 {2, 100, 200}}) {
        EXPECT_EQ(rows_alone(three, x, expert, first, count),
                  all.substr(static_cast<std::size_t>(first) * row,
                             static_cast<std::size_t>(count) * row))
            << first << "+" << count << " of " << x.name();
      }
    }
  }
}

/// More than a warp looks at, and more tiles than blocks of a GPU that take turns; two of five
/// segments are empty.
TEST_P(GroupedGemmTest, of_many_experts_equal_the_reference) {
  Context context = test_context(GetParam(), 3);
  Begins begins = {0};
  for (std::int64_t segment = 0; segment < 2 * 300; ++segment)
    begins.push_back(begins.back() + segment % 5 % 3);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Experts x(type, 8, 10, begins, 2);
    const std::vector<double> rows =
        reference::grouped_gemm(x.sizes, x.c.values(), x.a.values(), x.b.values());
    const std::vector<double> gradients = reference::grouped_gemm_weights(
        x.sizes, std::vector<double>(x.gradients.values().size()), x.a.values(), x.right.values());
    grouped_gemm(context, x.product());
    grouped_gemm_weights(context, x.weights(Accumulate::kNo));
    expect_close(x.c.values(), rows, gemm_tolerance(type), "rows");
    expect_close(x.gradients.values(), gradients, gemm_tolerance(DType::kF32), "weights");
  }
}

/// Of a GPU that one block fills.
TEST_P(GroupedGemmTest, in_the_largest_tiles_equal_the_reference) {
  Context context = test_context(GetParam());
  context.set_multiprocessors(1);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const bool transpose : {false, true}) {
      Experts x(type, 130, 136, {0, 0, 128, 128, 257}, 2, transpose);
      const std::vector<double> rows =
          reference::grouped_gemm(x.sizes, x.c.values(), x.a.values(), x.b.values());
      const std::vector<double> gradients = reference::grouped_gemm_weights(
          x.sizes, x.gradients.values(), x.a.values(), x.right.values());
      grouped_gemm(context, x.product());
      expect_close(x.c.values(), rows, gemm_tolerance(type), "rows");
      if (transpose) continue;
      grouped_gemm_weights(context, x.weights(Accumulate::kYes));
      expect_close(x.gradients.values(), gradients, gemm_tolerance(DType::kF32), "weights");
    }
  }
}

/// The gradient of expert 0 of `x` over rows [first, last) alone.
std::vector<double> segment_alone(Context& context, Experts& x, std::int64_t first,
                                  std::int64_t last) {
  const TestTensor begins = table({first, last});
  TestTensor c(DType::kF32, {1, x.sizes.m, x.sizes.n});
  GroupedGemmWeights args = x.weights(Accumulate::kNo);
  args.c_GMN = c;
  args.begins = begins;
  args.sources = 1;
  grouped_gemm_weights(context, args);
  return c.values();
}

TEST_P(GroupedGemmTest, segments_are_added_as_a_tree_of_neighbours) {
  Context context = test_context(GetParam(), 2);
  const std::vector<std::pair<Begins, std::int64_t>> of_sources = {
      {{0, 40, 70}, 1},
      {{0, 11, 40, 40, 70}, 2},
      {{0, 11, 40, 61, 61, 65, 70}, 3},
      {{0, 11, 40, 61, 80, 81, 85, 85, 90}, 4},
      {{0, 0, 40, 40, 61, 61, 61, 70}, 7}};
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const auto& [begins, sources] : of_sources) {
      for (const Accumulate accumulate : {Accumulate::kNo, Accumulate::kYes}) {
        Experts x(type, context.on_gpu() ? 20 : 250, 70, begins, sources);
        SCOPED_TRACE(x.name());
        std::vector<std::vector<double>> leaves;
        for (std::size_t p = 0; p < static_cast<std::size_t>(sources); ++p)
          leaves.push_back(segment_alone(context, x, begins[p], begins[p + 1]));
        std::vector<double> expected = x.gradients.values();
        for (std::size_t i = 0; i < leaves[0].size(); ++i) {
          const float sum = tree_sum(static_cast<std::size_t>(sources), [&](std::size_t p) {
            return static_cast<float>(leaves[p][i]);
          });
          expected[i] = accumulate == Accumulate::kNo ? sum : static_cast<float>(expected[i]) + sum;
        }
        grouped_gemm_weights(context, x.weights(accumulate));
        std::vector<double> first = x.gradients.values();
        first.resize(leaves[0].size());
        expected.resize(leaves[0].size());
        EXPECT_EQ(first, expected);
      }
    }
  }
}

TEST_P(GroupedGemmTest, weights_have_the_same_bits_with_any_threads_and_among_other_experts) {
  Context one = test_context(GetParam(), 1), three = test_context(GetParam(), 3);
  three.set_multiprocessors(1);  // tiles of another size
  const std::int64_t m = one.on_gpu() ? 70 : 260, n = one.on_gpu() ? 40 : 530;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Experts x(type, m, n, {0, 7, 120, 120, 127, 128}, 5);
    Experts more(type, m, n, {0, 7, 120, 120, 127, 128, 128, 128, 128, 128, 131}, 5);
    grouped_gemm_weights(one, x.weights(Accumulate::kNo));
    const std::string alone = x.gradients.bits();
    grouped_gemm_weights(three, x.weights(Accumulate::kNo));
    EXPECT_EQ(x.gradients.bits(), alone);
    std::memcpy(more.a.view().data, x.a.view().data, x.a.view().rows(0, 128).bytes());
    std::memcpy(more.right.view().data, x.right.view().data, x.right.view().rows(0, 128).bytes());
    grouped_gemm_weights(three, more.weights(Accumulate::kNo));
    EXPECT_EQ(more.gradients.bits().substr(0, alone.size()), alone);
  }
}

TEST_P(GroupedGemmTest, an_expert_without_rows_has_no_gradient) {
  Context context = test_context(GetParam(), 2);
  Experts x(DType::kF32, 300, 40, {0, 0, 2, 2});
  const std::size_t size = x.gradients.bits().size() / 3;
  const std::string before = x.gradients.bits();
  grouped_gemm_weights(context, x.weights(Accumulate::kYes));
  const std::string added = x.gradients.bits();
  EXPECT_EQ(added.substr(0, size), before.substr(0, size));
  EXPECT_NE(added.substr(size, size), before.substr(size, size));
  EXPECT_EQ(added.substr(2 * size), before.substr(2 * size));
  grouped_gemm_weights(context, x.weights(Accumulate::kNo));
  EXPECT_EQ(x.gradients.bits().substr(0, size), std::string(size, '\0'));
  EXPECT_EQ(x.gradients.bits().substr(2 * size), std::string(size, '\0'));
}

TEST_P(GroupedGemmTest, gives_the_same_bits_in_every_order) {
  Context context = test_context(GetParam(), 3);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Experts x(type, 40, 70, {0, 3, 20, 20, 37}, 2);
    expect_same_bits([&] {
      grouped_gemm(context, x.product());
      grouped_gemm_weights(context, x.weights(Accumulate::kNo));
      context.synchronize();
      return x.c.bits() + x.gradients.bits();
    });
  }
}

TEST_P(GroupedGemmTest, refuses_operands_that_do_not_belong_together) {
  Context context = test_context(GetParam());
  Experts x(DType::kF32, 6, 4, {0, 2, 5}), narrow(DType::kBF16, 6, 4, {0, 2, 5});
  const auto refused = [&](const std::string& message, const auto& change) {
    GroupedGemm args = x.product();
    change(args);
    expect_refused([&] { grouped_gemm(context, args); }, message);
  };
  refused("grouped_gemm.b", [&](GroupedGemm& args) { args.b = narrow.b; });
  refused("grouped_gemm.b", [](GroupedGemm& args) { args.transpose_b = Transpose::kYes; });
  refused("grouped_gemm.c", [&](GroupedGemm& args) { args.c_RN = narrow.c; });
  refused("grouped_gemm.c", [](GroupedGemm& args) { args.c_RN = args.c_RN.rows(0, 5); });
  refused("grouped_gemm.begins", [](GroupedGemm& args) { args.sources = 2; });
  refused("grouped_gemm.sources", [](GroupedGemm& args) { args.sources = 0; });
  const auto refused_weights = [&](const std::string& message, const auto& change) {
    GroupedGemmWeights args = x.weights(Accumulate::kNo);
    change(args);
    expect_refused([&] { grouped_gemm_weights(context, args); }, message);
  };
  refused_weights("weights.b", [&](GroupedGemmWeights& args) { args.b_RN = narrow.right; });
  refused_weights("weights.b", [](GroupedGemmWeights& args) { args.b_RN = args.a_RM; });
  refused_weights("weights.a", [](GroupedGemmWeights& args) { args.a_RM = args.b_RN; });
  refused_weights("weights.begins", [](GroupedGemmWeights& args) { args.sources = 3; });
  refused_weights("weights.c", [&](GroupedGemmWeights& args) { args.c_GMN = narrow.b.view(); });
}

TEST_P(GroupedGemmTest, refuses_segments_outside_of_the_rows) {
  Context context = test_context(GetParam());
  if (context.on_gpu()) GTEST_SKIP() << "a GPU's segments are read by its kernels alone";
  for (const Begins& begins : {Begins{0, 3, 2}, Begins{0, 2, 9}, Begins{-1, 2, 3}}) {
    Experts x(DType::kF32, 6, 4, {0, 2, 5});
    const TestTensor wrong = table(begins);
    GroupedGemm args = x.product();
    args.begins = wrong;
    expect_refused([&] { grouped_gemm(context, args); }, "grouped_gemm.begins: segments");
    GroupedGemmWeights weights = x.weights(Accumulate::kNo);
    weights.begins = wrong;
    expect_refused([&] { grouped_gemm_weights(context, weights); }, "weights.begins: segments");
  }
}

}  // namespace
}  // namespace trireme
