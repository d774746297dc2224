#include <cmath>
#include <limits>
#include <utility>

#include "base/random.h"
#include "kernels/attention/attention.h"
#include "kernels/attention_support.h"

namespace trireme {
namespace {

using namespace attention_testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class AttentionGradient : public OpTest {};
TRIREME_FOR_ALL_ISAS(AttentionGradient);

std::string text_of(const Sizes& s, std::int64_t tokens) {
  return "B" + std::to_string(s.sequences) + " H" + std::to_string(s.heads) + " G" +
         std::to_string(s.kv_heads) + " D" + std::to_string(s.head_dim) + " T" +
         std::to_string(tokens);
}

TEST_P(AttentionGradient, equals_the_reference_for_whole_sequences_of_any_length) {
  const auto lengths = on_gpu() ? std::vector<std::int64_t>{1, 2, 33, 65}
                                : std::vector<std::int64_t>{1, 2, 4, 5, 16, 37, 64, 65, 130};
  for (const std::int64_t tokens : lengths) {
    for (const Sizes& sizes : {Sizes{2, 3, 3, 24}, Sizes{1, 6, 2, 64}}) {
      const Problem problem(DType::kF32, sizes, {{0, tokens}}, {{0, tokens}});
      expect_equal_to_reference(GetParam(), 2, problem, text_of(sizes, tokens));
    }
  }
}

TEST_P(AttentionGradient, equals_the_reference_for_any_head_size_and_grouping) {
  using Heads = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const Heads groupings = on_gpu() ? Heads{{4, 2}} : Heads{{2, 2}, {6, 2}, {3, 1}};
  const std::int64_t tokens = on_gpu() ? 37 : 70;
  for (const std::int64_t head_dim : {2, 6, 8, 24, 34, 64, 80, 96, 112, 128, 256}) {
    for (const auto& [query_heads, kv_heads] : groupings) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        if (on_gpu() && dtype == DType::kF32 && head_dim % 64 != 0 && head_dim != 6) continue;
        const Sizes sizes{1, query_heads, kv_heads, head_dim};
        const Problem problem(dtype, sizes, {{0, tokens}}, {{0, tokens}});
        expect_equal_to_reference(GetParam(), 3, problem, text_of(sizes, tokens));
      }
    }
  }
}

TEST_P(AttentionGradient, equals_the_reference_for_pieces_of_a_sequence) {
  const std::vector<std::pair<std::vector<PositionRange>, std::vector<PositionRange>>> pieces = {
      {{{100, 1}}, {{0, 101}}},   // a token behind a cache
      {{{90, 40}}, {{0, 130}}},   // some tokens behind a cache
      {{{0, 40}}, {{40, 40}}},    // keys all later: nothing is seen
      {{{10, 70}}, {{50, 100}}},  // some queries see nothing
      {{{0, 33}, {99, 33}},
       {{33, 66}}},  // zigzag: the first and the last quarter, keys of another rank
      {{{0, 33}, {99, 33}}, {{0, 33}, {99, 33}}},  // zigzag: keys of the same rank
      {{{99, 33}, {0, 33}}, {{64, 80}, {0, 10}}},  // descending ranges
      {{{5, 1}, {9, 3}, {70, 100}}, {{3, 2}, {0, 1}, {8, 70}, {150, 1}}}};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Sizes sizes{on_gpu() ? 1 : 2, 4, 2, 24};
    const DType dtype = on_gpu() && i % 2 == 1 ? DType::kBF16 : DType::kF32;
    Problem problem(dtype, sizes, pieces[i].first, pieces[i].second, i);
    expect_equal_to_reference(GetParam(), 2, problem, "piece " + std::to_string(i));
    problem.set_documents(29);
    expect_equal_to_reference(GetParam(), 2, problem, "piece with documents " + std::to_string(i));
  }
}

