// The grouped kernels for Hopper: tiles that are whole, cut by an expert's end or without rows, in
// both sizes; segments whose rows end within a step.
#include <algorithm>
#include <limits>

#include "kernels/common/gpu_kernels.h"
#include "kernels/gemm_support.h"
#include "kernels/grouped_gemm/grouped_gemm_internal.h"
#include "kernels/grouped_gemm_support.h"
#include "support/tree_sum.h"

namespace trireme {
namespace {

using namespace grouped_gemm_internal;

const GroupedGemmHopperKernels* hopper(const Context& context) {
  return context.on_gpu() && runs_sm90a(info_of(context)) ? gpu_kernels().grouped_gemm_sm90
                                                          : nullptr;
}

class GroupedGemmHopper : public OpTest {
 protected:
  void SetUp() override {
    if (hopper(context_) == nullptr) GTEST_SKIP() << "kernels for Hopper";
  }
  void multiply(const GroupedGemm& args, bool wide) {
    context_.set_multiprocessors(wide ? 1 : kMany);
    const GroupedGemmGpuArgs raw = gpu_args(context_, args);
    ASSERT_TRUE(hopper(context_)->serves(raw));
    hopper(context_)->kernels.multiply(raw);
  }
  void weights(const GroupedGemmWeights& args, bool wide) {
    context_.set_multiprocessors(wide ? 1 : kMany);
    const GroupedGemmWeightsGpuArgs raw = gpu_args(context_, args);
    ASSERT_TRUE(hopper(context_)->serves_weights(raw));
    hopper(context_)->kernels.weights(raw);
  }

