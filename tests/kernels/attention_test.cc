#include "kernels/attention/attention.h"

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/attention_support.h"

namespace trireme {
namespace {

using namespace attention_testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Attention : public OpTest {};
TRIREME_FOR_ALL_ISAS(Attention);

TEST_P(Attention, two_queries_by_hand) {
  Context context = test_context(GetParam());
  // Query 0 sees key 0 only. Query 1 has scores 0 and log 3: weights 1/4, 3/4.
  const TestTensor q = TestTensor::of(DType::kF32, {2, 2}, {5, 7, 1, 0});
  const TestTensor k = TestTensor::of(DType::kF32, {2, 2}, {0, 1, std::log(3.0), 0});
  const TestTensor v = TestTensor::of(DType::kF32, {2, 2}, {4, -8, 8, 0});
  TestTensor o(DType::kF32, {2, 2}), lse(DType::kF32, {2, 1});
  const PositionRange range{0, 2};
  attention_forward(context, {heads_of(o.view(), 0, 1, 2),
                              lse,
                              heads_of(std::as_const(q).view(), 0, 1, 2),
                              heads_of(k.view(), 0, 1, 2),
                              heads_of(v.view(), 0, 1, 2),
                              {1, {&range, 1}, {&range, 1}, {}},
                              1.0F});
  expect_close(o.values(), {4, -8, 7, -2}, {1e-6}, "o");
  expect_close(lse.values(), {7, std::log(4.0)}, {1e-6}, "lse");
}

TEST_P(Attention, what_is_left_for_a_product_are_the_bits_of_a_pass_of_its_own) {
  const Problem problem(DType::kBF16, {2, 3, 1, 16, 8}, {{0, 9}}, {{2, 5}});
  expect_left_of_o(GetParam(), problem, Left::kCodesAndMaximum, "bf16");
  const Problem wide(DType::kF32, {1, 2, 1, 16}, {{0, 9}}, {{0, 9}});
  expect_left_of_o(GetParam(), wide, Left::kMaximum, "f32");
  Context context = test_context(GetParam());
  TestTensor o(DType::kBF16, {18, 25}), lse(DType::kF32, {18, 3}), amax(DType::kI32, {1});
  AttentionForward args{values(o, problem.c, 3), lse, problem.q(), problem.k(), problem.v(),
                        problem.mask(),          1.0F};
  args.quantized.amax_P = amax;
  expect_refused([&] { attention_forward(context, args); }, "columns that are no head's");
}

TEST_P(Attention, a_document_sees_nothing_of_the_one_before) {
  Problem problem(DType::kF32, {1, 1, 1, 8}, {{0, 80}}, {{0, 80}});
  problem.set_documents(50);
  const Output before = run_forward(GetParam(), 1, problem);
  for (std::int64_t i = 0; i < 50; ++i)
    problem.qkv_kv.set(i * 21 + 12, 1000);  // v of the first document
  const Output after = run_forward(GetParam(), 1, problem);
  EXPECT_EQ(before.o.bits().substr(50 * 9 * 4), after.o.bits().substr(50 * 9 * 4));
  EXPECT_NE(before.o.bits(), after.o.bits());
}

TEST_P(Attention, a_query_sees_nothing_before_its_window) {
  Problem problem(DType::kF32, {1, 1, 1, 8}, {{0, 80}}, {{0, 80}});
  problem.c.window = 30;
  const Output before = run_forward(GetParam(), 1, problem);
  problem.qkv_kv.set(20 * 21 + 12, 1000);  // v of token 20
  const Output after = run_forward(GetParam(), 1, problem);
  const auto rows = [](const Output& out, std::size_t first, std::size_t count) {
    return out.o.bits().substr(first * 9 * 4, count * 9 * 4);
  };
  EXPECT_EQ(rows(before, 50, 30), rows(after, 50, 30));
  EXPECT_NE(rows(before, 49, 1), rows(after, 49, 1)) << "the last that sees it";
}

TEST_P(Attention, a_window_of_all_tokens_has_the_bits_of_none) {
  for (const std::int64_t tokens : {4, 90}) {
    Problem problem(DType::kF32, {1, 2, 1, 16}, {{0, tokens}}, {{0, tokens}});
    const Output whole = run_forward(GetParam(), 1, problem);
    for (const std::int64_t window : {tokens, tokens + 1, std::int64_t{1} << 40}) {
      problem.c.window = window;
      const Output out = run_forward(GetParam(), 1, problem);
      EXPECT_EQ(out.o.bits(), whole.o.bits()) << window;
      EXPECT_EQ(out.lse.bits(), whole.lse.bits()) << window;
    }
  }
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

TEST_P(Attention, forward_has_the_same_bits_for_any_thread_count) {
  if (on_gpu()) GTEST_SKIP() << "threads of the CPU";
  for (const auto& ranges :
       {std::vector<PositionRange>{{0, 300}}, {{0, 90}, {210, 90}}, {{77, 3}}}) {
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
  expect_same_bits_among_other_queries(
      GetParam(), Problem(DType::kF32, {1, 2, 1, 24}, {{0, 200}}, {{0, 200}}), {77, 101});
}

TEST_P(Attention, merging_two_sets_of_keys_gives_attention_over_both) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Sizes sizes{2, 4, 2, 24};
    const Problem whole(dtype, sizes, {{0, 60}}, {{0, 60}});
    Context context = test_context(GetParam(), 2);
    const auto part = [&](std::int64_t begin, std::int64_t count) {
      // Keys of both sequences, picked row by row.
      Problem piece(dtype, sizes, {{0, 60}}, {{begin, count}});
      const std::int64_t row = 2 * 2 * 24 + 5;
      const auto values = whole.qkv_kv.values();
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t i = 0; i < count * row; ++i) {
          piece.qkv_kv.set(b * count * row + i,
                           values[static_cast<std::size_t>((b * 60 + begin) * row + i)]);
        }
      }
      return run_forward(GetParam(), 1, piece);
    };
    Output first = part(0, 25);
    const Output second = part(25, 35);
    attention_merge(context, heads(first.o, whole.c, 4), first.lse, heads(second.o, whole.c, 4),
                    second.lse);
    const auto expected = reference::attention_forward(whole.c);
    const Tolerance tolerance =
        dtype == DType::kBF16 ? Tolerance{3.0 / 256, 3.0 / 256} : kSumTolerance;
    expect_close(o_values(whole, first), expected.o, tolerance, "o");
    expect_close(first.lse.values(), expected.lse, {2e-6, 2e-6}, "lse");
  }
}

