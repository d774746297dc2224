#include "kernels/gemm/gemm.h"

#include <array>
#include <cmath>
#include <cstdlib>

#include "kernels/gemm/gemm_internal.h"
#include "kernels/gemm_support.h"

namespace trireme {
namespace {

class GemmOp : public OpTest {};
TRIREME_FOR_ALL_ISAS(GemmOp);

using Multiply = std::function<void(Context&, const Gemm&, gemm_internal::Sizes)>;

using Shapes = std::vector<std::array<std::int64_t, 3>>;
const Shapes kSmall = {{1, 1, 1}, {3, 7, 5}, {17, 33, 65}, {64, 9, 130}};

void expect_all_forms_equal_the_reference(Context& context, DType type, DType c_type,
                                          const Multiply& multiply, const Shapes& shapes = kSmall) {
  for (const auto& [m, n, k] : shapes) {
    for (const int transposes : {0, 1, 2, 3}) {
      const GemmOperands x({m, n, k, (transposes & 1) != 0, (transposes & 2) != 0}, type, c_type);
      const std::vector<double> zero(static_cast<std::size_t>(m * n));
      Gemm args = x.args;
      TestTensor c = x.before;
      args.c_MN = c;
      multiply(context, args, {m, n, k});
      expect_close(c.values(), x.expected(zero), gemm_tolerance(c_type), "product");
      args.bias_N = x.bias;
      multiply(context, args, {m, n, k});
      expect_close(c.values(), x.expected(x.bias_rows()), gemm_tolerance(c_type),
                   "product with bias");
      if (c_type == DType::kBF16) continue;
      c = x.before;
      args.c_MN = c;
      args.bias_N = {};
      args.accumulate = Accumulate::kYes;
      multiply(context, args, {m, n, k});
      expect_close(c.values(), x.expected(x.before.values()), gemm_tolerance(c_type),
                   "accumulated product");
    }
  }
}

/// Of a CPU; a GPU has one way.
std::vector<int> thread_counts(Isa isa, std::vector<int> of_cpu) {
  return test_context(isa).on_gpu() ? std::vector<int>{1} : of_cpu;
}

void multiply_by_op(Context& context, const Gemm& args, gemm_internal::Sizes) {
  gemm(context, args);
}

TEST_P(GemmOp, tiles_of_threads_and_of_long_sides_make_the_whole_product) {
  const bool gpu = test_context(GetParam()).on_gpu();
  const std::int64_t longest = gpu ? 1003 : 17003;  // beyond the cuts of each
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{200, 211, 7},
                                {391, 100, 5},
                                {3, longest, 2},
                                {longest, 3, 2},
                                {193, longest, 1}}) {
    for (const int transposes : {0, 1, 2, 3}) {
      const GemmOperands x({m, n, k, (transposes & 1) != 0, (transposes & 2) != 0}, DType::kF32,
                           DType::kF32);
      const std::vector<double> expected = x.expected(x.before.values());
      for (const int threads : thread_counts(GetParam(), {1, 2, 4})) {
        Context context = test_context(GetParam(), threads);
        TestTensor c = x.before;
        Gemm args = x.args;
        args.c_MN = c;
        args.accumulate = Accumulate::kYes;
        gemm(context, args);
        expect_close(c.values(), expected, gemm_tolerance(DType::kF32), "accumulated product");
      }
    }
  }
}

TEST_P(GemmOp, tiles_of_threads_make_the_whole_product_of_bf16) {
  for (const int threads : thread_counts(GetParam(), {1, 2, 4})) {
    Context context = test_context(GetParam(), threads);
    for (const DType c_type : {DType::kF32, DType::kBF16}) {
      expect_all_forms_equal_the_reference(context, DType::kBF16, c_type, multiply_by_op,
                                           {{200, 211, 8}, {391, 230, 38}});
    }
  }
}

