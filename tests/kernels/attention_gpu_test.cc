// What only the GPU's kernels of attention can get wrong: tiles of many sizes, of aligned rows and
// not, skipped ones, and threads in any order.
#include <cmath>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/attention_support.h"

namespace trireme {
namespace {

using namespace attention_testing;

class AttentionGpu : public OpTest {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "tiles of GPUs";
  }
};
TRIREME_FOR_ALL_ISAS(AttentionGpu);

TEST_P(AttentionGpu, bf16_equals_the_reference_over_several_tiles_of_each_size) {
  for (const auto& [head_dim, tokens] : {std::pair<std::int64_t, std::int64_t>{64, 1},
                                         {64, 33},
                                         {64, 257},
                                         {32, 130},
                                         {80, 130},
                                         {96, 129},
                                         {128, 131},
                                         {256, 66}}) {
    const Sizes sizes{1, 2, 1, head_dim};
    const Problem problem(DType::kBF16, sizes, {{0, tokens}}, {{0, tokens}});
    expect_equal_to_reference(GetParam(), 1, problem, "D" + std::to_string(head_dim));
  }
}

TEST_P(AttentionGpu, bf16_equals_the_reference_for_documents_and_ranges_of_several_sequences) {
  for (const std::int64_t length : {5, 40, 100}) {
    Problem problem(DType::kBF16, {2, 4, 2, 16}, {{0, 70}, {150, 40}}, {{100, 20}, {20, 110}});
    problem.set_documents(length);
    expect_equal_to_reference(GetParam(), 1, problem, "documents of " + std::to_string(length));
  }
}

TEST_P(AttentionGpu, equals_the_reference_for_more_ranges_than_travel_with_a_kernel) {
  std::vector<PositionRange> ranges;
  for (std::int64_t i = 0; i < 19; ++i) ranges.push_back({i * 5, 1 + i % 4});
  ranges.push_back({95, 0});
  ranges.push_back({100, 3});
  ranges.push_back({103, 2});
  const Problem queries(DType::kBF16, {1, 1, 1, 8}, ranges, {{0, 100}});
  expect_equal_to_reference(GetParam(), 1, queries, "many ranges of queries");
  const Problem keys(DType::kF32, {1, 1, 1, 8}, {{0, 60}}, ranges);
  expect_equal_to_reference(GetParam(), 1, keys, "many ranges of keys");
}

TEST_P(AttentionGpu, forward_has_the_same_bits_in_any_order_of_threads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Problem problem(dtype, {1, 2, 1, 24}, {{0, 40}, {60, 20}}, {{0, 80}});
    problem.set_documents(30);
    problem.c.window = 25;
    expect_same_bits([&] {
      const Output out = run_forward(GetParam(), 1, problem);
      return out.o.bits() + out.lse.bits();
    });
  }
}

TEST_P(AttentionGpu, backward_has_the_same_bits_in_any_order_of_threads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Problem problem(dtype, {1, 2, 1, 24}, {{0, 40}, {60, 20}}, {{0, 80}});
    problem.set_documents(30);
    problem.c.window = 25;
    const auto out = reference::attention_forward(problem.c);
    const auto delta = reference::attention_delta(problem.c, problem.d_o.values(), out.o);
    expect_same_bits([&] {
      const Gradients g = run_backward(GetParam(), 1, problem, out.lse, delta);
      return g.dq.bits() + g.dk.bits() + g.dv.bits();
    });
  }
}

/// What is in doubt without determinism is the order in which blocks add to a dq, nothing else.
TEST_P(AttentionGpu, without_determinism_only_dq_depends_on_the_order_of_threads) {
  Problem problem(DType::kBF16, {1, 2, 1, 24}, {{0, 40}, {60, 200}}, {{0, 290}});
  problem.set_documents(110);
  const auto out = reference::attention_forward(problem.c);
  const auto delta = reference::attention_delta(problem.c, problem.d_o.values(), out.o);
  const auto gradients = [&] {
    return run_backward(GetParam(), 1, problem, out.lse, delta, {Determinism::kNone});
  };
  expect_same_bits([&] {
    const Gradients g = gradients();
    return g.dk.bits() + g.dv.bits();
  });
  const auto wanted =
      reference::attention_backward(problem.c, problem.d_o.values(), out.lse, delta);
  const Gradients g = gradients();
  expect_close(packed(heads(g.dq, problem.c, 2)), wanted.dq, {1.02 / 256, 1.0 / 256}, "dq");
}