TEST_P(Attention, merging_with_nothing_changes_nothing) {
  Context context = test_context(GetParam());
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

TEST_P(Attention, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  const PositionRange range{0, 3};
  const AttentionMask mask{1, {&range, 1}, {&range, 1}, {}};
  TestTensor o(DType::kF32, {3, 12}), lse(DType::kF32, {3, 2}), bf16(DType::kBF16, {3, 12}),
      out(DType::kF32, {3, 12});
  const auto view = [](TestTensor& x, std::int64_t count, std::int64_t dim) {
    return heads_of(x.view(), 0, count, dim);
  };
  const AttentionForward good{
      view(out, 2, 6), lse, view(o, 2, 6), view(o, 1, 6), view(o, 1, 6), mask, 1};
  attention_forward(context, good);

  AttentionForward bad = good;
  bad.q = view(o, 2, 5);
  expect_refused([&] { attention_forward(context, bad); },
                 "attention_forward.q: the head size must be even");
  bad = good;
  bad.k = view(bf16, 1, 6);
  expect_refused([&] { attention_forward(context, bad); },
                 "attention_forward.k: expected heads [3, 1, 6] fp32, found [3, 1, 6] bf16");
  bad = good;
  bad.q = view(o, 2, 6).rows(0, 2);
  expect_refused([&] { attention_forward(context, bad); },
                 "attention_forward.q: expected heads [3, 2, 6]");
  bad = good;
  bad.q = bad.o = view(o, 1, 6);
  bad.k = bad.v = view(o, 2, 6);
  expect_refused([&] { attention_forward(context, bad); },
                 "must be a multiple of the number of KV heads");
  bad = good;
  const PositionRange negative{-1, 3};
  bad.mask.kv = {&negative, 1};
  expect_refused([&] { attention_forward(context, bad); },
                 "attention_forward.mask.kv: a range is negative");
  bad = good;
  bad.mask.first_key_T = lse.view();
  expect_refused([&] { attention_forward(context, bad); },
                 "attention_forward.mask.first_key: expected [3] int32");
  bad = good;
  bad.scale = 0;
  expect_refused([&] { attention_forward(context, bad); },
                 "attention_forward.scale: must be positive");
  bad = good;
  bad.lse_TH = o.view();
  expect_refused([&] { attention_forward(context, bad); },
                 "attention_forward.lse: expected [3, 2] fp32");

  AttentionBackward backward{view(bf16, 2, 6),
                             view(o, 1, 6),
                             view(o, 1, 6),
                             view(o, 2, 6),
                             view(o, 2, 6),
                             view(o, 1, 6),
                             view(o, 1, 6),
                             lse.view(),
                             lse.view(),
                             mask,
                             1};
  expect_refused([&] { attention_backward(context, backward); },
                 "attention_backward.dq: expected heads [3, 2, 6] fp32");
  expect_refused([&] { attention_delta(context, lse, view(o, 2, 6), view(bf16, 2, 6)); },
                 "attention_delta.d_o: expected heads [3, 2, 6] bf16");
  expect_refused([&] { attention_merge(context, view(o, 2, 6), lse, view(o, 1, 6), lse); },
                 "attention_merge.o2: expected heads [3, 2, 6]");
}

}  // namespace
}  // namespace trireme