TEST_P(AttentionGradient, windows_of_every_size_equal_the_reference) {
  // Whole sequences, a cache's end, and pieces of context ranks; windows of one key, within a tile,
  // of a tile, and over several.
  struct Pieces {
    std::vector<PositionRange> q, kv;
  };
  const std::vector<Pieces> all = {{{{0, 210}}, {{0, 210}}},
                                   {{{90, 3}}, {{0, 93}}},
                                   {{{0, 70}, {210, 70}}, {{70, 70}, {140, 70}}}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const std::int64_t window : {1, 5, 64, 65, 130}) {
      const DType dtype = window % 2 == 1 ? DType::kF32 : DType::kBF16;
      Problem problem(dtype, {1, 2, 1, 24}, all[i].q, all[i].kv, 5);
      problem.c.window = window;
      const std::string what = "pieces " + std::to_string(i) + " window " + std::to_string(window);
      expect_equal_to_reference(GetParam(), 2, problem, what);
      problem.set_documents(90);
      expect_equal_to_reference(GetParam(), 2, problem, what + " and documents");
    }
  }
}

TEST_P(AttentionGradient, equals_the_reference_for_random_ranges) {
  std::uint64_t counter = 0;
  const auto below = [&](std::uint64_t bound) {
    return static_cast<std::int64_t>(uniform_below(7, bound, &counter));
  };
  const auto ranges = [&](std::int64_t most) {
    std::vector<PositionRange> list;
    for (std::int64_t i = 1 + below(4); i > 0; --i)
      list.push_back({below(200), below(static_cast<std::uint64_t>(most))});
    return list;
  };
  for (int i = 0; i < (on_gpu() ? 6 : 25); ++i) {
    const std::int64_t kv_heads = 1 + below(3);
    const Sizes sizes{1 + below(2), kv_heads * (1 + below(3)), kv_heads, 2 + 2 * below(30)};
    Problem problem(i % 3 == 0 ? DType::kBF16 : DType::kF32, sizes, ranges(i % 2 == 0 ? 80 : 3),
                    ranges(100), 100);
    if (i % 2 == 1) problem.set_documents(1 + below(100));
    if (i % 3 == 1) problem.c.window = 1 + below(150);
    expect_equal_to_reference(GetParam(), 1 + static_cast<int>(below(4)), problem,
                              "random " + std::to_string(i));
  }
}

TEST_P(AttentionGradient, gradients_equal_finite_differences) {
  for (const bool documents : {false, true}) {
    Problem problem(DType::kF32, {1, 2, 1, 4}, {{3, 9}}, {{0, 7}, {8, 4}});
    if (documents) problem.set_documents(5);
    const AttentionCase& c = problem.c;
    const auto d_o = problem.d_o.values();
    const auto loss = [&](const AttentionCase& moved) {
      const auto o = reference::attention_forward(moved).o;
      double sum = 0;
      for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * d_o[i];
      return sum;
    };
    const auto difference = [&](std::vector<double> AttentionCase::*operand) {
      AttentionCase moved = c;
      return finite_differences(c.*operand, [&](const std::vector<double>& at) {
        moved.*operand = at;
        return loss(moved);
      });
    };
    const Output out = run_forward(GetParam(), 1, problem);
    Context context = test_context(GetParam());
    TestTensor delta(DType::kF32, {problem.q_rows(), c.heads});
    attention_delta(context, delta, heads(problem.d_o, c, c.heads), heads(out.o, c, c.heads));
    const Gradients g = run_backward(GetParam(), 1, problem, out.lse.values(), delta.values());
    expect_close(packed(heads(g.dq, c, c.heads)), difference(&AttentionCase::q), {2e-6, 2e-6},
                 "dq");
    expect_close(packed(heads(g.dk, c, c.kv_heads)), difference(&AttentionCase::k), {2e-6, 2e-6},
                 "dk");
    expect_close(packed(heads(g.dv, c, c.kv_heads)), difference(&AttentionCase::v), {2e-6, 2e-6},
                 "dv");
  }
}

/// sum dO O, where each head has one more score without a value.
double loss_with_sinks(const AttentionCase& c, const std::vector<double>& sinks,
                       const std::vector<double>& d_o) {
  const auto dot = [&](const std::vector<double>& x, std::int64_t x_row,
                       const std::vector<double>& y, std::int64_t y_row) {
    double sum = 0;
    for (std::int64_t d = 0; d < c.head_dim; ++d)
      sum += x[static_cast<std::size_t>(x_row * c.head_dim + d)] *
             y[static_cast<std::size_t>(y_row * c.head_dim + d)];
    return sum;
  };
  double loss = 0;
  for (std::int64_t row = 0; row < c.sequences * c.q_tokens(); ++row) {
    const std::int64_t b = row / c.q_tokens(), i = row % c.q_tokens();
    for (std::int64_t h = 0; h < c.heads; ++h) {
      double above = 0, below = std::exp(sinks[static_cast<std::size_t>(h)]);
      for (std::int64_t j = 0; j < c.kv_tokens(); ++j) {
        if (!c.sees(b, i, j)) continue;
        const std::int64_t key = (b * c.kv_tokens() + j) * c.kv_heads + h * c.kv_heads / c.heads;
        const double weight = std::exp(c.scale * dot(c.q, row * c.heads + h, c.k, key));
        above += weight * dot(d_o, row * c.heads + h, c.v, key);
        below += weight;
      }
      loss += above / below;
    }
  }
  return loss;
}

