#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "kernels/attention_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

using reference::AttentionCase;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Attention : public OpTest {};
TRIREME_FOR_ALL_ISAS(Attention);

struct Sizes {
  std::int64_t sequences, heads, kv_heads, head_dim;
};

/// Operands as tensors of the type under test (q, k, v side by side in wider rows, as a fused projection leaves them)
/// and, rounded alike, as doubles for the reference.
struct Problem {
  AttentionCase c;
  TestTensor qkv_q, qkv_kv, d_o, first_key;
  bool documents = false;

  Problem(DType dtype, const Sizes& sizes, std::vector<PositionRange> q_ranges, std::vector<PositionRange> kv_ranges,
          std::uint64_t seed = 1)
      : c{sizes.sequences, sizes.heads, sizes.kv_heads, sizes.head_dim, std::move(q_ranges), std::move(kv_ranges),
          {},  1 / std::sqrt(static_cast<double>(sizes.head_dim)), {}, {}, {}},
        qkv_q(TestTensor::random(dtype, {q_rows(), sizes.heads * sizes.head_dim + 3}, seed)),
        qkv_kv(TestTensor::random(dtype, {kv_rows(), 2 * sizes.kv_heads * sizes.head_dim + 5}, seed + 1)),
        d_o(TestTensor::random(dtype, {q_rows(), sizes.heads * sizes.head_dim}, seed + 2)),
        first_key(DType::kI32, {q_rows()}) {
    // Scores of a few units: probabilities neither all alike nor one alone.
    c.scale = static_cast<float>(1.5 * c.scale);
    c.q = packed(q());
    c.k = packed(k());
    c.v = packed(v());
  }
  /// Documents of `length` tokens: a query sees no key before its own document.
  void set_documents(std::int64_t length) {
    documents = true;
    std::int64_t row = 0;
    for (std::int64_t b = 0; b < c.sequences; ++b) {
      for (const PositionRange& range : c.q_ranges) {
        for (std::int64_t i = 0; i < range.count; ++i) {
          first_key.set(row++, static_cast<double>((range.first + i + 3 * b) / length * length));
        }
      }
    }
    c.first_key.clear();
    for (const double first : first_key.values()) c.first_key.push_back(static_cast<std::int32_t>(first));
  }

  [[nodiscard]] std::int64_t q_rows() const { return c.sequences * c.q_tokens(); }
  [[nodiscard]] std::int64_t kv_rows() const { return c.sequences * c.kv_tokens(); }
  [[nodiscard]] DType dtype() const { return d_o.dtype(); }
  [[nodiscard]] ConstHeadsView q() const { return heads_of(qkv_q.view(), 2, c.heads, c.head_dim); }
  [[nodiscard]] ConstHeadsView k() const { return heads_of(qkv_kv.view(), 1, c.kv_heads, c.head_dim); }
  [[nodiscard]] ConstHeadsView v() const {
    return heads_of(qkv_kv.view(), 4 + c.kv_heads * c.head_dim, c.kv_heads, c.head_dim);
  }
  [[nodiscard]] AttentionMask mask() const {
    return {c.sequences, c.q_ranges, c.kv_ranges, documents ? first_key.view() : ConstTensorView()};
  }
  [[nodiscard]] float scale() const { return static_cast<float>(c.scale); }

  static std::vector<double> packed(const ConstHeadsView& view) {
    std::vector<double> values;
    for (std::int64_t t = 0; t < view.tokens; ++t) {
      for (std::int64_t i = 0; i < view.heads * view.head_dim; ++i) {
        const std::int64_t at = t * view.token_stride + i;
        values.push_back(view.dtype == DType::kF32 ? reinterpret_cast<const float*>(view.data)[at]
                                                   : to_float(reinterpret_cast<const BFloat16*>(view.data)[at]));
      }
    }
    return values;
  }
};

struct Output {
  TestTensor o, lse;
};

