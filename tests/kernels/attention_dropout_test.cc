// Dropout of attention's probabilities: the choice by its definition, wherever tiles begin.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_internal.h"
#include "kernels/attention_support.h"

namespace trireme {
namespace {

using namespace attention_testing;

constexpr std::uint64_t kKey = 0x1234567890abcdef;

class AttentionDropped : public OpTest {};
TRIREME_FOR_ALL_ISAS(AttentionDropped);

TEST_P(AttentionDropped, equals_the_reference_at_every_head_size) {
  const std::int64_t tokens = on_gpu() ? 67 : 150;
  for (const std::int64_t head_dim : {6, 64, 72, 128, 136, 256}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (on_gpu() && dtype == DType::kF32 && head_dim % 64 != 0) continue;
      for (const double share : {0.1, 0.75}) {
        if (share > 0.5 && head_dim > 64) continue;
        Problem problem(dtype, {1, 4, 2, head_dim}, {{0, tokens}}, {{0, tokens}});
        problem.set_dropout(share);
        expect_equal_to_reference(GetParam(), 2, problem, "D" + std::to_string(head_dim));
      }
    }
  }
}

TEST_P(AttentionDropped, equals_the_reference_for_pieces_documents_and_windows) {
  struct Pieces {
    std::vector<PositionRange> q, kv;
  };
  // Whole blocks of 32 queries and 16 keys, and such as begin and end within one.
  const std::vector<Pieces> all = {{{{0, 96}, {288, 96}}, {{96, 96}, {192, 96}}},
                                   {{{0, 33}, {99, 33}}, {{0, 33}, {99, 33}}},
                                   {{{5, 1}, {9, 3}, {70, 61}}, {{3, 2}, {0, 1}, {8, 70}, {85, 9}}},
                                   {{{90, 3}}, {{0, 93}}}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t dims : {24, 200}) {
        if (on_gpu() && dims > 24 && (dtype == DType::kF32 || i == 0)) continue;
        Problem problem(dtype, {2, 2, 1, dims, dims - 8}, all[i].q, all[i].kv, i);
        problem.set_dropout(0.4, kKey + i, 5);
        const std::string what = "pieces " + std::to_string(i);
        expect_equal_to_reference(GetParam(), 3, problem, what);
        problem.set_documents(29);
        problem.c.window = 41;
        expect_equal_to_reference(GetParam(), 2, problem, what + " masked");
      }
    }
  }
}

TEST_P(AttentionDropped, gradients_equal_finite_differences) {
  Problem problem(DType::kF32, {1, 2, 1, 4}, {{3, 9}}, {{0, 7}, {8, 4}});
  problem.set_dropout(0.3);
  const AttentionCase& c = problem.c;
  const auto d_o = problem.d_o.values();
  const auto difference = [&](std::vector<double> AttentionCase::*operand) {
    AttentionCase moved = c;
    return finite_differences(c.*operand, [&](const std::vector<double>& at) {
      moved.*operand = at;
      const auto o = reference::attention_forward(moved).o;
      double sum = 0;
      for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * d_o[i];
      return sum;
    });
  };
  const Output out = run_forward(GetParam(), 1, problem);
  Context context = test_context(GetParam());
  TestTensor delta(DType::kF32, {problem.q_rows(), c.heads});
  attention_delta(context, delta, heads(problem.d_o, c, c.heads), heads(out.o, c, c.heads));
  const Gradients g = run_backward(GetParam(), 1, problem, out.lse.values(), delta.values());
  expect_close(packed(heads(g.dq, c, c.heads)), difference(&AttentionCase::q), {4e-6, 4e-6}, "dq");
  expect_close(packed(heads(g.dk, c, c.kv_heads)), difference(&AttentionCase::k), {4e-6, 4e-6},
               "dk");
  expect_close(packed(heads(g.dv, c, c.kv_heads)), difference(&AttentionCase::v), {4e-6, 4e-6},
               "dv");
}

TEST_P(AttentionDropped, nothing_dropped_has_the_bits_of_no_dropout) {
  for (const std::int64_t tokens : {3, 70}) {
    Problem problem(DType::kBF16, {1, 2, 1, 24}, {{0, tokens}}, {{0, tokens}});
    const auto bits = [&] {
      const Output out = run_forward(GetParam(), 1, problem);
      const std::vector<double> zeros(static_cast<std::size_t>(2 * tokens), 0.25);
      const Gradients g = run_backward(GetParam(), 1, problem, out.lse.values(), zeros);
      return out.o.bits() + out.lse.bits() + g.dq.bits() + g.dk.bits() + g.dv.bits();
    };
    const std::string without = bits();
    problem.set_dropout(0x1p-18);
    EXPECT_TRUE(bits() == without);
    problem.set_dropout(0.5);
    EXPECT_FALSE(bits() == without);
  }
}