TEST_P(AttentionGradient, sinks_leave_the_backward_pass_as_it_is) {
  Problem problem(DType::kF32, {2, 4, 2, 4}, {{3, 9}}, {{0, 7}, {8, 4}});
  problem.c.window = 5;
  const AttentionCase& c = problem.c;
  const std::vector<double> d_o = problem.d_o.values(), sinks = {-1, 0.5, 0, 2};
  Context context = test_context(GetParam());
  Output out = run_forward(GetParam(), 1, problem);
  const TestTensor sink = TestTensor::of(DType::kF32, {c.heads}, sinks);
  attention_sinks(context, heads(out.o, c, c.heads), out.lse, sink);
  TestTensor delta(DType::kF32, {problem.q_rows(), c.heads});
  attention_delta(context, delta, heads(problem.d_o, c, c.heads), heads(out.o, c, c.heads));
  double found = 0;
  const std::vector<double> o = o_values(problem, out);
  for (std::size_t i = 0; i < o.size(); ++i) found += o[i] * d_o[i];
  EXPECT_NEAR(found, loss_with_sinks(c, sinks, d_o), 1e-5);

  const Gradients g = run_backward(GetParam(), 1, problem, out.lse.values(), delta.values());
  const auto difference = [&](std::vector<double> AttentionCase::*operand) {
    AttentionCase moved = c;
    return finite_differences(c.*operand, [&](const std::vector<double>& at) {
      moved.*operand = at;
      return loss_with_sinks(moved, sinks, d_o);
    });
  };
  expect_close(packed(heads(g.dq, c, c.heads)), difference(&AttentionCase::q), {2e-6, 2e-6}, "dq");
  expect_close(packed(heads(g.dk, c, c.kv_heads)), difference(&AttentionCase::k), {2e-6, 2e-6},
               "dk");
  expect_close(packed(heads(g.dv, c, c.kv_heads)), difference(&AttentionCase::v), {2e-6, 2e-6},
               "dv");
  TestTensor terms(DType::kF32, {problem.q_rows(), c.heads});
  attention_sink_terms(context, terms, sink, out.lse, delta);
  std::vector<double> dsinks(sinks.size());
  const std::vector<double> all = terms.values();
  for (std::size_t i = 0; i < all.size(); ++i) dsinks[i % sinks.size()] += all[i];
  expect_close(
      dsinks,
      finite_differences(
          sinks, [&](const std::vector<double>& at) { return loss_with_sinks(c, at, d_o); }),
      {4e-6, 4e-6}, "dsinks");
}

TEST_P(AttentionGradient, a_sink_is_a_key_without_a_value) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t dims : {6, 24, 64, 200}) {
      const Problem problem(type, {1, 4, 2, dims}, {{3, 70}}, {{0, 73}});
      const AttentionCase& c = problem.c;
      Context context = test_context(GetParam(), 2);
      const Output plain = run_forward(GetParam(), 1, problem);
      Output with = plain, merged = plain;
      const TestTensor sink = TestTensor::random(type, {c.heads}, 5, 3);
      TestTensor nothing(type, {problem.q_rows(), c.heads * c.head_dim}),
          sinks_TH(DType::kF32, {problem.q_rows(), c.heads});
      for (std::int64_t i = 0; i < problem.q_rows() * c.heads; ++i)
        sinks_TH.set(i, sink.values()[static_cast<std::size_t>(i % c.heads)]);
      attention_sinks(context, heads(with.o, c, c.heads), with.lse, sink);
      attention_merge(context, heads(merged.o, c, c.heads), merged.lse,
                      heads(std::as_const(nothing), c, c.heads), sinks_TH);
      // Of both a rounding.
      const Tolerance tolerance =
          type == DType::kF32 ? tolerance_of(type) : Tolerance{1.02 / 128, 1e-6};
      expect_close(o_values(problem, with), o_values(problem, merged), tolerance, "o");
      expect_close(with.lse.values(), merged.lse.values(), {1e-6, 1e-6}, "lse");
    }
  }
}