HeadsView heads(TestTensor& tensor, const AttentionCase& c, std::int64_t count) {
  return heads_of(tensor.view(), 0, count, c.head_dim);
}
ConstHeadsView heads(const TestTensor& tensor, const AttentionCase& c, std::int64_t count) {
  return heads_of(tensor.view(), 0, count, c.head_dim);
}

Output run_forward(Isa isa, int threads, const Problem& problem) {
  Context context = cpu_context(isa, threads);
  const AttentionCase& c = problem.c;
  Output out{TestTensor::random(problem.dtype(), {problem.q_rows(), c.heads * c.head_dim + 1}, 9),
             TestTensor::random(DType::kF32, {problem.q_rows(), c.heads}, 9)};
  attention_forward(context, {heads(out.o, c, c.heads), out.lse, problem.q(), problem.k(), problem.v(),
                              problem.mask(), problem.scale()});
  return out;
}

std::vector<double> o_values(const Problem& problem, const Output& out) {
  return Problem::packed(heads(out.o, problem.c, problem.c.heads));
}

struct Gradients {
  TestTensor dq, dk, dv;
};

Gradients run_backward(Isa isa, int threads, const Problem& problem, const std::vector<double>& lse,
                       const std::vector<double>& delta) {
  Context context = cpu_context(isa, threads);
  const AttentionCase& c = problem.c;
  Gradients g{TestTensor(DType::kF32, {problem.q_rows(), c.heads * c.head_dim + 2}),
              TestTensor(DType::kF32, {problem.kv_rows(), c.kv_heads * c.head_dim + 1}),
              TestTensor(DType::kF32, {problem.kv_rows(), c.kv_heads * c.head_dim})};
  const TestTensor lse_TH = TestTensor::of(DType::kF32, {problem.q_rows(), c.heads}, lse);
  const TestTensor delta_TH = TestTensor::of(DType::kF32, {problem.q_rows(), c.heads}, delta);
  attention_backward(context,
                     {heads(g.dq, c, c.heads), heads(g.dk, c, c.kv_heads), heads(g.dv, c, c.kv_heads),
                      heads(problem.d_o, c, c.heads), problem.q(), problem.k(), problem.v(), lse_TH, delta_TH,
                      problem.mask(), problem.scale()});
  return g;
}

/// Sums of many products: rounding of the order of the largest elements, some 1e-6 of them.
constexpr Tolerance kSumTolerance = {2e-6, 4e-6};

void expect_gradient(const ConstHeadsView& found, const std::vector<double>& expected, const std::string& what) {
  const auto values = Problem::packed(found);
  const auto vanishes = [](double x) { return std::abs(x) < 1e-12; };
  if (!std::all_of(expected.begin(), expected.end(), vanishes)) {
    return expect_close(values, expected, kSumTolerance, what);
  }
  // One key: dO.v and delta cancel, and what is left is their rounding.
  for (const double x : values) ASSERT_LE(std::abs(x), 1e-5) << what;
}

void expect_equal_to_reference(Isa isa, int threads, const Problem& problem, const std::string& what) {
  const AttentionCase& c = problem.c;
  const auto expected = reference::attention_forward(c);
  const Output out = run_forward(isa, threads, problem);
  const Tolerance o_tolerance = problem.dtype() == DType::kBF16 ? Tolerance{1.02 / 256, 1e-5} : kSumTolerance;
  expect_close(o_values(problem, out), expected.o, o_tolerance, what + " o");
  expect_close(out.lse.values(), expected.lse, {2e-6, 2e-6}, what + " lse");

  const auto d_o = problem.d_o.values();
  const auto delta = reference::attention_delta(c, d_o, expected.o);
  const auto wanted = reference::attention_backward(c, d_o, expected.lse, delta);
  const Gradients g = run_backward(isa, threads, problem, expected.lse, delta);
  expect_gradient(heads(std::as_const(g.dq), c, c.heads), wanted.dq, what + " dq");
  expect_gradient(heads(std::as_const(g.dk), c, c.kv_heads), wanted.dk, what + " dk");
  expect_gradient(heads(std::as_const(g.dv), c, c.kv_heads), wanted.dv, what + " dv");
}