TEST_P(AttentionDropped, log_sum_exps_are_those_of_all_pairs) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Problem problem(dtype, {1, 2, 1, 64}, {{0, 70}}, {{0, 70}}, 1, Rows::kAnywhere);
    const std::string without = run_forward(GetParam(), 1, problem).lse.bits();
    problem.set_dropout(0.5);
    EXPECT_TRUE(run_forward(GetParam(), 1, problem).lse.bits() == without);
  }
}

/// Weights of one head over values of one dim each: what is kept shows as it is.
std::vector<double> kept_pairs(Isa isa, double share, std::uint64_t key, std::int64_t head) {
  constexpr std::int64_t kTokens = 128;
  Problem problem(DType::kF32, {1, 1, 1, 128}, {{kTokens, kTokens}}, {{0, kTokens}});
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t d = 0; d < 128; ++d) {
      problem.qkv_q.set(t * 131 + 2 + d, 0);
      problem.qkv_kv.set(t * 261 + 4 + 128 + d, t == d ? kTokens : 0);
    }
  }
  problem.set_dropout(share, key, head);
  return o_values(problem, run_forward(isa, 2, problem));
}

TEST_P(AttentionDropped, keeps_the_share_and_the_mean_and_other_heads_and_keys_others) {
  const std::vector<double> values = kept_pairs(GetParam(), 0.1, kKey, 0);
  const auto count = static_cast<double>(values.size());
  const auto zeros = static_cast<double>(std::count(values.begin(), values.end(), 0.0));
  double sum = 0;
  for (const double value : values) sum += value;
  // Four standard deviations.
  EXPECT_NEAR(zeros / count, 0.1, 4 * std::sqrt(0.1 * 0.9 / count));
  EXPECT_NEAR(sum / count, 1, 4 * std::sqrt(0.1 / 0.9 / count));
  for (const auto& other :
       {kept_pairs(GetParam(), 0.1, kKey + 1, 0), kept_pairs(GetParam(), 0.1, kKey, 1)}) {
    double both = 0;
    for (std::size_t i = 0; i < values.size(); ++i) both += values[i] == 0 && other[i] == 0 ? 1 : 0;
    EXPECT_NEAR(both / count, 0.01, 4 * std::sqrt(0.01 * 0.99 / count));
  }
}

TEST_P(AttentionDropped, heads_and_queries_by_themselves_have_the_bits_of_all) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Problem problem(dtype, {1, 3, 3, 8}, {{0, 150}}, {{0, 150}});
    problem.set_dropout(0.3);
    expect_same_bits_among_other_queries(GetParam(), problem, {77, 61});
    const Output all = run_forward(GetParam(), 1, problem);
    Context context = test_context(GetParam());
    TestTensor o(dtype, {150, 8}), lse(DType::kF32, {150, 1});
    const auto last = [](ConstHeadsView view) {
      view.data += 2 * 8 * size_of(view.dtype);
      view.heads = 1;
      return view;
    };
    AttentionDropout dropout = problem.dropout();
    dropout.first_head = 2;
    attention_forward(context, {heads_of(o.view(), 0, 1, 8),
                                lse,
                                last(problem.q()),
                                last(problem.k()),
                                last(problem.v()),
                                problem.mask(),
                                problem.scale(),
                                {},
                                dropout});
    EXPECT_EQ(packed(heads_of(std::as_const(o).view(), 0, 1, 8)),
              packed(last(heads(all.o, problem.c, 3))));
  }
}