TEST_P(AttentionGradient, a_sink_alone_takes_a_row_that_sees_no_key) {
  Context context = test_context(GetParam());
  TestTensor o(DType::kF32, {2, 8}),
      lse = TestTensor::of(DType::kF32, {2, 2}, {-kInfinity, 1, 2, 3});
  attention_sinks(context, heads_of(o.view(), 0, 2, 4), lse,
                  TestTensor::of(DType::kF32, {2}, {0.5, -kInfinity}));
  EXPECT_EQ(o.values(), std::vector<double>(16));
  expect_close(lse.values(), {0.5, 1, 2 + std::log1p(std::exp(-1.5)), 3}, {1e-6}, "lse");
  expect_refused([&] { attention_sinks(context, heads_of(o.view(), 0, 2, 4), lse, lse); },
                 "attention_sinks.sink: expected [2] fp32");
  expect_refused([&] { attention_sink_terms(context, o, lse.view().reshape({4}), lse, lse); },
                 "attention_sink_terms.lse: expected [2, 4] fp32");
}

TEST_P(AttentionGradient, equals_the_reference_for_values_of_fewer_dims_than_keys) {
  struct Case {
    std::int64_t head_dim, value_dim, tokens;
  };
  const auto cases = on_gpu() ? std::vector<Case>{{192, 128, 35}, {96, 64, 37}, {80, 48, 33}}
                              : std::vector<Case>{{192, 128, 1},   {192, 128, 63},  {192, 128, 64},
                                                  {192, 128, 129}, {192, 128, 300}, {96, 64, 63},
                                                  {80, 48, 129},   {34, 2, 64},     {24, 18, 3}};
  for (const auto& [head_dim, value_dim, tokens] : cases) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Sizes sizes{1, 2, 1, head_dim, value_dim};
      if (on_gpu() && dtype == DType::kF32 && head_dim != 80) continue;
      const std::string what = text_of(sizes, tokens) + " Dv" + std::to_string(value_dim);
      expect_equal_to_reference(GetParam(), 2, Problem(dtype, sizes, {{0, tokens}}, {{0, tokens}}),
                                what);
      if (on_gpu() && head_dim != 192) continue;
      Problem masked(dtype, sizes, {{0, 20}, {40, 30}}, {{10, 30}, {0, 10}, {40, 30}});
      masked.c.window = 33;
      masked.set_documents(29);
      expect_equal_to_reference(GetParam(), 2, masked, what + " masked");
    }
  }
}

TEST_P(AttentionGradient, values_of_fewer_dims_are_those_with_zeros_behind_them) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    constexpr std::int64_t kTokens = 37, kDims = 24, kValueDims = 16;
    Problem narrow(dtype, {1, 2, 1, kDims, kValueDims}, {{0, kTokens}}, {{0, kTokens}}),
        wide(dtype, {1, 2, 1, kDims}, {{0, kTokens}}, {{0, kTokens}});
    const auto values_at = [](const Problem& of) {
      return (of.aligned() ? 16 : 4) + of.c.kv_heads * of.c.head_dim;
    };
    const std::int64_t narrow_row = narrow.qkv_kv.shape()[1], wide_row = wide.qkv_kv.shape()[1];
    const std::vector<double> kv = narrow.qkv_kv.values();
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t i = 0; i < wide_row; ++i) {
        const std::int64_t dim = i - values_at(wide);
        wide.qkv_kv.set(t * wide_row + i, dim < kValueDims && i < narrow_row
                                              ? kv[static_cast<std::size_t>(t * narrow_row + i)]
                                              : 0);
      }
    }
    wide.c.k = packed(wide.k());
    wide.c.v = packed(wide.v());
    const Output few = run_forward(GetParam(), 1, narrow), all = run_forward(GetParam(), 1, wide);
    EXPECT_EQ(few.lse.bits(), all.lse.bits());
    const std::vector<double> o = o_values(narrow, few), zeros = o_values(wide, all);
    for (std::size_t i = 0; i < zeros.size(); ++i) {
      const std::size_t dim = i % kDims;
      ASSERT_EQ(zeros[i], dim < kValueDims ? o[i / kDims * kValueDims + dim] : 0) << i;
    }
  }
}

