#include "kernels/cross_entropy/cross_entropy.h"

#include <cmath>
#include <limits>

#include "base/random.h"
#include "kernels/cross_entropy_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class CrossEntropy : public OpTest {};
TRIREME_FOR_ALL_ISAS(CrossEntropy);

struct Statistics {
  TestTensor maximum, sum, target_logit;
};

Statistics statistics_of(Context& context, const TestTensor& logits, const TestTensor& targets,
                         const VocabularyPart& part) {
  const Shape shape = targets.shape();
  Statistics s{TestTensor(DType::kF32, shape), TestTensor(DType::kF32, shape),
               TestTensor(DType::kF32, shape)};
  cross_entropy_statistics(context, {s.maximum, s.sum, s.target_logit, logits, targets, part});
  return s;
}

/// One, where the op runs.
TestTensor unscaled() { return TestTensor::of(DType::kF32, {1}, {1}); }

struct Result {
  Statistics statistics;
  TestTensor loss, dlogits;
};

Result run(Context& context, const TestTensor& logits, const TestTensor& targets,
           const VocabularyPart& part, float scale = 1, DType dlogits_type = DType::kF32) {
  Result r{statistics_of(context, logits, targets, part), TestTensor(DType::kF32, targets.shape()),
           TestTensor::random(dlogits_type, logits.shape(), 8)};
  const TestTensor scale_1 = TestTensor::of(DType::kF32, {1}, {scale});
  cross_entropy_finish(context, {r.loss, r.dlogits, logits, r.statistics.maximum, r.statistics.sum,
                                 r.statistics.target_logit, targets, part, scale_1});
  test_device::synchronize();
  return r;
}

/// Targets all over the vocabulary, some not counted.
TestTensor random_targets(std::int64_t tokens, std::int64_t vocabulary) {
  TestTensor targets(DType::kI32, {tokens});
  std::uint64_t counter = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto id =
        static_cast<double>(uniform_below(3, static_cast<std::uint64_t>(vocabulary), &counter));
    targets.set(t, t % 5 == 4 ? -1 : id);
  }
  return targets;
}

TEST_P(CrossEntropy, values_by_hand) {
  Context context = test_context(GetParam());
  // Probabilities 1/4, 3/4; the third column is padding.
  const TestTensor logits =
      TestTensor::of(DType::kF32, {2, 3}, {5, 5 + std::log(3.0), 99, 1, 1, 99});
  const TestTensor targets = TestTensor::of(DType::kI32, {2}, {1, -1});
  const Result r = run(context, logits, targets, {0, 2}, 2);
  expect_close(r.loss.values(), {std::log(4.0 / 3), 0}, {2e-6}, "loss");
  expect_close(r.dlogits.values(), {0.5, -0.5, 0, 0, 0, 0}, {1e-6}, "dlogits");
}

TEST_P(CrossEntropy, equals_the_reference_at_odd_sizes_with_the_same_bits_for_any_thread_count) {
  struct Size {
    std::int64_t tokens, columns, valid;
  };
  for (const Size& size : {Size{1, 1, 1},
                           {3, 7, 7},
                           {5, 9, 8},
                           {37, 307, 307},
                           {6, 384, 307},
                           {70, 1100, 1033},
                           {3, 50304, 50257}}) {
    struct Types {
      DType logits, dlogits;
    };
    for (const Types& types : {Types{DType::kF32, DType::kF32},
                               {DType::kF32, DType::kBF16},
                               {DType::kBF16, DType::kBF16}}) {
      const TestTensor logits = TestTensor::random(types.logits, {size.tokens, size.columns}, 1, 4);
      const TestTensor targets = random_targets(size.tokens, size.valid);
      const auto expected = reference::cross_entropy(
          {logits.values(), size.columns, 0, size.valid, targets.values(), 0.125});
      std::string loss_bits, d_bits;
      for (const int threads : {1, 2, 3}) {
        Context context = test_context(GetParam(), threads);
        const Result r = run(context, logits, targets, {0, size.valid}, 0.125F, types.dlogits);
        expect_close(r.statistics.maximum.values(), expected.maximum, {0}, "maximum");
        expect_close(r.statistics.sum.values(), expected.sum, {1e-6}, "sum");
        expect_close(r.statistics.target_logit.values(), expected.target_logit, {0},
                     "target_logit");
        expect_close(r.loss.values(), expected.loss, {1e-6, 1e-6}, "loss");
        expect_close(r.dlogits.values(), expected.dlogits, tolerance_of(types.dlogits), "dlogits");
        if (threads == 1) loss_bits = r.loss.bits(), d_bits = r.dlogits.bits();
        EXPECT_EQ(r.loss.bits(), loss_bits);
        EXPECT_EQ(r.dlogits.bits(), d_bits);
      }
    }
  }
}

