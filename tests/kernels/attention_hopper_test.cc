// The forward kernel for Hopper: tiles of every kind, in every mask, from and to rows that TMA
// takes.
#include <cmath>
#include <functional>
#include <utility>

#include "kernels/attention/attention_internal.h"
#include "kernels/attention_support.h"

namespace trireme {
namespace {

using namespace attention_testing;
using attention_internal::mma_attention;
using attention_internal::wgmma_attention;

class AttentionHopper : public OpTest {
 protected:
  void SetUp() override {
    if (!on_hopper()) GTEST_SKIP() << "kernels for Hopper";
  }
};
TRIREME_FOR_ALL_ISAS(AttentionHopper);

Problem problem_of(const Sizes& sizes, std::vector<PositionRange> q,
                   std::vector<PositionRange> kv) {
  return {DType::kBF16, sizes, std::move(q), std::move(kv), 1, Rows::kOf16Bytes};
}
/// Of one multiprocessor, whose block takes tile after tile.
Output run(Isa isa, const Problem& problem) {
  return run_forward(isa, 1, problem, {&wgmma_attention, 1});
}
void expect_equal(Isa isa, const Problem& problem, const std::string& what) {
  expect_output_of_reference(problem, run(isa, problem), what);
}
std::string bits_of(const Output& out) { return out.o.bits() + out.lse.bits(); }

TEST_P(AttentionHopper, equals_the_reference_for_every_length_and_head_size) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const std::int64_t tokens : {1, 63, 64, 129, 300}) {
      if (head_dim == 256 && tokens == 300) continue;  // as at 129: two tiles of queries, of keys
      const std::string what = "D" + std::to_string(head_dim) + " T" + std::to_string(tokens);
      expect_equal(GetParam(), problem_of({1, 1, 1, head_dim}, {{0, tokens}}, {{0, tokens}}),
                   what + " causal");
    }
    expect_equal(GetParam(), problem_of({1, 1, 1, head_dim}, {{500, 129}}, {{0, 300}}),
                 "D" + std::to_string(head_dim) + " full");
  }
}

TEST_P(AttentionHopper, equals_the_reference_for_long_sequences) {
  Problem problem = problem_of({1, 1, 1, 64}, {{0, 1025}}, {{0, 1025}});
  expect_equal(GetParam(), problem, "causal");
}

TEST_P(AttentionHopper, equals_the_reference_for_heads_that_fill_no_tile) {
  for (const std::int64_t head_dim : {40, 72, 136})
    expect_equal(GetParam(), problem_of({1, 1, 1, head_dim}, {{0, 70}}, {{0, 70}}),
                 "D" + std::to_string(head_dim));
}

TEST_P(AttentionHopper, equals_the_reference_for_values_of_fewer_dims_than_keys) {
  const auto expect = [&](std::int64_t head_dim, std::int64_t value_dim, std::int64_t tokens) {
    expect_equal(GetParam(),
                 problem_of({1, 1, 1, head_dim, value_dim}, {{0, tokens}}, {{0, tokens}}),
                 "D" + std::to_string(head_dim) + " Dv" + std::to_string(value_dim) + " T" +
                     std::to_string(tokens));
  };
  for (const std::int64_t tokens : {1, 63, 64, 129, 300}) expect(192, 128, tokens);
  for (const auto& [head_dim, value_dim] :
       {std::pair<std::int64_t, std::int64_t>{96, 64}, {80, 48}, {136, 40}, {200, 128}})
    expect(head_dim, value_dim, 129);
  Problem problem =
      problem_of({2, 8, 2, 192, 128}, {{0, 70}, {250, 40}}, {{60, 40}, {20, 40}, {250, 40}});
  expect_equal(GetParam(), problem, "ranges");
  problem.set_documents(100);
  problem.c.window = 90;
  expect_equal(GetParam(), problem, "documents and a window");
}

TEST_P(AttentionHopper, equals_the_reference_for_groups_of_query_heads) {
  for (const std::int64_t group : {1, 4, 8})
    expect_equal(GetParam(), problem_of({2, 8, 8 / group, 64}, {{0, 40}}, {{0, 40}}),
                 "groups of " + std::to_string(group));
  expect_equal(GetParam(), problem_of({1, 6, 2, 64}, {{0, 40}}, {{0, 40}}), "groups of 3");
}

/// The heads from `first` on, of bf16.
template <class View>
View heads_from(View view, std::int64_t first, std::int64_t count) {
  view.data += first * view.head_dim * 2;
  view.heads = count;
  return view;
}

/// Heads that share a tile, and one that has its tiles for itself.
TEST_P(AttentionHopper, a_query_head_has_the_bits_that_it_has_alone) {
  for (const std::int64_t heads : {4, 8}) {
    for (const Sizes& sizes : {Sizes{2, heads, 1, 64}, {1, heads, 1, 192, 128}}) {
      Problem problem = problem_of(sizes, {{0, 30}, {70, 41}}, {{0, 50}, {60, 60}});
      problem.set_documents(50);
      const Output all = run(GetParam(), problem);
      Context context = test_context(GetParam());
      context.set_attention_backend(wgmma_attention);
      const AttentionCase& c = problem.c;
      for (const std::int64_t head : {std::int64_t{0}, heads - 1}) {
        TestTensor o(DType::kBF16, {problem.q_rows(), c.value_dim}, 0),
            lse(DType::kF32, {problem.q_rows(), 1});
        attention_forward(context, {values(o, c, 1), lse, heads_from(problem.q(), head, 1),
                                    problem.k(), problem.v(), problem.mask(), problem.scale()});
        EXPECT_EQ(packed(values(std::as_const(o), c, 1)),
                  packed(heads_from(values(all.o, c, heads), head, 1)));
        const std::vector<double> alone = lse.values(), among = all.lse.values();
        for (std::size_t row = 0; row < alone.size(); ++row) {
          const std::size_t at =
              row * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head);
          ASSERT_EQ(alone[row], among[at]) << row;
        }
      }
    }
  }
}