std::string text_of(const Sizes& s, std::int64_t tokens) {
  return "B" + std::to_string(s.sequences) + " H" + std::to_string(s.heads) + " G" + std::to_string(s.kv_heads) +
         " D" + std::to_string(s.head_dim) + " T" + std::to_string(tokens);
}

TEST_P(Attention, two_queries_by_hand) {
  Context context = cpu_context(GetParam());
  // Query 0 sees key 0 only. Query 1 has scores 0 and log 3: weights 1/4, 3/4.
  const TestTensor q = TestTensor::of(DType::kF32, {2, 2}, {5, 7, 1, 0});
  const TestTensor k = TestTensor::of(DType::kF32, {2, 2}, {0, 1, std::log(3.0), 0});
  const TestTensor v = TestTensor::of(DType::kF32, {2, 2}, {4, -8, 8, 0});
  TestTensor o(DType::kF32, {2, 2}), lse(DType::kF32, {2, 1});
  const PositionRange range{0, 2};
  attention_forward(context, {heads_of(o.view(), 0, 1, 2), lse, heads_of(std::as_const(q).view(), 0, 1, 2),
                              heads_of(k.view(), 0, 1, 2), heads_of(v.view(), 0, 1, 2),
                              {1, {&range, 1}, {&range, 1}, {}}, 1.0F});
  expect_close(o.values(), {4, -8, 7, -2}, {1e-6}, "o");
  expect_close(lse.values(), {7, std::log(4.0)}, {1e-6}, "lse");
}

TEST_P(Attention, equals_the_reference_for_whole_sequences_of_any_length) {
  for (const std::int64_t tokens : {1, 2, 4, 5, 16, 37, 64, 65, 130}) {
    for (const Sizes& sizes : {Sizes{2, 3, 3, 24}, Sizes{1, 6, 2, 64}}) {
      const Problem problem(DType::kF32, sizes, {{0, tokens}}, {{0, tokens}});
      expect_equal_to_reference(GetParam(), 2, problem, text_of(sizes, tokens));
    }
  }
}

TEST_P(Attention, equals_the_reference_for_any_head_size_and_grouping) {
  for (const std::int64_t head_dim : {2, 6, 8, 24, 34, 64, 80, 128, 256}) {
    for (const auto& [query_heads, kv_heads] : {std::pair<std::int64_t, std::int64_t>{2, 2}, {6, 2}, {3, 1}}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const Sizes sizes{1, query_heads, kv_heads, head_dim};
        const Problem problem(dtype, sizes, {{0, 70}}, {{0, 70}});
        expect_equal_to_reference(GetParam(), 3, problem, text_of(sizes, 70));
      }
    }
  }
}

TEST_P(Attention, equals_the_reference_for_pieces_of_a_sequence) {
  const std::vector<std::pair<std::vector<PositionRange>, std::vector<PositionRange>>> pieces = {
      {{{100, 1}}, {{0, 101}}},                       // a token behind a cache
      {{{90, 40}}, {{0, 130}}},                       // some tokens behind a cache
      {{{0, 40}}, {{40, 40}}},                        // keys all later: nothing is seen
      {{{10, 70}}, {{50, 100}}},                      // some queries see nothing
      {{{0, 33}, {99, 33}}, {{33, 66}}},              // zigzag: the first and the last quarter, keys of another rank
      {{{0, 33}, {99, 33}}, {{0, 33}, {99, 33}}},     // zigzag: keys of the same rank
      {{{99, 33}, {0, 33}}, {{64, 80}, {0, 10}}},     // descending ranges
      {{{5, 1}, {9, 3}, {70, 100}}, {{3, 2}, {0, 1}, {8, 70}, {150, 1}}}};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Sizes sizes{2, 4, 2, 24};
    Problem problem(DType::kF32, sizes, pieces[i].first, pieces[i].second, i);
    expect_equal_to_reference(GetParam(), 2, problem, "piece " + std::to_string(i));
    problem.set_documents(29);
    expect_equal_to_reference(GetParam(), 2, problem, "piece with documents " + std::to_string(i));
  }
}