/// Columns [first, first + count) of logits, and padding.
TestTensor padded_columns(const TestTensor& logits, const VocabularyPart& part,
                          std::int64_t columns) {
  const std::int64_t tokens = logits.shape()[0], vocabulary = logits.shape()[1];
  TestTensor padded = TestTensor::random(DType::kF32, {tokens, columns}, 5, 100);
  const auto values = logits.values();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t v = 0; v < part.valid; ++v) {
      padded.set(t * columns + v,
                 values[static_cast<std::size_t>(t * vocabulary + part.first + v)]);
    }
  }
  return padded;
}

/// [R, 3, T], as ranks bring theirs together.
TestTensor joined(const std::vector<Statistics>& parts) {
  const std::int64_t tokens = parts[0].maximum.shape()[0];
  TestTensor joined(DType::kF32, {static_cast<std::int64_t>(parts.size()), 3, tokens});
  std::int64_t at = 0;
  for (const Statistics& part : parts) {
    for (const TestTensor* row : {&part.maximum, &part.sum, &part.target_logit}) {
      for (const double value : row->values()) joined.set(at++, value);
    }
  }
  return joined;
}

Statistics merge(Context& context, const TestTensor& parts) {
  const Shape shape{parts.shape()[2]};
  Statistics s{TestTensor(DType::kF32, shape), TestTensor(DType::kF32, shape),
               TestTensor(DType::kF32, shape)};
  cross_entropy_merge(context, {s.maximum, s.sum, s.target_logit, parts});
  return s;
}

TEST_P(CrossEntropy, the_parts_of_a_vocabulary_merged_give_what_the_whole_gives) {
  const std::int64_t vocabulary = 101;
  for (const std::int64_t tokens : {1, 20, 300}) {
    const TestTensor logits = TestTensor::random(DType::kF32, {tokens, vocabulary}, 1, 3);
    const TestTensor targets = random_targets(tokens, vocabulary);
    const auto expected =
        reference::cross_entropy({logits.values(), vocabulary, 0, vocabulary, targets.values()});
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{101}, {64, 37}, {50, 1, 50}, {0, 101, 0}}) {
      std::string sums;
      for (const int threads : {1, 2, 3}) {
        Context context = test_context(GetParam(), threads);
        std::vector<VocabularyPart> parts;
        std::vector<TestTensor> columns;
        std::vector<Statistics> statistics;
        std::int64_t first = 0;
        for (const std::int64_t size : sizes) {
          parts.push_back({first, size});
          columns.push_back(padded_columns(logits, parts.back(), 128));
          statistics.push_back(statistics_of(context, columns.back(), targets, parts.back()));
          first += size;
        }
        const Statistics whole = merge(context, joined(statistics));
        expect_close(whole.maximum.values(), expected.maximum, {0}, "maximum");
        expect_close(whole.sum.values(), expected.sum, {1e-6}, "sum");
        expect_close(whole.target_logit.values(), expected.target_logit, {0}, "target_logit");
        if (threads == 1) sums = whole.sum.bits();
        EXPECT_EQ(whole.sum.bits(), sums);
        if (sizes.size() == 1) {
          EXPECT_EQ(sums, statistics[0].sum.bits());
        }
        for (std::size_t r = 0; r < parts.size(); ++r) {
          TestTensor loss(DType::kF32, {tokens}), dlogits(DType::kF32, {tokens, 128});
          cross_entropy_finish(context, {loss, dlogits, columns[r], whole.maximum, whole.sum,
                                         whole.target_logit, targets, parts[r], unscaled()});
          expect_close(loss.values(), expected.loss, {1e-6, 1e-6}, "loss");
          const auto actual = dlogits.values();
          for (std::int64_t i = 0; i < tokens * 128; ++i) {
            const std::int64_t t = i / 128, v = i % 128;
            const auto at = static_cast<std::size_t>(t * vocabulary + parts[r].first + v);
            const double value = v < parts[r].valid ? expected.dlogits[at] : 0;
            ASSERT_NEAR(actual[static_cast<std::size_t>(i)], value, v < parts[r].valid ? 1e-6 : 0);
          }
        }
      }
    }
  }
}