TEST(Gemm, ours_multiplies_what_it_can_multiply_fast) {
  const CpuProduct f32{}, none{};
  CpuProduct bf16{};
  bf16.multiply = [](const ProductArgs&, float*) {};
  bf16.k_at_once = 64;
  const GemmKernels without = {nullptr, nullptr, &f32, &none, nullptr},
                    pairs = {nullptr, nullptr, &f32, &bf16, nullptr};
  const auto own = [&](const GemmKernels& kernels, DType type, DType c_type, GemmSizes sizes,
                       bool transpose_a = false, bool add = false, bool tiles = false) {
    ProductArgs args{};
    args.sizes = sizes;
    args.type = type;
    args.c_type = c_type;
    args.transpose_a = transpose_a;
    args.add = add;
    return gemm_internal::own_kernel(kernels, args, tiles);
  };
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
  EXPECT_EQ(own(without, kF32, kF32, {128, 3, 5}), &f32);
  EXPECT_EQ(own(without, kF32, kF32, {127, 3, 5}), nullptr);
  EXPECT_EQ(own(without, kBF16, kF32, {128, 3, 6}), nullptr);
  for (const DType c_type : {kF32, kBF16}) {
    EXPECT_EQ(own(pairs, kBF16, c_type, {128, 3, 64}), &bf16);
    EXPECT_EQ(own(pairs, kBF16, c_type, {127, 3, 64}), nullptr);
    EXPECT_EQ(own(pairs, kBF16, c_type, {128, 3, 63}), nullptr);
    EXPECT_EQ(own(pairs, kBF16, c_type, {128, 3, 64}, false, false, true), nullptr);
  }
  EXPECT_EQ(own(pairs, kBF16, kF32, {128, 3, 66}), &bf16);
  EXPECT_EQ(own(pairs, kBF16, kBF16, {128, 3, 66}), nullptr);
  EXPECT_EQ(own(pairs, kBF16, kF32, {128, 3, 64}, false, true), &bf16);
  EXPECT_EQ(own(pairs, kBF16, kBF16, {128, 3, 64}, false, true), nullptr);
  EXPECT_EQ(own(pairs, kBF16, kF32, {128, 3, 63}, true), &bf16);
  EXPECT_EQ(own(pairs, kBF16, kBF16, {128, 3, 64}, true), nullptr);
}

TEST_P(GemmOp, values_by_hand) {
  Context context = test_context(GetParam());
  const TestTensor a = TestTensor::of(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const TestTensor b = TestTensor::of(DType::kF32, {3, 2}, {1, 0, 0, 1, 1, 1});
  const TestTensor bias = TestTensor::of(DType::kF32, {2}, {10, 20});
  TestTensor c(DType::kF32, {2, 2});
  gemm(context, {.c_MN = c, .a = a, .b = b, .bias_N = bias});
  EXPECT_EQ(c.values(), (std::vector<double>{14, 25, 20, 31}));
}

TEST_P(GemmOp, every_form_equals_the_reference_for_any_thread_count) {
  for (const int threads : thread_counts(GetParam(), {1, 2, 3})) {
    Context context = test_context(GetParam(), threads);
    expect_all_forms_equal_the_reference(context, DType::kF32, DType::kF32, multiply_by_op);
    expect_all_forms_equal_the_reference(context, DType::kBF16, DType::kF32, multiply_by_op);
    expect_all_forms_equal_the_reference(context, DType::kBF16, DType::kBF16, multiply_by_op);
  }
}

TEST_P(GemmOp, a_long_sum_over_rows_2_kb_apart_equals_the_reference) {
  for (const int threads : thread_counts(GetParam(), {1, 2})) {
    Context context = test_context(GetParam(), threads);
    expect_all_forms_equal_the_reference(context, DType::kF32, DType::kF32, multiply_by_op,
                                         {{512, 5, 411}, {512, 200, 576}});
  }
}

TEST_P(GemmOp, a_sum_that_threads_share_out_equals_the_reference) {
  for (const int threads : thread_counts(GetParam(), {2, 3, 4})) {
    Context context = test_context(GetParam(), threads);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      expect_all_forms_equal_the_reference(context, type, DType::kF32, multiply_by_op,
                                           {{128, 37, 301}, {67, 64, 262}});
    }
  }
}