TEST_P(Attention, equals_the_reference_for_random_ranges) {
  std::uint64_t counter = 0;
  const auto below = [&](std::uint64_t bound) { return static_cast<std::int64_t>(uniform_below(7, bound, &counter)); };
  const auto ranges = [&](std::int64_t most) {
    std::vector<PositionRange> list;
    for (std::int64_t i = 1 + below(4); i > 0; --i) list.push_back({below(200), below(static_cast<std::uint64_t>(most))});
    return list;
  };
  for (int i = 0; i < 25; ++i) {
    const std::int64_t kv_heads = 1 + below(3);
    const Sizes sizes{1 + below(2), kv_heads * (1 + below(3)), kv_heads, 2 + 2 * below(30)};
    Problem problem(i % 3 == 0 ? DType::kBF16 : DType::kF32, sizes, ranges(i % 2 == 0 ? 80 : 3), ranges(100), 100);
    if (i % 2 == 1) problem.set_documents(1 + below(100));
    expect_equal_to_reference(GetParam(), 1 + static_cast<int>(below(4)), problem, "random " + std::to_string(i));
  }
}

TEST_P(Attention, a_document_sees_nothing_of_the_one_before) {
  Problem problem(DType::kF32, {1, 1, 1, 8}, {{0, 80}}, {{0, 80}});
  problem.set_documents(50);
  const Output before = run_forward(GetParam(), 1, problem);
  for (std::int64_t i = 0; i < 50; ++i) problem.qkv_kv.set(i * 21 + 12, 1000);  // v of the first document
  const Output after = run_forward(GetParam(), 1, problem);
  EXPECT_EQ(before.o.bits().substr(50 * 9 * 4), after.o.bits().substr(50 * 9 * 4));
  EXPECT_NE(before.o.bits(), after.o.bits());
}

TEST_P(Attention, a_query_without_keys_gets_zero_and_minus_infinity) {
  for (const std::int64_t tokens : {3, 40}) {
    const Problem problem(DType::kF32, {1, 2, 1, 10}, {{0, tokens}}, {{64, 5}});
    const Output out = run_forward(GetParam(), 1, problem);
    for (const double o : o_values(problem, out)) EXPECT_EQ(o, 0);
    for (const double lse : out.lse.values()) EXPECT_EQ(lse, -kInfinity);
  }
  const Problem none(DType::kF32, {1, 2, 1, 10}, {{0, 40}}, {});
  for (const double lse : run_forward(GetParam(), 1, none).lse.values()) EXPECT_EQ(lse, -kInfinity);
}

TEST_P(Attention, scores_of_any_size_do_not_overflow) {
  for (const std::int64_t tokens : {4, 70}) {
    Problem problem(DType::kF32, {1, 2, 2, 16}, {{0, tokens}}, {{0, tokens}});
    problem.c.scale = 500;
    const auto expected = reference::attention_forward(problem.c);
    const Output out = run_forward(GetParam(), 1, problem);
    for (const double o : o_values(problem, out)) ASSERT_TRUE(std::isfinite(o));
    expect_close(out.lse.values(), expected.lse, {1e-6, 1e-6}, "lse");
  }
}