TEST_P(CrossEntropy, merging_by_hand) {
  Context context = test_context(GetParam());
  // Of the tokens: weights 1 and 1/2; a part without columns; parts without columns alone.
  const Statistics s =
      merge(context, TestTensor::of(DType::kF32, {2, 3, 3},
                                    {5, -kInfinity, -kInfinity, 4, 0, 0, 7, 0, 0,  //
                                     5 - std::log(2.0), 3, -kInfinity, 6, 2, 0, 0, 2.5, 0}));
  expect_close(s.maximum.values(), {5, 3, -kInfinity}, {0}, "maximum");
  expect_close(s.sum.values(), {7, 2, 0}, {1e-6}, "sum");
  expect_close(s.target_logit.values(), {7, 2.5, 0}, {0}, "target_logit");
}

TEST_P(CrossEntropy, a_part_that_is_not_finite_is_seen_in_the_loss_of_the_whole) {
  Context context = test_context(GetParam());
  const TestTensor good = TestTensor::random(DType::kF32, {1, 40}, 1);
  const TestTensor targets = TestTensor::of(DType::kI32, {1}, {3});
  for (const double bad : {std::nan(""), kInfinity}) {
    for (const bool everywhere : {false, true}) {
      TestTensor logits = good;
      for (std::int64_t v = 0; v < 40; ++v)
        if (everywhere || v == 33) logits.set(v, bad);
      const Statistics s =
          merge(context, joined({statistics_of(context, good, targets, {0, 40}),
                                 statistics_of(context, logits, targets, {40, 40})}));
      TestTensor loss(DType::kF32, {1});
      cross_entropy_finish(
          context, {loss, {}, {}, s.maximum, s.sum, s.target_logit, targets, {0, 40}, unscaled()});
      EXPECT_FALSE(std::isfinite(loss.values()[0])) << bad << " " << everywhere;
    }
  }
}

TEST_P(CrossEntropy, merging_has_the_same_bits_in_every_order) {
  TestTensor parts = TestTensor::random(DType::kF32, {5, 3, 300}, 1, 3);
  expect_same_bits([&] {
    Context context = test_context(GetParam());
    const Statistics s = merge(context, parts);
    return s.maximum.bits() + s.sum.bits() + s.target_logit.bits();
  });
}

TEST_P(CrossEntropy, a_part_without_entries_adds_nothing) {
  Context context = test_context(GetParam());
  const TestTensor logits = TestTensor::random(DType::kF32, {2, 8}, 1);
  const Statistics s =
      statistics_of(context, logits, TestTensor::of(DType::kI32, {2}, {3, -1}), {100, 0});
  EXPECT_EQ(s.maximum.values(), (std::vector<double>{-kInfinity, -kInfinity}));
  EXPECT_EQ(s.sum.values(), (std::vector<double>{0, 0}));
  EXPECT_EQ(s.target_logit.values(), (std::vector<double>{0, 0}));
}

TEST_P(CrossEntropy, huge_logits_and_minus_infinity_are_exact) {
  Context context = test_context(GetParam());
  const TestTensor logits = TestTensor::of(
      DType::kF32, {2, 4}, {1e4, -1e4, -kInfinity, 1e4, -1e4, -1e4, -kInfinity, -kInfinity});
  const Result r = run(context, logits, TestTensor::of(DType::kI32, {2}, {1, 0}), {0, 4});
  expect_close(r.loss.values(), {2e4 + std::log(2.0), std::log(2.0)}, {1e-6}, "loss");
  expect_close(r.dlogits.values(), {0.5, -1, 0, 0.5, -0.5, 0.5, 0, 0}, {1e-6}, "dlogits");
}