TEST_P(AttentionGradient, backward_adds_to_what_stands_there) {
  const Problem problem(DType::kF32, {1, 1, 1, 8}, {{0, 20}}, {{0, 20}});
  const AttentionCase& c = problem.c;
  const auto out = reference::attention_forward(c);
  const auto delta = reference::attention_delta(c, problem.d_o.values(), out.o);
  const auto expected = reference::attention_backward(c, problem.d_o.values(), out.lse, delta);
  Context context = test_context(GetParam());
  TestTensor dq = TestTensor::of(DType::kF32, {20, 8}, std::vector<double>(160, 100)), dk = dq,
             dv = dq;
  const TestTensor lse = TestTensor::of(DType::kF32, {20, 1}, out.lse);
  const TestTensor delta_TH = TestTensor::of(DType::kF32, {20, 1}, delta);
  attention_backward(context, {heads(dq, c, 1), heads(dk, c, 1), heads(dv, c, 1),
                               heads(problem.d_o, c, 1), problem.q(), problem.k(), problem.v(), lse,
                               delta_TH, problem.mask(), problem.scale()});
  for (const auto& [found, wanted] :
       {std::pair{&dq, &expected.dq}, {&dk, &expected.dk}, {&dv, &expected.dv}}) {
    auto sum = *wanted;
    for (double& x : sum) x += 100;
    expect_close(found->values(), sum, {1e-6}, "gradient");
  }
}

TEST_P(AttentionGradient,
       backward_has_the_same_bits_twice_and_equals_the_reference_for_any_thread_count) {
  if (on_gpu()) GTEST_SKIP() << "threads of the CPU";
  for (const std::int64_t sequences : {1, 3}) {
    const Problem problem(DType::kF32, {sequences, 2, 1, 24}, {{0, 300}}, {{0, 300}});
    const auto out = reference::attention_forward(problem.c);
    const auto d_o = problem.d_o.values();
    const auto delta = reference::attention_delta(problem.c, d_o, out.o);
    const auto expected = reference::attention_backward(problem.c, d_o, out.lse, delta);
    for (const int threads : {1, 2, 3, 7}) {
      const Gradients g = run_backward(GetParam(), threads, problem, out.lse, delta);
      const Gradients again = run_backward(GetParam(), threads, problem, out.lse, delta);
      EXPECT_EQ(g.dq.bits(), again.dq.bits());
      EXPECT_EQ(g.dk.bits(), again.dk.bits());
      EXPECT_EQ(g.dv.bits(), again.dv.bits());
      expect_close(packed(heads(g.dq, problem.c, 2)), expected.dq, kSumTolerance, "dq");
      expect_close(packed(heads(g.dk, problem.c, 1)), expected.dk, kSumTolerance, "dk");
    }
  }
}

TEST_P(AttentionGradient, delta_is_the_sum_of_products_of_each_head) {
  Context context = test_context(GetParam(), 2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Problem problem(dtype, {1, 3, 1, 22}, {{0, 50}}, {{0, 50}});
    const TestTensor o = TestTensor::random(dtype, {50, 66}, 5);
    TestTensor delta(DType::kF32, {50, 3});
    attention_delta(context, delta, heads(problem.d_o, problem.c, 3), heads(o, problem.c, 3));
    expect_close(delta.values(),
                 reference::attention_delta(problem.c, problem.d_o.values(), o.values()),
                 {1e-6, 1e-6}, "delta");
  }
}

TEST_P(AttentionGradient, nothing_is_done_for_no_tokens) {
  const Problem problem(DType::kF32, {2, 2, 1, 8}, {{5, 0}}, {{0, 3}});
  run_forward(GetParam(), 2, problem);
  run_backward(GetParam(), 2, problem, {}, {});
  const Problem no_keys(DType::kF32, {2, 2, 1, 8}, {{5, 9}}, {});
  const Gradients g = run_backward(GetParam(), 2, no_keys, std::vector<double>(36, -kInfinity),
                                   std::vector<double>(36, 0));
  for (const double x : g.dq.values()) EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace trireme