  static constexpr int kMany = 1 << 20;  ///< multiprocessors that only small tiles keep busy
  Context context_ = test_context(Isa::kAvx2);
};
TRIREME_FOR_ALL_ISAS(GroupedGemmHopper);

/// For wide tiles there may be as many rows as fill some for each expert.
Experts experts(const Begins& begins, std::int64_t sources, std::int64_t k, std::int64_t n,
                bool transpose_b = false) {
  const std::int64_t count = (std::ssize(begins) - 1) / sources;
  return {DType::kBF16,
          {count, k, n, transpose_b, begins, sources},
          {.rows_behind = std::max<std::int64_t>(3, 256 * count - begins.back()), .offset = 0}};
}

TEST_P(GroupedGemmHopper, rows_equal_the_reference_and_others_stay) {
  // Ends within a warp's rows, a warpgroup's, a tile's; empty at both ends and between.
  const std::vector<std::pair<Begins, std::int64_t>> segments = {
      {{0, 0, 5, 5, 6, 70, 198, 270, 270}, 1}, {{0, 0, 3, 66, 66, 66, 300}, 2}};
  for (const auto& [begins, sources] : segments) {
    for (const bool transpose : {false, true}) {
      Experts x = experts(begins, sources, 72, 136, transpose);
      const std::string before = x.c.bits();
      const std::vector<double> expected =
          reference::grouped_gemm(x.sizes, x.c.values(), x.a.values(), x.b.values());
      for (const bool wide : {false, true}) {
        SCOPED_TRACE(fmt::format("{} wide {}", x.name(), wide));
        std::memcpy(x.c.view().data, before.data(), before.size());
        multiply(x.product(), wide);
        expect_close(x.c.values(), expected, gemm_tolerance(DType::kBF16), "rows");
      }
    }
  }
}

/// Blocks take several tiles, and more columns of them than one.
TEST_P(GroupedGemmHopper, one_expert_with_almost_all_rows) {
  for (const bool transpose : {false, true}) {
    Experts x = experts({0, 7, 607, 610}, 1, 136, 264, transpose);
    const std::vector<double> expected =
        reference::grouped_gemm(x.sizes, x.c.values(), x.a.values(), x.b.values());
    multiply(x.product(), true);
    const std::string wide = x.c.bits();
    expect_close(x.c.values(), expected, gemm_tolerance(DType::kBF16), "rows");
    multiply(x.product(), false);
    EXPECT_EQ(x.c.bits(), wide);
  }
}

/// More than a warp looks at; few of them have rows.
TEST_P(GroupedGemmHopper, many_experts) {
  Begins begins = {0};
  for (int expert = 0; expert < 70; ++expert)
    begins.push_back(begins.back() + (expert % 23 == 22 ? 40 : 0));
  Experts x(DType::kBF16, {70, 8, 16, true, begins, 1}, {.offset = 0});
  const std::vector<double> expected =
      reference::grouped_gemm(x.sizes, x.c.values(), x.a.values(), x.b.values());
  multiply(x.product(), false);
  expect_close(x.c.values(), expected, gemm_tolerance(DType::kBF16), "rows");
}

TEST_P(GroupedGemmHopper, a_row_has_the_bits_that_it_has_alone) {
  Experts x = experts({0, 1, 90, 290}, 1, 200, 136, true);
  multiply(x.product(), false);
  const std::string all = x.c.bits();
  const std::size_t row = all.size() / static_cast<std::size_t>(x.rows);
  for (const auto& [expert, first, count] :
       {std::array<std::int64_t, 3>{0, 0, 1}, {1, 60, 30}, {2, 155, 1}, {2, 100, 150}}) {
    const TestTensor begins = table({0, count});
    TestTensor c(DType::kBF16, {count, x.sizes.n}, 0);
    GroupedGemm args = x.product();
    args.c_RN = c;
    args.a_RK = args.a_RK.rows(first, count);
    args.b = args.b.rows(expert, 1);
    args.begins = begins;
    multiply(args, true);
    EXPECT_EQ(c.bits(), all.substr(static_cast<std::size_t>(first) * row, c.bits().size()))
        << first << "+" << count;
  }
}

/// Rows of other experts and behind the last are not a number.
TEST_P(GroupedGemmHopper, weights_equal_the_reference_whatever_others_hold) {
  const std::vector<std::pair<Begins, std::int64_t>> segments = {
      {{0, 0, 5, 69, 201}, 1}, {{0, 3, 3, 3, 3, 130, 194}, 2}, {{0, 8, 80, 81}, 3}};
  for (const auto& [begins, sources] : segments) {
    for (const Accumulate accumulate : {Accumulate::kNo, Accumulate::kYes}) {
      const std::int64_t n = sources == 1 ? 264 : 72;  // of both halves of b, too
      Experts x = experts(begins, sources, 136, n);
      for (std::int64_t i = begins.back() * 136; i < x.rows * 136; ++i)
        x.a.set(i, std::numeric_limits<double>::quiet_NaN());
      for (std::int64_t i = begins.back() * n; i < x.rows * n; ++i)
        x.right.set(i, std::numeric_limits<double>::quiet_NaN());
      const std::string before = x.gradients.bits();
      std::vector<double> start = x.gradients.values();
      if (accumulate == Accumulate::kNo) std::fill(start.begin(), start.end(), 0);
      const std::vector<double> expected =
          reference::grouped_gemm_weights(x.sizes, start, x.a.values(), x.right.values());
      for (const bool wide : {false, true}) {
        SCOPED_TRACE(fmt::format("{} wide {}", x.name(), wide));
        std::memcpy(x.gradients.view().data, before.data(), before.size());
        weights(x.weights(accumulate), wide);
        expect_close(x.gradients.values(), expected, gemm_tolerance(DType::kF32), "weights");
      }
    }
  }
}

TEST_P(GroupedGemmHopper, an_experts_numbers_stay_its_own) {
  Experts x = experts({0, 40, 50, 120}, 1, 24, 40);
  weights(x.weights(Accumulate::kNo), false);
  const std::string before = x.gradients.bits();
  x.a.set(45 * 24, std::numeric_limits<double>::infinity());
  x.right.set(45 * 40, std::numeric_limits<double>::quiet_NaN());
  weights(x.weights(Accumulate::kNo), false);
  const std::size_t size = before.size() / 3;
  const std::string after = x.gradients.bits();
  EXPECT_EQ(after.substr(0, size), before.substr(0, size));
  EXPECT_NE(after.substr(size, size), before.substr(size, size));
  EXPECT_EQ(after.substr(2 * size), before.substr(2 * size));
}

TEST_P(GroupedGemmHopper, segments_are_added_as_a_tree_of_neighbours) {
  const Begins begins = {0, 0, 40, 40, 61, 61, 62, 130};
  for (const bool wide : {false, true}) {
    Experts x = experts(begins, 7, 136, 136);
    std::vector<std::vector<double>> leaves;
    for (std::size_t p = 0; p + 1 < begins.size(); ++p) {
      const TestTensor segment = table({begins[p], begins[p + 1]});
      GroupedGemmWeights args = x.weights(Accumulate::kNo);
      args.begins = segment;
      args.sources = 1;
      weights(args, wide);
      leaves.push_back(x.gradients.values());
    }
    std::vector<double> expected(leaves[0].size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] =
          tree_sum(leaves.size(), [&](std::size_t p) { return static_cast<float>(leaves[p][i]); });
    }
    weights(x.weights(Accumulate::kNo), wide);
    EXPECT_EQ(x.gradients.values(), expected) << wide;
  }
}

TEST_P(GroupedGemmHopper, gives_the_same_bits_in_every_order) {
  for (const bool wide : {false, true}) {
    Experts x = experts({0, 3, 20, 20, 160}, 2, 136, 72);
    expect_same_bits([&] {
      multiply(x.product(), wide);
      weights(x.weights(Accumulate::kNo), wide);
      context_.synchronize();
      return x.c.bits() + x.gradients.bits();
    });
  }
}

TEST_P(GroupedGemmHopper, serves_what_tma_takes_on_such_a_gpu) {
  static const GroupedGemmGpuKernels own{};
  const GpuTables both{&own, hopper(context_)}, without{&own, nullptr};
  gpu::Info other = info_of(context_);
  other.capability = 100;
  Experts x = experts({0, 2, 5}, 1, 24, 40);
  const auto rows = [&](const auto& change) {
    GroupedGemmGpuArgs args = gpu_args(context_, x.product());
    change(args);
    return &choose_kernels(both, info_of(context_), args) == &hopper(context_)->kernels;
  };
  EXPECT_TRUE(rows([](auto&) {}));
  EXPECT_FALSE(rows([](auto& args) { args.k = 20; }));
  EXPECT_FALSE(rows([](auto& args) { args.n = 20; }));
  EXPECT_FALSE(rows([](auto& args) { args.type = DType::kF32; }));
  EXPECT_FALSE(rows([](auto& args) { args.c = static_cast<std::byte*>(args.c) + 2; }));
  const auto gradients = [&](const auto& change) {
    GroupedGemmWeightsGpuArgs args = gpu_args(context_, x.weights(Accumulate::kNo));
    change(args);
    return &choose_kernels(both, info_of(context_), args) == &hopper(context_)->kernels;
  };
  EXPECT_TRUE(gradients([](auto&) {}));
  EXPECT_FALSE(gradients([](auto& args) { args.rows = 0; }));
  EXPECT_FALSE(gradients([](auto& args) { args.m = 20; }));
  EXPECT_FALSE(gradients([](auto& args) { args.type = DType::kF32; }));
  const GroupedGemmGpuArgs args = gpu_args(context_, x.product());
  EXPECT_EQ(&choose_kernels(both, other, args), &own);
  EXPECT_EQ(&choose_kernels(without, info_of(context_), args), &own);
}

}  // namespace
}  // namespace trireme