TEST_P(CrossEntropy, a_logit_that_is_not_finite_makes_the_loss_so) {
  Context context = test_context(GetParam());
  for (const double bad : {std::nan(""), kInfinity}) {
    TestTensor logits = TestTensor::random(DType::kF32, {1, 40}, 1);
    logits.set(33, bad);
    const Result r = run(context, logits, TestTensor::of(DType::kI32, {1}, {3}), {0, 40});
    EXPECT_FALSE(std::isfinite(r.loss.values()[0]));
  }
}

TEST_P(CrossEntropy, gradient_equals_finite_differences) {
  Context context = test_context(GetParam());
  const TestTensor logits = TestTensor::random(DType::kF32, {3, 7}, 1),
                   targets = TestTensor::of(DType::kI32, {3}, {2, -1, 5});
  const Result r = run(context, logits, targets, {0, 6});
  const auto loss = [&](const std::vector<double>& at) {
    double sum = 0;
    for (const double x : reference::cross_entropy({at, 7, 0, 6, targets.values()}).loss) sum += x;
    return sum;
  };
  expect_close(r.dlogits.values(), finite_differences(logits.values(), loss), {1e-6, 1e-6},
               "dlogits");
}

/// Loss, squares of log-sum-exps (over the target's logits) and gradient with a z-loss.
Result with_z_loss(Context& context, const TestTensor& logits, const TestTensor& targets,
                   const VocabularyPart& part, float z_loss, DType dlogits_type = DType::kF32) {
  Result r{statistics_of(context, logits, targets, part), TestTensor(DType::kF32, targets.shape()),
           TestTensor::random(dlogits_type, logits.shape(), 8)};
  Statistics& s = r.statistics;
  const TestTensor scale = TestTensor::of(DType::kF32, {1}, {0.125});
  cross_entropy_finish(context, {r.loss, r.dlogits, logits, s.maximum, s.sum, s.target_logit,
                                 targets, part, scale, z_loss, s.target_logit});
  test_device::synchronize();
  return r;
}

TEST_P(CrossEntropy, a_z_loss_equals_the_reference_at_odd_sizes) {
  for (const std::int64_t tokens : {1, 5, 70}) {
    for (const std::int64_t valid : {1, 8, 307, 5003}) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        Context context = test_context(GetParam(), 2);
        const std::int64_t columns = valid + tokens % 3;
        const TestTensor logits = TestTensor::random(type, {tokens, columns}, 1, 4);
        const TestTensor targets = random_targets(tokens, valid);
        const auto expected = reference::cross_entropy(
            {logits.values(), columns, 0, valid, targets.values(), 0.125, 0.03});
        const Result r = with_z_loss(context, logits, targets, {0, valid}, 0.03F, type);
        expect_close(r.loss.values(), expected.loss, {2e-6, 1e-6}, "loss");
        expect_close(r.statistics.target_logit.values(), expected.square, {4e-6, 2e-6}, "square");
        const double half = type == DType::kBF16 ? 4e-3 : 4e-6;
        expect_close(r.dlogits.values(), expected.dlogits, {half, 1e-7}, "dlogits");
      }
    }
  }
}

TEST_P(CrossEntropy, a_z_loss_by_hand) {
  Context context = test_context(GetParam());
  // Probabilities 1/4, 3/4; the log-sum-exp is log 4 = 2 log 2. Twice 0.5 times that, and one.
  const double lse = std::log(4.0), weight = 1 + lse;
  const TestTensor logits = TestTensor::of(DType::kF32, {2, 3}, {0, std::log(3.0), 99, 1, 1, 99});
  const Result r =
      with_z_loss(context, logits, TestTensor::of(DType::kI32, {2}, {1, -1}), {0, 2}, 0.5F);
  expect_close(r.loss.values(), {std::log(4.0 / 3), 0}, {2e-6}, "loss");
  expect_close(r.statistics.target_logit.values(), {lse * lse, 0}, {2e-6}, "square");
  expect_close(r.dlogits.values(), {weight / 4 / 8, (weight * 3 / 4 - 1) / 8, 0, 0, 0, 0},
               {2e-6, 1e-8}, "dlogits");
}