TEST_P(Attention, a_number_that_is_not_finite_shows_in_what_saw_it) {
  for (const std::int64_t tokens : {4, 70}) {
    Problem problem(DType::kF32, {1, 1, 1, 8}, {{0, tokens}}, {{0, tokens}});
    problem.qkv_kv.set(2 * 21 + 1, std::nan(""));  // k of token 2
    const Output out = run_forward(GetParam(), 1, problem);
    const auto o = o_values(problem, out);
    EXPECT_TRUE(std::isfinite(o[0]));
    EXPECT_TRUE(std::isnan(o.back()));
    EXPECT_TRUE(std::isnan(out.lse.values().back()));
  }
}

TEST_P(Attention, gradients_equal_finite_differences) {
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
    Context context = cpu_context(GetParam());
    TestTensor delta(DType::kF32, {problem.q_rows(), c.heads});
    attention_delta(context, delta, heads(problem.d_o, c, c.heads), heads(out.o, c, c.heads));
    const Gradients g = run_backward(GetParam(), 1, problem, out.lse.values(), delta.values());
    expect_close(Problem::packed(heads(g.dq, c, c.heads)), difference(&AttentionCase::q), {2e-6, 2e-6}, "dq");
    expect_close(Problem::packed(heads(g.dk, c, c.kv_heads)), difference(&AttentionCase::k), {2e-6, 2e-6}, "dk");
    expect_close(Problem::packed(heads(g.dv, c, c.kv_heads)), difference(&AttentionCase::v), {2e-6, 2e-6}, "dv");
  }
}

TEST_P(Attention, backward_adds_to_what_stands_there) {
  const Problem problem(DType::kF32, {1, 1, 1, 8}, {{0, 20}}, {{0, 20}});
  const AttentionCase& c = problem.c;
  const auto out = reference::attention_forward(c);
  const auto delta = reference::attention_delta(c, problem.d_o.values(), out.o);
  const auto expected = reference::attention_backward(c, problem.d_o.values(), out.lse, delta);
  Context context = cpu_context(GetParam());
  TestTensor dq = TestTensor::of(DType::kF32, {20, 8}, std::vector<double>(160, 100)), dk = dq, dv = dq;
  const TestTensor lse = TestTensor::of(DType::kF32, {20, 1}, out.lse);
  const TestTensor delta_TH = TestTensor::of(DType::kF32, {20, 1}, delta);
  attention_backward(context, {heads(dq, c, 1), heads(dk, c, 1), heads(dv, c, 1), heads(problem.d_o, c, 1),
                               problem.q(), problem.k(), problem.v(), lse, delta_TH, problem.mask(),
                               problem.scale()});
  for (const auto& [found, wanted] : {std::pair{&dq, &expected.dq}, {&dk, &expected.dk}, {&dv, &expected.dv}}) {
    auto sum = *wanted;
    for (double& x : sum) x += 100;
    expect_close(found->values(), sum, {1e-6}, "gradient");
  }
}

TEST_P(Attention, forward_has_the_same_bits_for_any_thread_count) {
  for (const auto& ranges : {std::vector<PositionRange>{{0, 300}}, {{0, 90}, {210, 90}}, {{77, 3}}}) {
    Problem problem(DType::kF32, {1, 3, 1, 24}, ranges, {{0, 150}, {200, 100}});
    problem.set_documents(140);
    const Output one = run_forward(GetParam(), 1, problem);
    for (const int threads : {1, 2, 3, 7}) {
      const Output more = run_forward(GetParam(), threads, problem);
      EXPECT_EQ(one.o.bits(), more.o.bits());
      EXPECT_EQ(one.lse.bits(), more.lse.bits());
    }
  }
}