TEST_P(AttentionDropped, merging_two_sets_of_keys_gives_attention_over_both) {
  Problem whole(DType::kF32, {1, 2, 1, 24}, {{0, 60}}, {{0, 60}});
  whole.set_dropout(0.4);
  Context context = test_context(GetParam(), 2);
  const auto part = [&](std::int64_t begin, std::int64_t count) {
    Problem piece(DType::kF32, {1, 2, 1, 24}, {{0, 60}}, {{begin, count}});
    constexpr std::int64_t kRow = 2 * 24 + 5;
    const auto values = whole.qkv_kv.values();
    for (std::int64_t i = 0; i < count * kRow; ++i)
      piece.qkv_kv.set(i, values[static_cast<std::size_t>(begin * kRow + i)]);
    piece.set_dropout(0.4);
    return run_forward(GetParam(), 1, piece);
  };
  Output first = part(0, 21);
  const Output second = part(21, 39);
  attention_merge(context, heads(first.o, whole.c, 2), first.lse, heads(second.o, whole.c, 2),
                  second.lse);
  expect_close(o_values(whole, first), reference::attention_forward(whole.c).o, kSumTolerance, "o");
}

TEST_P(AttentionDropped, kernels_that_know_none_step_aside) {
  if (!on_gpu()) GTEST_SKIP() << "kernels of GPUs";
  Problem problem(DType::kBF16, {1, 2, 1, 64}, {{0, 67}}, {{0, 67}}, 1, Rows::kOf16Bytes);
  problem.set_dropout(0.3);
  expect_equal_to_reference(GetParam(), 1, problem, "rows that TMA takes");
  expect_refused(
      [&] { run_forward(GetParam(), 1, problem, {&attention_internal::wgmma_attention}); },
      "no kernel for Hopper");
  Context context = test_context(GetParam());
  TestTensor dq(DType::kF32, {67, 128}, 0), dk(DType::kF32, {67, 64}, 0),
      dv = dk, lse(DType::kF32, {67, 2}), to_q(DType::kBF16, {67, 128}, 0),
      to_k(DType::kBF16, {67, 64}, 0), to_v = to_k;
  const AttentionCase& c = problem.c;
  AttentionBackward args{heads(dq, c, 2),
                         heads(dk, c, 1),
                         heads(dv, c, 1),
                         values(problem.d_o, c, 2),
                         problem.q(),
                         problem.k(),
                         problem.v(),
                         lse.view(),
                         lse.view(),
                         problem.mask(),
                         problem.scale(),
                         {},
                         {heads(to_q, c, 2), heads(to_k, c, 1), heads(to_v, c, 1)},
                         problem.dropout()};
  EXPECT_EQ(attention_backward_writes(context, args), AttentionWrites::kNo);
  if (!on_hopper()) return;
  args.dropout = {};
  EXPECT_EQ(attention_backward_writes(context, args), AttentionWrites::kFromDelta);
}

TEST_P(AttentionDropped, threads_in_any_order_give_the_same_bits) {
  if (!on_gpu()) GTEST_SKIP() << "threads of GPUs";
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Problem problem(dtype, {1, 2, 1, 24}, {{0, 40}, {60, 20}}, {{0, 80}});
    problem.set_dropout(0.2);
    const auto out = reference::attention_forward(problem.c);
    const auto delta = reference::attention_delta(problem.c, problem.d_o.values(), out.o);
    expect_same_bits([&] {
      const Output forward = run_forward(GetParam(), 1, problem);
      const Gradients g = run_backward(GetParam(), 1, problem, out.lse, delta);
      return forward.o.bits() + g.dq.bits() + g.dk.bits() + g.dv.bits();
    });
  }
}

TEST_P(AttentionDropped, wrong_operands_are_refused) {
  Context context = test_context(GetParam());
  Problem problem(DType::kF32, {2, 2, 1, 8}, {{0, 9}}, {{0, 9}});
  const auto refused = [&](const AttentionDropout& dropout, const char* message) {
    TestTensor o(DType::kF32, {18, 16}), lse(DType::kF32, {18, 2});
    expect_refused(
        [&] {
          attention_forward(context, {heads_of(o.view(), 0, 2, 8),
                                      lse,
                                      problem.q(),
                                      problem.k(),
                                      problem.v(),
                                      problem.mask(),
                                      problem.scale(),
                                      {},
                                      dropout});
        },
        message);
  };
  const TestTensor three(DType::kI32, {3, 2}), four(DType::kI32, {4, 2});
  refused({1, kKey, four.view()}, "attention_forward.dropout: of no share");
  refused({0.1, kKey, four.view(), -1}, "attention_forward.dropout: of no share");
  refused({0.1, kKey, three.view()}, "must be a multiple of that of sequences");
  refused({0.1, kKey, problem.d_o.view()}, "attention_forward.dropout.numbers: expected");
}

}  // namespace
}  // namespace trireme