TEST_P(CrossEntropy, a_z_loss_has_the_gradient_of_finite_differences) {
  Context context = test_context(GetParam());
  const TestTensor logits = TestTensor::random(DType::kF32, {3, 7}, 1),
                   targets = TestTensor::of(DType::kI32, {3}, {2, -1, 5});
  const Result r = with_z_loss(context, logits, targets, {0, 6}, 0.25F);
  const auto loss = [&](const std::vector<double>& at) {
    const auto of = reference::cross_entropy({at, 7, 0, 6, targets.values()});
    double sum = 0;
    for (std::size_t t = 0; t < 3; ++t) sum += of.loss[t] + 0.25 * of.square[t];
    return 0.125 * sum;
  };
  expect_close(r.dlogits.values(), finite_differences(logits.values(), loss), {2e-6, 1e-6},
               "dlogits");
}

TEST_P(CrossEntropy, a_z_loss_of_a_sharded_vocabulary_is_that_of_the_whole) {
  const std::int64_t vocabulary = 101, tokens = 20;
  Context context = test_context(GetParam());
  const TestTensor logits = TestTensor::random(DType::kF32, {tokens, vocabulary}, 1, 3);
  const TestTensor targets = random_targets(tokens, vocabulary);
  const auto expected = reference::cross_entropy(
      {logits.values(), vocabulary, 0, vocabulary, targets.values(), 1, 0.1});
  std::vector<TestTensor> columns;
  std::vector<Statistics> statistics;
  const VocabularyPart parts[] = {{0, 64}, {64, 37}};
  for (const VocabularyPart& part : parts) {
    columns.push_back(padded_columns(logits, part, 64));
    statistics.push_back(statistics_of(context, columns.back(), targets, part));
  }
  const Statistics whole = merge(context, joined(statistics));
  for (std::size_t r = 0; r < 2; ++r) {
    TestTensor loss(DType::kF32, {tokens}), square(DType::kF32, {tokens}),
        dlogits(DType::kF32, {tokens, 64});
    cross_entropy_finish(
        context, {loss, dlogits, columns[r], whole.maximum, whole.sum, whole.target_logit, targets,
                  parts[r], unscaled(), 0.1F, square});
    expect_close(square.values(), expected.square, {2e-6, 1e-6}, "square");
    const auto actual = dlogits.values();
    for (std::int64_t i = 0; i < tokens * 64; ++i) {
      const std::int64_t t = i / 64, v = i % 64;
      const auto at = static_cast<std::size_t>(t * vocabulary + parts[r].first + v);
      const double value = v < parts[r].valid ? expected.dlogits[at] : 0;
      ASSERT_NEAR(actual[static_cast<std::size_t>(i)], value, v < parts[r].valid ? 2e-6 : 0);
    }
  }
}

TEST_P(CrossEntropy, without_a_z_loss_squares_change_no_bit) {
  Context context = test_context(GetParam());
  const TestTensor logits = TestTensor::random(DType::kF32, {7, 40}, 1, 4);
  const TestTensor targets = random_targets(7, 40);
  const Result plain = run(context, logits, targets, {0, 40}, 0.125F);
  const Result with = with_z_loss(context, logits, targets, {0, 40}, 0);
  EXPECT_EQ(with.loss.bits(), plain.loss.bits());
  EXPECT_EQ(with.dlogits.bits(), plain.dlogits.bits());
}

TEST_P(CrossEntropy, the_gradient_may_replace_the_logits_and_either_result_may_be_left_out) {
  Context context = test_context(GetParam(), 2);
  const TestTensor targets = random_targets(30, 70);
  const VocabularyPart part{0, 70};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TestTensor logits = TestTensor::random(dtype, {30, 77}, 1);
    const Result r = run(context, logits, targets, part, 1, dtype);
    const Statistics& s = r.statistics;
    TestTensor loss(DType::kF32, {30});
    cross_entropy_finish(
        context, {loss, {}, {}, s.maximum, s.sum, s.target_logit, targets, part, unscaled()});
    cross_entropy_finish(context,
                         {{}, logits, logits, s.maximum, s.sum, {}, targets, part, unscaled()});
    EXPECT_EQ(loss.bits(), r.loss.bits());
    EXPECT_EQ(logits.bits(), r.dlogits.bits());
  }
}

TEST_P(CrossEntropy, rows_that_begin_anywhere_have_the_same_bits_in_every_order) {
  // Odd rows begin at every distance from an aligned address; the gradient's rows too, but not
  // always at the same one.
  for (const std::int64_t columns : {129, 130, 4099}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      expect_same_bits([&] {
        Context context = test_context(GetParam());
        const TestTensor logits = TestTensor::random(dtype, {5, columns}, 1, 4);
        const TestTensor targets = random_targets(5, columns - 2);
        const Result r = run(context, logits, targets, {0, columns - 2}, 0.5F, dtype);
        return r.statistics.sum.bits() + r.loss.bits() + r.dlogits.bits();
      });
    }
  }
}

