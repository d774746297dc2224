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

struct Result {
  Statistics statistics;
  TestTensor loss, dlogits;
};

Result run(Context& context, const TestTensor& logits, const TestTensor& targets,
           const VocabularyPart& part, float scale = 1, DType dlogits_type = DType::kF32) {
  Result r{statistics_of(context, logits, targets, part), TestTensor(DType::kF32, targets.shape()),
           TestTensor::random(dlogits_type, logits.shape(), 8)};
  cross_entropy_finish(context, {r.loss, r.dlogits, logits, r.statistics.maximum, r.statistics.sum,
                                 r.statistics.target_logit, targets, part, scale});
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
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TestTensor logits = TestTensor::random(DType::kF32, {size.tokens, size.columns}, 1, 4);
      const TestTensor targets = random_targets(size.tokens, size.valid);
      const auto expected = reference::cross_entropy(
          {logits.values(), size.columns, 0, size.valid, targets.values(), 0.125});
      std::string loss_bits, d_bits;
      for (const int threads : {1, 2, 3}) {
        Context context = test_context(GetParam(), threads);
        const Result r = run(context, logits, targets, {0, size.valid}, 0.125F, dtype);
        expect_close(r.statistics.maximum.values(), expected.maximum, {0}, "maximum");
        expect_close(r.statistics.sum.values(), expected.sum, {1e-6}, "sum");
        expect_close(r.statistics.target_logit.values(), expected.target_logit, {0},
                     "target_logit");
        expect_close(r.loss.values(), expected.loss, {1e-6, 1e-6}, "loss");
        expect_close(r.dlogits.values(), expected.dlogits, tolerance_of(dtype), "dlogits");
        if (threads == 1) loss_bits = r.loss.bits(), d_bits = r.dlogits.bits();
        EXPECT_EQ(r.loss.bits(), loss_bits);
        EXPECT_EQ(r.dlogits.bits(), d_bits);
      }
    }
  }
}

TEST_P(CrossEntropy, two_parts_of_the_vocabulary_give_what_the_whole_gives) {
  Context context = test_context(GetParam(), 2);
  const std::int64_t tokens = 20, vocabulary = 101, cut = 64;
  const TestTensor logits = TestTensor::random(DType::kF32, {tokens, vocabulary}, 1, 3);
  const TestTensor targets = random_targets(tokens, vocabulary);
  const auto columns = [&](std::int64_t begin, std::int64_t count) {
    TestTensor part(DType::kF32, {tokens, 128});  // padded
    const auto values = logits.values();
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t v = 0; v < count; ++v) {
        part.set(t * 128 + v, values[static_cast<std::size_t>(t * vocabulary + begin + v)]);
      }
    }
    return part;
  };
  const TestTensor low = columns(0, cut), high = columns(cut, vocabulary - cut);
  const VocabularyPart low_part{0, cut}, high_part{cut, vocabulary - cut};
  Statistics whole = statistics_of(context, low, targets, low_part);
  const Statistics other = statistics_of(context, high, targets, high_part);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto at = static_cast<std::size_t>(t);
    const double a = whole.maximum.values()[at], b = other.maximum.values()[at], m = std::max(a, b);
    const double sum =
        whole.sum.values()[at] * std::exp(a - m) + other.sum.values()[at] * std::exp(b - m);
    whole.target_logit.set(t, whole.target_logit.values()[at] + other.target_logit.values()[at]);
    whole.sum.set(t, sum);
    whole.maximum.set(t, m);
  }
  const auto expected =
      reference::cross_entropy({logits.values(), vocabulary, 0, vocabulary, targets.values()});
  TestTensor loss(DType::kF32, {tokens}), dlogits(DType::kF32, {tokens, 128});
  cross_entropy_finish(context, {loss, dlogits, high, whole.maximum, whole.sum, whole.target_logit,
                                 targets, high_part, 1});
  expect_close(loss.values(), expected.loss, {1e-6, 1e-6}, "loss");
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t v = 0; v < vocabulary - cut; ++v) {
      ASSERT_NEAR(dlogits.values()[static_cast<std::size_t>(t * 128 + v)],
                  expected.dlogits[static_cast<std::size_t>(t * vocabulary + cut + v)], 1e-6);
    }
  }
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

TEST_P(CrossEntropy, the_gradient_may_replace_the_logits_and_either_result_may_be_left_out) {
  Context context = test_context(GetParam(), 2);
  TestTensor logits = TestTensor::random(DType::kF32, {30, 77}, 1);
  const TestTensor targets = random_targets(30, 70);
  const VocabularyPart part{0, 70};
  const Result r = run(context, logits, targets, part);
  const Statistics& s = r.statistics;
  TestTensor loss(DType::kF32, {30});
  cross_entropy_finish(context, {loss, {}, {}, s.maximum, s.sum, s.target_logit, targets, part, 1});
  cross_entropy_finish(context, {{}, logits, logits, s.maximum, s.sum, {}, targets, part, 1});
  EXPECT_EQ(loss.bits(), r.loss.bits());
  EXPECT_EQ(logits.bits(), r.dlogits.bits());
}

TEST_P(CrossEntropy, rows_that_begin_anywhere_have_the_same_bits_in_every_order) {
  // Odd rows begin at every distance from an aligned address; the gradient's rows too, but not
  // always at the same one.
  for (const std::int64_t columns : {129, 130, 4099}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      expect_same_bits([&] {
        Context context = test_context(GetParam());
        const TestTensor logits = TestTensor::random(DType::kF32, {5, columns}, 1, 4);
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
  const TestTensor random = TestTensor::random(DType::kF32, {kTokens, kColumns}, 1, 4);
  std::string expected;
  for (const int offset : {0, 1, 2, 3, 5}) {
    TestTensor logits(DType::kF32, {kTokens, kColumns}, offset);
    for (std::int64_t i = 0; i < kTokens * kColumns; ++i)
      logits.set(i, random.values()[static_cast<std::size_t>(i)]);
    Statistics s = statistics_of(context, random, targets, {0, 70});
    for (const int other : {0, 1, 3, 4}) {
      TestTensor dlogits(DType::kBF16, {kTokens, kColumns}, other);
      cross_entropy_finish(context,
                           {{}, dlogits, logits, s.maximum, s.sum, {}, targets, {0, 70}, 1});
      if (expected.empty()) expected = dlogits.bits();
      EXPECT_EQ(dlogits.bits(), expected) << offset << " " << other;
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
        statistics(half, targets, {0, 4});
      },
      "cross_entropy_statistics.logits: expected [2, 4] fp32");
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
        cross_entropy_finish(context, {{}, {}, logits, row, row, row, targets, {0, 4}, 1});
      },
      "neither the loss nor the gradient is given");
  expect_refused(
      [&] {
        cross_entropy_finish(context, {{}, targets, logits, row, row, row, targets, {0, 4}, 1});
      },
      "cross_entropy_finish.dlogits: expected fp32 or bf16");
  expect_refused(
      [&] {
        cross_entropy_finish(context, {row, {}, logits, row, row, {}, targets, {0, 4}, 1});
      },
      "cross_entropy_finish.target_logit: expected [2] fp32");
}

}  // namespace
}  // namespace trireme
