// The backward kernel for Hopper: tiles of queries and keys that are whole, cut, masked in part or
// not seen at all, with dq added to in any order and in one.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention/attention_internal.h"
#include "kernels/attention_support.h"

namespace trireme {
namespace {

using namespace attention_testing;
using attention_internal::mma_attention;
using attention_internal::wgmma_attention;

class AttentionHopperGradient : public OpTest {
 protected:
  void SetUp() override {
    if (!on_hopper()) GTEST_SKIP() << "kernels for Hopper";
  }
};
TRIREME_FOR_ALL_ISAS(AttentionHopperGradient);

Problem problem_of(const Sizes& sizes, std::vector<PositionRange> q,
                   std::vector<PositionRange> kv) {
  return {DType::kBF16, sizes, std::move(q), std::move(kv), 1, Rows::kOf16Bytes};
}
void expect_equal(Isa isa, const Problem& problem, const std::string& what) {
  expect_gradients_of_reference(isa, 1, problem, what, {&wgmma_attention});
}

void expect_equal_for_every_length(Isa isa, std::int64_t head_dim) {
  const std::string of = "D" + std::to_string(head_dim);
  for (const std::int64_t tokens : {1, 63, 64, 129, 300})
    expect_equal(isa, problem_of({1, 1, 1, head_dim}, {{0, tokens}}, {{0, tokens}}),
                 of + " T" + std::to_string(tokens));
  expect_equal(isa, problem_of({1, 1, 1, head_dim}, {{500, 129}}, {{0, 300}}), of + " full");
}

void expect_equal_for_groups(Isa isa, std::int64_t group, std::int64_t head_dim) {
  expect_equal(isa, problem_of({2, 8, 8 / group, head_dim}, {{0, 40}}, {{0, 40}}),
               "groups of " + std::to_string(group) + " D" + std::to_string(head_dim));
}

void expect_equal_for_window(Isa isa, std::int64_t window, std::int64_t head_dim) {
  Problem problem = problem_of({1, 1, 1, head_dim}, {{0, 300}}, {{0, 300}});
  problem.c.window = window;
  expect_equal(isa, problem,
               "window of " + std::to_string(window) + " D" + std::to_string(head_dim));
}

TEST_P(AttentionHopperGradient, equals_the_reference_for_every_length_and_head_size) {
  for (const std::int64_t head_dim : {64, 128, 192, 256})
    expect_equal_for_every_length(GetParam(), head_dim);
}

TEST_P(AttentionHopperGradient, equals_the_reference_for_heads_that_fill_no_tile) {
  for (const std::int64_t head_dim : {40, 80, 136, 200})
    expect_equal(GetParam(), problem_of({1, 2, 1, head_dim}, {{0, 70}}, {{0, 70}}),
                 "D" + std::to_string(head_dim));
}

TEST_P(AttentionHopperGradient, equals_the_reference_for_values_of_fewer_dims_than_keys) {
  for (const auto& [head_dim, value_dim] : {std::pair<std::int64_t, std::int64_t>{96, 64},
                                            {80, 48},
                                            {64, 8},
                                            {192, 128},
                                            {136, 96},
                                            {256, 64}}) {
    Problem problem =
        problem_of({2, 2, 1, head_dim, value_dim}, {{0, 100}, {150, 29}}, {{0, 90}, {120, 60}});
    const std::string of = "D" + std::to_string(head_dim) + " Dv" + std::to_string(value_dim);
    expect_equal(GetParam(), problem, of);
    problem.set_documents(60);
    expect_equal(GetParam(), problem, of + " documents");
  }
}

TEST_P(AttentionHopperGradient, equals_the_reference_for_groups_of_query_heads) {
  for (const std::int64_t group : {1, 4, 8}) expect_equal_for_groups(GetParam(), group, 64);
  expect_equal_for_groups(GetParam(), 4, 256);
}

TEST_P(AttentionHopperGradient, equals_the_reference_for_windows) {
  for (const std::int64_t window : {1, 100, 200}) expect_equal_for_window(GetParam(), window, 128);
  expect_equal_for_window(GetParam(), 100, 256);
}

TEST_P(AttentionHopperGradient, equals_the_reference_for_documents_and_ranges_of_sequences) {
  for (const std::int64_t head_dim : {64, 128, 192}) {
    for (const std::int64_t length : {5, 100}) {
      Problem problem =
          problem_of({2, 2, 1, head_dim}, {{0, 70}, {150, 140}}, {{100, 20}, {20, 80}, {120, 60}});
      problem.set_documents(length);
      expect_equal(GetParam(), problem, "documents of " + std::to_string(length));
    }
  }
}

TEST_P(AttentionHopperGradient, equals_the_reference_for_more_ranges_than_travel_with_a_kernel) {
  std::vector<PositionRange> ranges;
  for (std::int64_t i = 0; i < 19; ++i) ranges.push_back({i * 9, 1 + i % 4});
  expect_equal(GetParam(), problem_of({1, 1, 1, 64}, ranges, {{0, 171}}), "of queries");
  expect_equal(GetParam(), problem_of({1, 1, 1, 64}, {{0, 171}}, ranges), "of keys");
}

struct Wanted {
  reference::AttentionGradients gradients;
  std::vector<double> lse, delta;
};
Wanted wanted_of(const Problem& problem) {
  const auto out = reference::attention_forward(problem.c);
  const std::vector<double> d_o = problem.d_o.values(),
                            delta = reference::attention_delta(problem.c, d_o, out.o);
  return {reference::attention_backward(problem.c, d_o, out.lse, delta), out.lse, delta};
}

/// Several tiles of keys add to each tile of queries, in part those of one document or window.
void expect_same_bits_in_any_order(Isa isa, std::int64_t head_dim) {
  Problem problem = problem_of({1, 2, 1, head_dim}, {{0, 140}, {200, 150}}, {{0, 350}});
  problem.set_documents(200);
  problem.c.window = 180;
  const Wanted wanted = wanted_of(problem);
  const auto run = [&](Determinism determinism) {
    return run_backward(isa, 1, problem, wanted.lse, wanted.delta,
                        {determinism, {&wgmma_attention}});
  };
  expect_same_bits([&] {
    const Gradients g = run(Determinism::kEqualBits);
    return g.dq.bits() + g.dk.bits() + g.dv.bits();
  });
  expect_same_bits([&] {
    const Gradients g = run(Determinism::kNone);
    return g.dk.bits() + g.dv.bits();
  });
}
TEST_P(AttentionHopperGradient, has_the_same_bits_in_any_order_of_threads_and_blocks) {
  for (const std::int64_t head_dim : {64, 128, 256})
    expect_same_bits_in_any_order(GetParam(), head_dim);
}

TEST_P(AttentionHopperGradient, adds_to_what_stands_there) {
  const Problem problem = problem_of({1, 2, 1, 64}, {{0, 140}}, {{0, 140}});
  const AttentionCase& c = problem.c;
  const Wanted wanted = wanted_of(problem);
  Context context = test_context(GetParam());
  context.set_attention_backend(wgmma_attention);
  const auto hundreds = [&](std::int64_t heads_count) {
    TestTensor tensor(DType::kF32, {140, heads_count * 64}, 0);
    for (std::int64_t i = 0; i < 140 * heads_count * 64; ++i) tensor.set(i, 100);
    return tensor;
  };
  TestTensor dq = hundreds(2), dk = hundreds(1), dv = hundreds(1);
  const TestTensor lse = TestTensor::of(DType::kF32, {140, 2}, wanted.lse),
                   delta = TestTensor::of(DType::kF32, {140, 2}, wanted.delta);
  attention_backward(context, {heads(dq, c, 2), heads(dk, c, 1), heads(dv, c, 1),
                               heads(problem.d_o, c, 2), problem.q(), problem.k(), problem.v(), lse,
                               delta, problem.mask(), problem.scale()});
  for (const auto& [found, gradient] : {std::pair{&dq, &wanted.gradients.dq},
                                        {&dk, &wanted.gradients.dk},
                                        {&dv, &wanted.gradients.dv}}) {
    std::vector<double> sum = *gradient;
    for (double& x : sum) x += 100;
    expect_close(found->values(), sum, {2e-4}, "gradient");
  }
}

/// Scores far below zero, where those of rows behind the last key are zeros: the weights of such
/// rows would be infinite, and times the zeros that stand for their keys no numbers.
TEST_P(AttentionHopperGradient, rows_behind_the_last_key_add_nothing_to_dq) {
  Problem problem = problem_of({1, 1, 1, 64}, {{21, 40}}, {{0, 21}});
  for (std::int64_t row = 0; row < 40; ++row)
    for (std::int64_t d = 0; d < 64; ++d) problem.qkv_q.set(row * 72 + 8 + d, 4);
  for (std::int64_t row = 0; row < 21; ++row)
    for (std::int64_t d = 0; d < 64; ++d)
      problem.qkv_kv.set(row * 152 + 8 + d, -6 - 0.03125 * static_cast<double>((row + d) % 5));
  problem.c.q = packed(problem.q());
  problem.c.k = packed(problem.k());
  const Wanted wanted = wanted_of(problem);
  const Gradients g = run_backward(GetParam(), 1, problem, wanted.lse, wanted.delta,
                                   {Determinism::kNone, {&wgmma_attention}});
  // Weights that add up to zero times keys that are nearly alike: what is left is rounding.
  for (const double x : packed(heads(std::as_const(g.dq), problem.c, 1)))
    ASSERT_LE(std::abs(x), 0.05);
}

/// Two ranges that do not see each other, the first in tiles whose last rows are the second's
/// tokens: zero weights times infinite operands of the first must not come to the second's
/// gradients.
TEST_P(AttentionHopperGradient, ranges_leave_the_tokens_behind_them_alone) {
  constexpr std::int64_t kFirst = 70;
  for (const std::int64_t head_dim : {64, 128, 192, 256}) {
    const auto second_of = [&](bool poisoned, Determinism determinism) {
      Problem problem =
          problem_of({1, 1, 1, head_dim}, {{600, kFirst}, {0, 140}}, {{600, kFirst}, {0, 140}});
      problem.c.window = 200;
      const Wanted wanted = wanted_of(problem);
      if (poisoned) {
        problem.qkv_q.set(8, INFINITY);
        problem.qkv_kv.set(8, INFINITY);
        problem.d_o.set(0, INFINITY);
      }
      const Gradients g = run_backward(GetParam(), 1, problem, wanted.lse, wanted.delta,
                                       {determinism, {&wgmma_attention}});
      std::vector<double> rows;
      for (const TestTensor* gradient : {&g.dq, &g.dk, &g.dv}) {
        const std::vector<double> all = packed(heads(*gradient, problem.c, 1));
        rows.insert(rows.end(), all.begin() + kFirst * head_dim, all.end());
      }
      return rows;
    };
    const std::vector<double> expected = second_of(false, Determinism::kEqualBits);
    ASSERT_TRUE(
        std::all_of(expected.begin(), expected.end(), [](double x) { return std::isfinite(x); }));
    EXPECT_EQ(second_of(true, Determinism::kEqualBits), expected) << head_dim;
    EXPECT_EQ(second_of(true, Determinism::kNone), expected) << head_dim;
  }
}

/// An infinite value at the last position makes dP infinite of all queries; the weights of those
/// that do not see it are zero, and so must dS be.
TEST_P(AttentionHopperGradient, values_leave_the_queries_before_them_alone) {
  constexpr std::int64_t kTokens = 70;
  for (const std::int64_t head_dim : {64, 256}) {
    const auto dq_of = [&](bool poisoned) {
      Problem problem = problem_of({1, 1, 1, head_dim}, {{0, kTokens}}, {{0, kTokens}});
      const Wanted wanted = wanted_of(problem);
      const std::int64_t row = problem.qkv_kv.view().shape[1];
      if (poisoned) problem.qkv_kv.set((kTokens - 1) * row + 16 + head_dim, INFINITY);
      const Gradients g = run_backward(GetParam(), 1, problem, wanted.lse, wanted.delta,
                                       {Determinism::kEqualBits, {&wgmma_attention}});
      std::vector<double> dq = packed(heads(g.dq, problem.c, 1));
      dq.resize(static_cast<std::size_t>((kTokens - 1) * head_dim));
      return dq;
    };
    EXPECT_EQ(dq_of(true), dq_of(false)) << head_dim;
  }
}

/// Queries that see no key of the call have lse -inf, those whose keys are elsewhere a finite one.
TEST_P(AttentionHopperGradient, queries_without_keys_get_nothing) {
  const Problem problem = problem_of({1, 1, 1, 128}, {{0, 300}}, {{140, 40}});
  const Wanted wanted = wanted_of(problem);
  const Gradients g = run_backward(GetParam(), 1, problem, wanted.lse, wanted.delta,
                                   {Determinism::kEqualBits, {&wgmma_attention}});
  const std::vector<double> dq = packed(heads(std::as_const(g.dq), problem.c, 1));
  for (std::size_t i = 0; i < 140 * 128; ++i) ASSERT_EQ(dq[i], 0) << i;
  expect_equal(GetParam(), problem, "some without keys");
  expect_equal(GetParam(), problem_of({1, 1, 1, 64}, {{0, 70}}, {{100, 70}}), "all without keys");
}

/// With keys that no query sees, in tiles of their own and beside others.
TEST_P(AttentionHopperGradient, writes_the_sums_that_it_would_have_added) {
  std::vector<Problem> problems;
  for (const std::int64_t head_dim : {64, 80, 128, 192, 200})
    problems.push_back(problem_of({1, 2, 1, head_dim}, {{0, 150}}, {{0, 150}}));
  problems.push_back(problem_of({2, 2, 2, 192, 128}, {{0, 70}}, {{0, 70}}));
  problems.push_back(problem_of({2, 2, 1, 64}, {{0, 150}}, {{0, 150}}));
  problems.back().set_documents(40);
  for (const std::int64_t head_dim : {128, 256})
    problems.push_back(problem_of({1, 1, 1, head_dim}, {{0, 20}}, {{0, 150}}));
  problems.push_back(problem_of({1, 1, 1, 64}, {{200, 20}}, {{0, 220}}));
  problems.back().c.window = 30;
  for (const Problem& problem : problems) {
    const Wanted wanted = wanted_of(problem);
    const auto gradients = [&](bool written) {
      return run_backward(GetParam(), 1, problem, wanted.lse, wanted.delta,
                          {Determinism::kEqualBits, {&wgmma_attention}, written});
    };
    const Gradients added = gradients(false), written = gradients(true);
    const auto expect_rounded = [&](const ConstHeadsView& found, const ConstHeadsView& sums) {
      std::vector<double> rounded = packed(sums);
      for (double& x : rounded) x = to_float(to_bfloat16(static_cast<float>(x)));
      EXPECT_EQ(packed(found), rounded) << problem.c.head_dim << ' ' << problem.c.kv_tokens();
    };
    const AttentionCase& c = problem.c;
    expect_rounded(heads(written.dq, c, c.heads), heads(added.dq, c, c.heads));
    expect_rounded(heads(written.dk, c, c.kv_heads), heads(added.dk, c, c.kv_heads));
    expect_rounded(values(written.dv, c, c.kv_heads), values(added.dv, c, c.kv_heads));
  }
}

/// Only where each block's keys are its alone.
TEST_P(AttentionHopperGradient, writes_gradients_of_whole_sequences_alone) {
  const Problem parts = problem_of({1, 1, 1, 64}, {{0, 70}}, {{0, 30}, {40, 40}});
  const Wanted wanted = wanted_of(parts);
  const BackwardWay written{Determinism::kEqualBits, {&wgmma_attention}, true};
  EXPECT_THROW(run_backward(GetParam(), 1, parts, wanted.lse, wanted.delta, written),
               InternalError);
}

TEST_P(AttentionHopperGradient, serves_what_tma_takes_and_leaves_the_rest) {
  const auto bits = [&](const Problem& problem, const Way& way) {
    const Wanted wanted = wanted_of(problem);
    const Gradients g = run_backward(GetParam(), 1, problem, wanted.lse, wanted.delta,
                                     {Determinism::kEqualBits, way});
    return g.dq.bits() + g.dk.bits() + g.dv.bits();
  };
  // Several tiles of keys: dq is a sum of sums, in place of one.
  const Problem aligned = problem_of({1, 1, 1, 64}, {{0, 300}}, {{0, 300}});
  EXPECT_EQ(bits(aligned, {}), bits(aligned, {&wgmma_attention}));
  EXPECT_NE(bits(aligned, {}), bits(aligned, {&mma_attention}));
  for (const Problem& other : {Problem(DType::kBF16, {1, 1, 1, 64}, {{0, 70}}, {{0, 70}}),
                               problem_of({1, 1, 1, 32}, {{0, 70}}, {{0, 70}})}) {
    EXPECT_EQ(bits(other, {}), bits(other, {&mma_attention}));
    EXPECT_THROW(bits(other, {&wgmma_attention}), InternalError);
  }
}

/// What takes the host some time, with the head sizes of more than 128: at night.
class AttentionHopperGradientAtLength : public AttentionHopperGradient {};
TRIREME_FOR_ALL_ISAS(AttentionHopperGradientAtLength);

TEST_P(AttentionHopperGradientAtLength, equals_the_reference_for_all_masks_of_wide_heads) {
  for (const std::int64_t head_dim : {136, 192, 200, 256}) {
    if (head_dim % 64 != 0) expect_equal_for_every_length(GetParam(), head_dim);
    for (const std::int64_t group : {1, 4, 8}) expect_equal_for_groups(GetParam(), group, head_dim);
    for (const std::int64_t window : {1, 100, 200})
      expect_equal_for_window(GetParam(), window, head_dim);
    Problem problem =
        problem_of({2, 2, 1, head_dim}, {{0, 70}, {150, 140}}, {{100, 20}, {20, 80}, {120, 60}});
    problem.set_documents(100);
    expect_equal(GetParam(), problem, "documents D" + std::to_string(head_dim));
  }
}

TEST_P(AttentionHopperGradientAtLength, equals_the_reference_for_1025_tokens) {
  for (const std::int64_t head_dim : {192, 256})
    expect_equal(GetParam(), problem_of({1, 1, 1, head_dim}, {{0, 1025}}, {{0, 1025}}),
                 "D" + std::to_string(head_dim));
}

TEST_P(AttentionHopperGradientAtLength, has_the_same_bits_in_any_order_of_threads_and_blocks) {
  for (const std::int64_t head_dim : {136, 192, 200})
    expect_same_bits_in_any_order(GetParam(), head_dim);
}

}  // namespace
}  // namespace trireme