TEST_P(CrossEntropy, the_gradient_has_its_bits_at_any_distance_from_an_aligned_address) {
  Context context = test_context(GetParam());
  constexpr std::int64_t kTokens = 3, kColumns = 77;
  const TestTensor targets = random_targets(kTokens, kColumns);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TestTensor random = TestTensor::random(dtype, {kTokens, kColumns}, 1, 4);
    std::string expected;
    for (const int offset : {0, 1, 2, 3, 5}) {
      TestTensor logits(dtype, {kTokens, kColumns}, offset);
      for (std::int64_t i = 0; i < kTokens * kColumns; ++i)
        logits.set(i, random.values()[static_cast<std::size_t>(i)]);
      Statistics s = statistics_of(context, random, targets, {0, 70});
      for (const int other : {0, 1, 3, 4}) {
        TestTensor dlogits(DType::kBF16, {kTokens, kColumns}, other);
        cross_entropy_finish(
            context, {{}, dlogits, logits, s.maximum, s.sum, {}, targets, {0, 70}, unscaled()});
        if (expected.empty()) expected = dlogits.bits();
        EXPECT_EQ(dlogits.bits(), expected) << offset << " " << other;
      }
    }
  }
}

TEST_P(CrossEntropy, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  TestTensor logits(DType::kF32, {2, 4}), row(DType::kF32, {2}), targets(DType::kI32, {2}),
      half(DType::kBF16, {2, 4});
  const auto statistics = [&](const TestTensor& l, const TestTensor& t, VocabularyPart part) {
    cross_entropy_statistics(context, {row, row, row, l, t, part});
  };
  expect_refused(
      [&] {
        statistics(targets, targets, {0, 4});
      },
      "cross_entropy_statistics.logits: expected");
  expect_refused(
      [&] {
        cross_entropy_finish(context,
                             {{}, logits, half, row, row, {}, targets, {0, 4}, unscaled()});
      },
      "cross_entropy_finish.dlogits: of bf16 logits the gradient is bf16");
  expect_refused(
      [&] {
        statistics(logits, row, {0, 4});
      },
      "cross_entropy_statistics.targets: expected [2] int32");
  expect_refused(
      [&] {
        statistics(logits, targets, {0, 5});
      },
      "the valid columns must be among those of the logits");
  expect_refused(
      [&] {
        cross_entropy_finish(context, {{}, {}, logits, row, row, row, targets, {0, 4}, unscaled()});
      },
      "neither the loss nor the gradient is given");
  expect_refused(
      [&] {
        cross_entropy_finish(context,
                             {{}, targets, logits, row, row, row, targets, {0, 4}, unscaled()});
      },
      "cross_entropy_finish.dlogits: expected fp32 or bf16");
  expect_refused(
      [&] {
        cross_entropy_finish(context, {row, {}, logits, row, row, {}, targets, {0, 4}, unscaled()});
      },
      "cross_entropy_finish.target_logit: expected [2] fp32");
  TestTensor parts(DType::kF32, {3, 3, 2}), pairs(DType::kF32, {3, 2, 2}),
      none(DType::kF32, {0, 3, 2});
  const auto merge_of = [&](const ConstTensorView& from, const TensorView& sum) {
    cross_entropy_merge(context, {row, sum, row, from});
  };
  expect_refused([&] { merge_of(row, row); }, "cross_entropy_merge.parts: expected");
  expect_refused([&] { merge_of(pairs, row); },
                 "cross_entropy_merge.parts: expected [3, 3, 2] fp32, found [3, 2, 2] fp32");
  expect_refused([&] { merge_of(none, row); },
                 "cross_entropy_merge.parts: there must be one at least");
  expect_refused([&] { merge_of(parts, targets); }, "cross_entropy_merge.sum: expected [2] fp32");
  TensorView within = parts;
  within.shape = {2};
  expect_refused([&] { merge_of(parts, within); }, "cross_entropy_merge.sum");
}

}  // namespace
}  // namespace trireme