TEST(Gemm, threads_share_out_the_tokens_of_small_weight_gradients_alone) {
  const auto cuts = [](int threads, GemmSizes sizes, bool transpose_a = true,
                       bool transpose_b = false, std::int64_t gap = 0, DType type = DType::kF32,
                       DType c_type = DType::kF32) {
    ProductArgs args{};
    args.sizes = sizes;
    args.type = type;
    args.c_type = c_type;
    args.transpose_a = transpose_a;
    args.transpose_b = transpose_b;
    args.c_stride = sizes.n + gap;
    return gemm_internal::cuts_tokens(threads, args);
  };
  for (const int threads : {2, 3, 4}) {
    EXPECT_TRUE(cuts(threads, {128, 37, 301}));
    EXPECT_TRUE(cuts(threads, {67, 64, 262}));
    EXPECT_FALSE(cuts(threads, {128, 37, 301}, false));
    EXPECT_FALSE(cuts(threads, {128, 37, 301}, true, true));
    EXPECT_FALSE(cuts(threads, {128, 37, 301}, true, false, 1));
    EXPECT_FALSE(cuts(threads, {128, 37, 60}));        // few tokens
    EXPECT_FALSE(cuts(threads, {3, 7, 256}));          // little work
    EXPECT_FALSE(cuts(threads, {128, 128, 100'000}));  // beyond the caches
    EXPECT_FALSE(cuts(threads, {700, 700, 300}));      // sums larger than operands
  }
  EXPECT_FALSE(cuts(1, {128, 37, 301}));
  // Half the bytes: twice as many tokens stay in caches, and sums count twice as much.
  EXPECT_FALSE(cuts(2, {128, 128, 3000}));
  EXPECT_TRUE(cuts(2, {128, 128, 3000}, true, false, 0, DType::kBF16));
  EXPECT_TRUE(cuts(2, {250, 250, 800}));
  EXPECT_FALSE(cuts(2, {250, 250, 800}, true, false, 0, DType::kBF16));
  EXPECT_FALSE(cuts(2, {128, 37, 301}, true, false, 0, DType::kBF16, DType::kBF16));
}

TEST_P(GemmOp, every_way_equals_the_reference) {
  Context context = test_context(GetParam(), 2);
  if (context.on_gpu()) GTEST_SKIP() << "ways of the CPU";
  expect_all_forms_equal_the_reference(
      context, DType::kF32, DType::kF32,
      [](Context& by, const Gemm& args, gemm_internal::Sizes) { gemm_by_library(by, args); });
  expect_all_forms_equal_the_reference(context, DType::kBF16, DType::kBF16,
                                       gemm_internal::gemm_by_panels);
  if (!gemm_internal::library_multiplies_bf16()) return;
  expect_all_forms_equal_the_reference(context, DType::kBF16, DType::kF32,
                                       gemm_internal::gemm_by_primitive);
  expect_all_forms_equal_the_reference(context, DType::kBF16, DType::kBF16,
                                       gemm_internal::gemm_by_primitive);
}

TEST_P(GemmOp, every_kernel_of_a_gpu_equals_the_reference) {
  Context context = test_context(GetParam());
  if (!context.on_gpu()) GTEST_SKIP() << "ways of GPUs";
  // Multiples of nothing, and of 8; less than a tile, one, and some of each.
  const Shapes shapes = {{5, 3, 2}, {67, 141, 33}, {264, 24, 456}, {136, 264, 72}};
  for (const GemmWay& way : gemm_ways(context)) {
    int served = 0;
    const auto multiply = [&](Context&, const Gemm& args, gemm_internal::Sizes) {
      const bool serves = way.serves(args);
      served += serves ? 1 : 0;
      serves ? way.run(args) : gemm(context, args);
    };
    SCOPED_TRACE(way.name);
    expect_all_forms_equal_the_reference(context, DType::kBF16, DType::kF32, multiply, shapes);
    expect_all_forms_equal_the_reference(context, DType::kBF16, DType::kBF16, multiply, shapes);
    expect_all_forms_equal_the_reference(context, DType::kF32, DType::kF32, multiply,
                                         {{5, 3, 2}, {131, 140, 33}});
    const bool aligned = std::getenv("TRIREME_TEST_ALIGNED") != nullptr;  // as Hopper's asks
    EXPECT_TRUE(served > 0 || !aligned);
  }
}

TEST_P(GemmOp, bf16_operands_larger_than_a_panel_are_cut_in_every_direction) {
  Context context = test_context(GetParam(), 2);
  if (context.on_gpu()) GTEST_SKIP() << "ways of the CPU";
  for (const int transposes : {0, 3}) {
    const bool transposed = transposes != 0;
    // One dim beyond its block at a time, and K beyond with two blocks of rows.
    for (const auto& [m, n, k] :
         {std::array<std::int64_t, 3>{2, 3, 4100}, {2, 1030, 3}, {520, 2, 3}, {515, 2, 4099}}) {
      const GemmOperands x({m, n, k, transposed, transposed}, DType::kBF16, DType::kBF16);
      Gemm args = x.args;
      TestTensor c(DType::kBF16, {m, n});
      args.c_MN = c;
      args.bias_N = x.bias;
      gemm_internal::gemm_by_panels(context, args, {m, n, k});
      expect_close(c.values(), x.expected(x.bias_rows()), {1.01 / 256, 1e-5}, "panels");
    }
  }
}

TEST_P(GemmOp, two_runs_give_the_same_bits) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Context context = test_context(GetParam(), 2);
    for (const reference::GemmCase& problem : {reference::GemmCase{33, 65, 100, false, false},
                                               reference::GemmCase{67, 64, 262, true, false}}) {
      const GemmOperands x(problem, type, DType::kF32);
      Gemm args = x.args;
      TestTensor c(DType::kF32, {problem.m, problem.n}), again(DType::kF32, {problem.m, problem.n});
      args.c_MN = c;
      gemm(context, args);
      args.c_MN = again;
      gemm(context, args);
      EXPECT_EQ(c.bits(), again.bits());
    }
  }
}

TEST_P(GemmOp, an_empty_sum_clears_or_leaves_or_gives_the_bias) {
  Context context = test_context(GetParam());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const TestTensor a(type, {2, 0}), b(type, {0, 3}), bias = TestTensor::of(type, {3}, {1, 2, 3});
    TestTensor c = TestTensor::of(DType::kF32, {2, 3}, {9, 9, 9, 9, 9, 9});
    gemm(context, {.c_MN = c, .a = a, .b = b, .accumulate = Accumulate::kYes});
    EXPECT_EQ(c.values(), std::vector<double>(6, 9.0));
    gemm(context, {.c_MN = c, .a = a, .b = b, .bias_N = bias});
    EXPECT_EQ(c.values(), (std::vector<double>{1, 2, 3, 1, 2, 3}));
    gemm(context, {.c_MN = c, .a = a, .b = b});
    EXPECT_EQ(c.values(), std::vector<double>(6, 0.0));
  }
}