TEST_P(Attention, a_query_has_the_same_bits_whatever_queries_stand_around_it) {
  const Problem whole(DType::kF32, {1, 2, 1, 24}, {{0, 200}}, {{0, 200}});
  const Output all = run_forward(GetParam(), 1, whole);
  const AttentionCase& c = whole.c;
  Context context = cpu_context(GetParam());
  const std::int64_t begin = 77, count = 101;
  TestTensor o(DType::kF32, {count, 2 * 24 + 1}), lse(DType::kF32, {count, 2});
  const PositionRange part{begin, count};
  attention_forward(context, {heads(o, c, 2), lse, whole.q().rows(begin, count), whole.k(), whole.v(),
                              {1, {&part, 1}, c.kv_ranges, {}}, whole.scale()});
  EXPECT_EQ(lse.bits(), all.lse.bits().substr(begin * 2 * 4, count * 2 * 4));
  EXPECT_EQ(Problem::packed(heads(std::as_const(o), c, 2)),
            Problem::packed(heads(all.o, c, 2).rows(begin, count)));
}

TEST_P(Attention, backward_has_the_same_bits_twice_and_equals_the_reference_for_any_thread_count) {
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
      expect_close(Problem::packed(heads(g.dq, problem.c, 2)), expected.dq, kSumTolerance, "dq");
      expect_close(Problem::packed(heads(g.dk, problem.c, 1)), expected.dk, kSumTolerance, "dk");
    }
  }
}

TEST_P(Attention, merging_two_sets_of_keys_gives_attention_over_both) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Sizes sizes{2, 4, 2, 24};
    const Problem whole(dtype, sizes, {{0, 60}}, {{0, 60}});
    Context context = cpu_context(GetParam(), 2);
    const auto part = [&](std::int64_t begin, std::int64_t count) {
      // Keys of both sequences, picked row by row.
      Problem piece(dtype, sizes, {{0, 60}}, {{begin, count}});
      const std::int64_t row = 2 * 2 * 24 + 5;
      const auto values = whole.qkv_kv.values();
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t i = 0; i < count * row; ++i) {
          piece.qkv_kv.set(b * count * row + i, values[static_cast<std::size_t>((b * 60 + begin) * row + i)]);
        }
      }
      return run_forward(GetParam(), 1, piece);
    };
    Output first = part(0, 25);
    const Output second = part(25, 35);
    attention_merge(context, heads(first.o, whole.c, 4), first.lse, heads(second.o, whole.c, 4), second.lse);
    const auto expected = reference::attention_forward(whole.c);
    const Tolerance tolerance = dtype == DType::kBF16 ? Tolerance{3.0 / 256, 3.0 / 256} : kSumTolerance;
    expect_close(o_values(whole, first), expected.o, tolerance, "o");
    expect_close(first.lse.values(), expected.lse, {2e-6, 2e-6}, "lse");
  }
}

TEST_P(Attention, merging_with_nothing_changes_nothing) {
  Context context = cpu_context(GetParam());
  const TestTensor x = TestTensor::random(DType::kF32, {3, 6}, 1), zero(DType::kF32, {3, 6});
  const TestTensor none = TestTensor::of(DType::kF32, {3, 1}, {-kInfinity, -kInfinity, -kInfinity});
  const TestTensor lse = TestTensor::of(DType::kF32, {3, 1}, {-3, 0, 40});
  const auto view = [](auto& tensor) { return heads_of(tensor.view(), 0, 1, 6); };
  TestTensor o = x, l = lse;
  attention_merge(context, view(o), l, view(zero), none);
  EXPECT_EQ(o.bits(), x.bits());
  EXPECT_EQ(l.bits(), lse.bits());
  o = zero, l = none;
  attention_merge(context, view(o), l, view(x), lse);
  EXPECT_EQ(o.bits(), x.bits());
  EXPECT_EQ(l.bits(), lse.bits());
  o = zero, l = none;
  attention_merge(context, view(o), l, view(zero), none);
  EXPECT_EQ(o.bits(), zero.bits());
  EXPECT_EQ(l.bits(), none.bits());
}