/// Scores far below zero, where those of rows behind the last key are zeros: the weights of such
/// rows would be infinite, and times the zeros that stand for their keys no numbers.
TEST_P(AttentionGpu, rows_behind_the_last_key_add_nothing_to_dq) {
  Problem problem(DType::kBF16, {1, 1, 1, 16}, {{21, 40}}, {{0, 21}});
  for (std::int64_t row = 0; row < 40; ++row) {
    for (std::int64_t d = 0; d < 16; ++d) problem.qkv_q.set(row * 19 + 2 + d, 4);
  }
  for (std::int64_t row = 0; row < 21; ++row) {
    for (std::int64_t d = 0; d < 16; ++d)
      problem.qkv_kv.set(row * 37 + 1 + d, -6 - 0.03125 * static_cast<double>((row + d) % 5));
  }
  problem.c.q = packed(problem.q());
  problem.c.k = packed(problem.k());
  const auto out = reference::attention_forward(problem.c);
  const auto delta = reference::attention_delta(problem.c, problem.d_o.values(), out.o);
  const Gradients g = run_backward(GetParam(), 1, problem, out.lse, delta, {Determinism::kNone});
  // Weights that add up to zero times keys that are nearly alike: what is left is rounding.
  for (const double x : packed(heads(g.dq, problem.c, 1))) ASSERT_LE(std::abs(x), 0.05);
}

TEST_P(AttentionGpu, a_bf16_query_has_the_same_bits_whatever_queries_stand_around_it) {
  expect_same_bits_among_other_queries(
      GetParam(), Problem(DType::kBF16, {1, 2, 1, 24}, {{0, 150}}, {{0, 150}}), {77, 61});
}

TEST_P(AttentionGpu, bf16_queries_without_keys_get_zero_and_nan_is_not_hidden) {
  Problem problem(DType::kBF16, {1, 1, 1, 16}, {{0, 40}}, {{10, 40}});
  const Output out = run_forward(GetParam(), 1, problem);
  const auto o = o_values(problem, out), lse = out.lse.values();
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(std::isinf(lse[i]) && lse[i] < 0);
    for (std::size_t d = 0; d < 16; ++d) EXPECT_EQ(o[i * 16 + d], 0);
  }
  EXPECT_TRUE(std::isfinite(lse[10]));
  problem.qkv_kv.set(3 * 37 + 1, std::nan(""));  // k at position 13
  const Output with_nan = run_forward(GetParam(), 1, problem);
  const auto after = o_values(problem, with_nan), lse_after = with_nan.lse.values();
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(std::isnan(lse_after[i]), i >= 13) << i;
    EXPECT_EQ(std::isnan(after[i * 16]), i >= 13) << i;
  }
}

/// Rows aligned to 16 bytes take the asynchronous copies, others single elements: the same bits.
TEST_P(AttentionGpu, alignment_changes_no_bits) {
  const std::int64_t tokens = 40, heads = 2, head_dim = 24;
  const auto run = [&](int offset) {
    Context context = test_context(GetParam());
    const auto tensor = [&](DType dtype, std::uint64_t seed) {
      TestTensor to(dtype, {tokens, heads * head_dim}, offset);
      const auto values = TestTensor::random(dtype, {tokens, heads * head_dim}, seed).values();
      for (std::size_t i = 0; i < values.size(); ++i)
        to.set(static_cast<std::int64_t>(i), values[i]);
      return to;
    };
    const auto view = [&](auto& x) { return heads_of(x.view(), 0, heads, head_dim); };
    const DType bf16 = DType::kBF16;
    const TestTensor q = tensor(bf16, 1), k = tensor(bf16, 2), v = tensor(bf16, 3),
                     d_o = tensor(bf16, 4);
    TestTensor o = tensor(bf16, 5), dq = tensor(DType::kF32, 6), dk = dq, dv = dq;
    TestTensor lse(DType::kF32, {tokens, heads}), delta = lse;
    const PositionRange range{0, tokens};
    const AttentionMask mask{1, {&range, 1}, {&range, 1}, {}};
    attention_forward(context, {view(o), lse, view(q), view(k), view(v), mask, 0.3F});
    attention_delta(context, delta, view(d_o), view(std::as_const(o)));
    attention_backward(context, {view(dq), view(dk), view(dv), view(d_o), view(q), view(k), view(v),
                                 lse, delta, mask, 0.3F});
    return o.bits() + lse.bits() + dq.bits() + dk.bits() + dv.bits();
  };
  const std::string aligned = run(0);
  EXPECT_TRUE(run(1) == aligned);
  EXPECT_TRUE(run(2) == aligned);
}

}  // namespace
}  // namespace trireme