TEST_P(AttentionHopper, equals_the_reference_for_windows) {
  for (const std::int64_t window : {1, 100, 200}) {
    Problem problem = problem_of({1, 1, 1, 128}, {{0, 300}}, {{0, 300}});
    problem.c.window = window;
    expect_equal(GetParam(), problem, "window of " + std::to_string(window));
  }
}

/// Tiles end with their ranges: what stands behind them in a sequence is left alone.
TEST_P(AttentionHopper, equals_the_reference_for_documents_and_ranges_of_several_sequences) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const std::int64_t length : {5, 100}) {
      Problem problem =
          problem_of({2, 2, 1, head_dim}, {{0, 200}, {250, 40}}, {{100, 150}, {20, 70}});
      problem.set_documents(length);
      expect_equal(GetParam(), problem, "documents of " + std::to_string(length));
    }
  }
}

TEST_P(AttentionHopper, queries_without_keys_get_zero_and_nan_is_not_hidden) {
  Problem problem = problem_of({1, 1, 1, 128}, {{0, 300}}, {{140, 40}});
  Output out = run(GetParam(), problem);
  expect_output_of_reference(problem, out, "some without keys");
  for (std::size_t i = 0; i < 140; ++i) {
    ASSERT_EQ(out.lse.values()[i], -INFINITY);
    ASSERT_EQ(o_values(problem, out)[i * 128], 0);
  }
  problem.qkv_kv.set(3 * problem.qkv_kv.shape()[1] + 8, std::nan(""));  // k at position 143
  out = run(GetParam(), problem);
  const auto o = o_values(problem, out), lse = out.lse.values();
  for (std::size_t i = 0; i < 300; ++i) {
    ASSERT_EQ(std::isnan(lse[i]), i >= 143) << i;
    ASSERT_EQ(std::isnan(o[i * 128]), i >= 143) << i;
  }
}

TEST_P(AttentionHopper, has_the_same_bits_in_any_order_of_threads) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    Problem problem = problem_of({1, 2, 1, head_dim}, {{0, 140}, {200, 150}}, {{0, 350}});
    problem.set_documents(200);
    problem.c.window = 180;
    expect_same_bits([&] { return bits_of(run(GetParam(), problem)); });
  }
  const Problem latent = problem_of({1, 2, 1, 192, 128}, {{0, 200}}, {{0, 200}});
  expect_same_bits([&] { return bits_of(run(GetParam(), latent)); });
}

TEST_P(AttentionHopper, a_query_has_the_same_bits_whatever_queries_stand_around_it) {
  expect_same_bits_among_other_queries(
      GetParam(), problem_of({1, 2, 1, 64}, {{0, 330}}, {{0, 330}}), {77, 161});
}

/// Heads that are whole blocks, and others whose codes a pass of its own makes; tiles of one head
/// and of several, parts of tiles, queries without keys.
TEST_P(AttentionHopper, what_is_left_for_a_product_are_the_bits_of_a_pass_of_its_own) {
  const Way one{&wgmma_attention, 1};
  for (const Sizes& sizes : {Sizes{2, 2, 1, 128},
                             {1, 8, 1, 128},
                             {1, 2, 2, 256},
                             {1, 4, 1, 192, 128},
                             {1, 2, 1, 200, 128},
                             {1, 2, 1, 192, 136},
                             {2, 4, 2, 64}}) {
    Problem problem = problem_of(sizes, {{0, 70}, {200, 41}}, {{20, 60}, {190, 60}});
    problem.set_documents(45);
    problem.c.window = 40;
    const std::string what = "D" + std::to_string(sizes.head_dim) + " Dv" +
                             std::to_string(sizes.value_dim()) + " H" + std::to_string(sizes.heads);
    expect_left_of_o(GetParam(), problem, Left::kCodesAndMaximum, what, one);
    problem.qkv_kv.set(3 * problem.qkv_kv.shape()[1] + 16 + sizes.kv_heads * sizes.head_dim,
                       std::nan(""));
    expect_left_of_o(GetParam(), problem, Left::kCodesAndMaximum, what + " with a NaN", one);
  }
}

TEST_P(AttentionHopper, serves_what_tma_takes_and_leaves_the_rest) {
  const Problem aligned = problem_of({1, 1, 1, 64}, {{0, 130}}, {{0, 130}});
  EXPECT_EQ(bits_of(run_forward(GetParam(), 1, aligned)), bits_of(run(GetParam(), aligned)));
  EXPECT_NE(bits_of(run_forward(GetParam(), 1, aligned)),
            bits_of(run_forward(GetParam(), 1, aligned, {&mma_attention})));
  const Problem anywhere(DType::kBF16, {1, 1, 1, 64}, {{0, 70}}, {{0, 70}});
  EXPECT_EQ(bits_of(run_forward(GetParam(), 1, anywhere)),
            bits_of(run_forward(GetParam(), 1, anywhere, {&mma_attention})));
  EXPECT_THROW(run(GetParam(), anywhere), InternalError);
}

}  // namespace
}  // namespace trireme