TEST_P(Attention, delta_is_the_sum_of_products_of_each_head) {
  Context context = cpu_context(GetParam(), 2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Problem problem(dtype, {1, 3, 1, 22}, {{0, 50}}, {{0, 50}});
    const TestTensor o = TestTensor::random(dtype, {50, 66}, 5);
    TestTensor delta(DType::kF32, {50, 3});
    attention_delta(context, delta, heads(problem.d_o, problem.c, 3), heads(o, problem.c, 3));
    expect_close(delta.values(), reference::attention_delta(problem.c, problem.d_o.values(), o.values()),
                 {1e-6, 1e-6}, "delta");
  }
}

TEST_P(Attention, nothing_is_done_for_no_tokens) {
  const Problem problem(DType::kF32, {2, 2, 1, 8}, {{5, 0}}, {{0, 3}});
  run_forward(GetParam(), 2, problem);
  run_backward(GetParam(), 2, problem, {}, {});
  const Problem no_keys(DType::kF32, {2, 2, 1, 8}, {{5, 9}}, {});
  const Gradients g = run_backward(GetParam(), 2, no_keys, std::vector<double>(36, -kInfinity),
                                   std::vector<double>(36, 0));
  for (const double x : g.dq.values()) EXPECT_EQ(x, 0);
}

TEST_P(Attention, wrong_operands_are_refused_by_name) {
  Context context = cpu_context(GetParam());
  const PositionRange range{0, 3};
  const AttentionMask mask{1, {&range, 1}, {&range, 1}, {}};
  TestTensor o(DType::kF32, {3, 12}), lse(DType::kF32, {3, 2}), bf16(DType::kBF16, {3, 12});
  const auto view = [](TestTensor& x, std::int64_t count, std::int64_t dim) { return heads_of(x.view(), 0, count, dim); };
  const AttentionForward good{view(o, 2, 6), lse, view(o, 2, 6), view(o, 1, 6), view(o, 1, 6), mask, 1};
  attention_forward(context, good);

  AttentionForward bad = good;
  bad.q = view(o, 2, 5);
  expect_refused([&] { attention_forward(context, bad); }, "attention_forward.q: the head size must be even");
  bad = good;
  bad.k = view(bf16, 1, 6);
  expect_refused([&] { attention_forward(context, bad); },
                 "attention_forward.k: expected heads [3, 1, 6] fp32, found [3, 1, 6] bf16");
  bad = good;
  bad.q = view(o, 2, 6).rows(0, 2);
  expect_refused([&] { attention_forward(context, bad); }, "attention_forward.q: expected heads [3, 2, 6]");
  bad = good;
  bad.q = bad.o = view(o, 1, 6);
  bad.k = bad.v = view(o, 2, 6);
  expect_refused([&] { attention_forward(context, bad); }, "must be a multiple of the number of key heads");
  bad = good;
  const PositionRange negative{-1, 3};
  bad.mask.kv = {&negative, 1};
  expect_refused([&] { attention_forward(context, bad); }, "attention_forward.mask.kv: a range is negative");
  bad = good;
  bad.mask.first_key_T = lse.view();
  expect_refused([&] { attention_forward(context, bad); }, "attention_forward.mask.first_key: expected [3] int32");
  bad = good;
  bad.lse_TH = o.view();
  expect_refused([&] { attention_forward(context, bad); }, "attention_forward.lse: expected [3, 2] fp32");

  AttentionBackward backward{view(bf16, 2, 6), view(o, 1, 6), view(o, 1, 6), view(o, 2, 6), view(o, 2, 6),
                             view(o, 1, 6),    view(o, 1, 6), lse.view(),    lse.view(),    mask, 1};
  expect_refused([&] { attention_backward(context, backward); }, "attention_backward.dq: expected heads [3, 2, 6] fp32");
  expect_refused([&] { attention_delta(context, lse, view(o, 2, 6), view(bf16, 2, 6)); },
                 "attention_delta.d_o: expected heads [3, 2, 6] bf16");
  expect_refused([&] { attention_merge(context, view(o, 2, 6), lse, view(o, 1, 6), lse); },
                 "attention_merge.o2: expected heads [3, 2, 6]");
}

}  // namespace
}  // namespace trireme