TEST_P(GemmOp, no_rows_or_columns_is_no_work) {
  Context context = test_context(GetParam());
  TestTensor none(DType::kF32, {0, 3}), narrow(DType::kF32, {3, 0});
  gemm(context, {.c_MN = none,
                 .a = TensorView(nullptr, DType::kF32, {0, 2}),
                 .b = TestTensor(DType::kF32, {2, 3})});
  gemm(context, {.c_MN = narrow,
                 .a = TestTensor(DType::kF32, {3, 2}),
                 .b = TensorView(nullptr, DType::kF32, {2, 0})});
}

TEST_P(GemmOp, what_stood_in_c_has_no_influence_without_accumulate) {
  Context context = test_context(GetParam());
  const GemmOperands x({3, 4, 5}, DType::kF32, DType::kF32);
  TestTensor c = TestTensor::of(DType::kF32, {3, 4}, std::vector<double>(12, std::nan("")));
  Gemm args = x.args;
  args.c_MN = c;
  gemm(context, args);
  expect_close(c.values(), x.expected(std::vector<double>(12)), gemm_tolerance(DType::kF32),
               "product");
}

TEST_P(GemmOp, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  TestTensor c(DType::kF32, {2, 3}), h(DType::kBF16, {2, 3});
  const TestTensor a(DType::kF32, {2, 4}), b(DType::kF32, {4, 3}), bias(DType::kF32, {4}),
      vector(DType::kF32, {4});
  expect_refused([&] { gemm(context, {.c_MN = c, .a = a, .b = a}); },
                 "gemm.b: expected [4, 4] fp32, found [2, 4] fp32");
  expect_refused([&] { gemm(context, {.c_MN = h, .a = a, .b = b}); },
                 "gemm.c: expected [2, 3] fp32, found [2, 3] bf16");
  expect_refused([&] { gemm(context, {.c_MN = c, .a = vector, .b = b}); },
                 "gemm.a: expected 2 dims, found [4] fp32");
  expect_refused([&] { gemm(context, {.c_MN = c, .a = a, .b = b, .bias_N = bias}); },
                 "gemm.bias: expected [3] fp32, found [4] fp32");
  const TestTensor row(DType::kF32, {3});
  expect_refused(
      [&] {
        gemm(context, {.c_MN = c, .a = a, .b = b, .accumulate = Accumulate::kYes, .bias_N = row});
      },
      "gemm.bias: expected nothing with accumulate");
  TestTensor s(DType::kF32, {4, 4});
  expect_refused(
      [&] {
        gemm(context, {.c_MN = s, .a = s, .b = TestTensor(DType::kF32, {4, 4})});
      },
      "gemm.c: shares memory with a");
  const TestTensor ha(DType::kBF16, {2, 4}), hb(DType::kBF16, {4, 3});
  expect_refused(
      [&] { gemm(context, {.c_MN = h, .a = ha, .b = hb, .accumulate = Accumulate::kYes}); },
      "gemm.c: a bf16 result accumulates nothing");
}

}  // namespace
}  // namespace trireme
