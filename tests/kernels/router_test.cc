#include "kernels/router/router.h"

#include <cmath>
#include <limits>

#include "kernels/router_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

using enum RouterScore;

class Router : public OpTest {};
TRIREME_FOR_ALL_ISAS(Router);

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A router's tensors for some logits.
struct Operands {
  TestTensor logits, bias, chosen, weights, load, balance;
  RouterRule rule;
  bool biased = false;

  Operands(const RouterRule& rule_, TestTensor logits_, std::int64_t sequences = 1)
      : logits(std::move(logits_)),
        bias(DType::kF32, {logits.shape()[1]}),
        chosen(DType::kI32, {logits.shape()[0], rule_.chosen}),
        weights(DType::kF32, chosen.shape()),
        load(DType::kI32, {sequences, logits.shape()[1]}),
        balance(DType::kI32, load.shape()),
        rule(rule_) {}
  [[nodiscard]] std::size_t experts() const { return static_cast<std::size_t>(logits.shape()[1]); }
  [[nodiscard]] std::int64_t sequence_tokens() const { return logits.shape()[0] / load.shape()[0]; }
  void forward(Context& context) {
    RouterForward args{chosen, weights, load, balance, logits, {}, rule, 0, sequence_tokens()};
    if (biased) args.bias_E = bias;
    router_forward(context, args);
  }
  [[nodiscard]] reference::RouterChoice expected() const {
    return reference::router_forward(rule, logits.values(), experts(),
                                     biased ? bias.values() : std::vector<double>{});
  }
  void expect_equals_the_reference(Context& context) {
    forward(context);
    const auto choice = expected();
    EXPECT_EQ(chosen.values(), choice.chosen);
    expect_close(weights.values(), choice.weights, {3e-6, 1e-7}, "weights");
    EXPECT_EQ(load.values(), choice.load);
    EXPECT_EQ(balance.values(), choice.balance);
  }
};

TestTensor random_logits(std::int64_t tokens, std::int64_t experts, std::uint64_t seed = 1) {
  return TestTensor::random(DType::kF32, {tokens, experts}, seed, 2);
}

struct Case {
  RouterRule rule;
  std::int64_t tokens, experts;
  bool biased = false;
};
/// One expert and many, k = 1 and k = E; Mixtral, Qwen3, DeepSeek-V3.
const Case kCases[] = {
    {{}, 3, 1},
    {{.chosen = 1}, 5, 3},
    {{.chosen = 3, .normalized = true}, 4, 3},
    {{.chosen = 2, .normalized = true}, 33, 8},
    {{.chosen = 8, .scale = 1.5F}, 21, 64},
    {{.chosen = 8, .normalized = true}, 40, 128},
    {{.chosen = 7, .normalized = true}, 9, 97},
    {{.chosen = 32}, 3, 1000},
    {{.score = kSigmoid, .chosen = 1}, 5, 3, true},
    {{.score = kSigmoid, .chosen = 17, .normalized = true}, 5, 17, true},
    {{kSigmoid, 8, true, 8, 4, 2.5F}, 37, 256, true},
    {{kSigmoid, 4, false, 5, 2, 1}, 19, 35, true},
    {{kSigmoid, 3, true, 6, 3, 1}, 11, 6, true},
    {{kSoftmax, 3, true, 32, 2, 1}, 11, 64, false},
};

Operands operands_of(const Case& test) {
  Operands operands(test.rule, random_logits(test.tokens, test.experts));
  operands.biased = test.biased;
  operands.bias = TestTensor::random(DType::kF32, operands.bias.shape(), 2, 0.3);
  return operands;
}

TEST_P(Router, values_by_hand) {
  Context context = test_context(GetParam());
  // Softmax of log 1, log 2, log 4, log 1 is 1/8, 1/4, 1/2, 1/8.
  const TestTensor logits = TestTensor::of(DType::kF32, {1, 4}, {0, std::log(2), std::log(4), 0});
  Operands plain({.chosen = 3, .scale = 2}, logits);
  plain.forward(context);
  EXPECT_EQ(plain.chosen.values(), (std::vector<double>{0, 1, 2}));
  expect_close(plain.weights.values(), {0.25, 0.5, 1}, {1e-6}, "weights");
  EXPECT_EQ(plain.load.values(), (std::vector<double>{1, 1, 1, 0}));
  EXPECT_EQ(plain.balance.values(), plain.load.values());

  // Sigmoids 1/2, 2/3, 4/5, 1/2; the bias lifts the last over the second.
  Operands biased({.score = kSigmoid, .chosen = 2, .normalized = true}, logits);
  biased.biased = true;
  biased.bias.set(3, 0.25);
  biased.forward(context);
  EXPECT_EQ(biased.chosen.values(), (std::vector<double>{2, 3}));
  expect_close(biased.weights.values(), {0.8 / 1.3, 0.5 / 1.3}, {1e-6}, "weights");
  EXPECT_EQ(biased.load.values(), (std::vector<double>{0, 0, 1, 1}));
  EXPECT_EQ(biased.balance.values(), (std::vector<double>{0, 1, 1, 0}));

  // Groups {1/2, 2/3} and {4/5, 1/2}: the second has the larger sum.
  Operands grouped({kSigmoid, 2, false, 2, 1, 1}, logits);
  grouped.forward(context);
  EXPECT_EQ(grouped.chosen.values(), (std::vector<double>{2, 3}));
  expect_close(grouped.weights.values(), {0.8, 0.5}, {1e-6}, "weights");
}

TEST_P(Router, equals_the_reference_for_any_thread_count) {
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.experts);
    std::string bits;
    for (const int threads : {1, 2, 3}) {
      Context context = test_context(GetParam(), threads);
      Operands operands = operands_of(test);
      operands.expect_equals_the_reference(context);
      const std::string now = operands.weights.bits();
      if (threads == 1) bits = now;
      EXPECT_EQ(now, bits);
    }
  }
}

TEST_P(Router, of_equal_experts_the_first_are_chosen) {
  Context context = test_context(GetParam(), 2);
  for (const RouterScore score : {kSoftmax, kSigmoid}) {
    for (const std::int64_t experts : {4, 40, 128}) {
      Operands all({.score = score, .chosen = 4}, TestTensor(DType::kF32, {3, experts}));
      all.forward(context);
      for (std::int64_t i = 0; i < 12; ++i)
        EXPECT_EQ(all.chosen.values()[static_cast<std::size_t>(i)], static_cast<double>(i % 4));
      // Few different values, at places that no order of lanes favours.
      TestTensor logits(DType::kF32, {30, experts});
      for (std::int64_t i = 0; i < logits.shape().count(); ++i)
        logits.set(i, static_cast<double>(i * 7919 % 31 % 3));
      Operands some({.score = score, .chosen = 4, .normalized = true}, logits);
      some.expect_equals_the_reference(context);
    }
  }
  // Equal groups: the first ones.
  Operands grouped({kSigmoid, 4, false, 4, 2, 1}, TestTensor(DType::kF32, {1, 16}));
  grouped.forward(context);
  EXPECT_EQ(grouped.chosen.values(), (std::vector<double>{0, 1, 2, 3}));
}

TEST_P(Router, counts_are_added_for_each_sequence) {
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const bool biased : {false, true}) {
      constexpr std::int64_t kSequences = 7, kTokens = 29, kExperts = 40;
      const RouterRule rule{.score = kSigmoid, .chosen = 3};
      Operands operands(rule, random_logits(kSequences * kTokens, kExperts), kSequences);
      operands.biased = biased;
      operands.bias = TestTensor::random(DType::kF32, {kExperts}, 2, 0.3);
      operands.forward(context);
      operands.forward(context);
      for (std::int64_t b = 0; b < kSequences; ++b) {
        Operands one(rule, TestTensor(DType::kF32, {kTokens, kExperts}));
        const auto all = operands.logits.values();
        for (std::int64_t i = 0; i < kTokens * kExperts; ++i)
          one.logits.set(i, all[static_cast<std::size_t>(b * kTokens * kExperts + i)]);
        one.biased = biased;
        one.bias = operands.bias;
        const auto expected = one.expected();
        for (std::size_t e = 0; e < kExperts; ++e) {
          const std::size_t at = static_cast<std::size_t>(b * kExperts) + e;
          EXPECT_EQ(operands.load.values()[at], 2 * expected.load[e]);
          EXPECT_EQ(operands.balance.values()[at], 2 * expected.balance[e]);
        }
      }
    }
  }
}

TEST_P(Router, counts_may_be_absent) {
  Context context = test_context(GetParam());
  Operands with({.chosen = 2}, random_logits(9, 10)), without = with;
  with.forward(context);
  router_forward(context,
                 {without.chosen, without.weights, {}, {}, without.logits, {}, without.rule});
  EXPECT_EQ(without.weights.bits(), with.weights.bits());
  EXPECT_EQ(without.chosen.bits(), with.chosen.bits());
}

TEST_P(Router, tokens_from_within_a_sequence_on_count_for_their_own) {
  Context context = test_context(GetParam(), 2);
  Operands all({.chosen = 3}, random_logits(12, 10), 3), parts = all;
  all.forward(context);
  for (const auto& [first, count] : {std::pair{0, 5}, std::pair{5, 7}}) {
    const auto rows = [&](TestTensor& of) { return of.view().rows(first, count); };
    router_forward(context, {rows(parts.chosen),
                             rows(parts.weights),
                             parts.load,
                             parts.balance,
                             rows(parts.logits),
                             {},
                             parts.rule,
                             first,
                             4});
  }
  EXPECT_EQ(parts.load.bits(), all.load.bits());
  EXPECT_EQ(parts.balance.bits(), all.balance.bits());
}

TEST_P(Router, a_token_has_the_same_bits_alone) {
  Context context = test_context(GetParam(), 2);
  for (const Case& test : kCases) {
    Operands many = operands_of(test), one = many;
    many.forward(context);
    router_forward(context, {one.chosen.view().rows(0, 1), one.weights.view().rows(0, 1), one.load,
                             one.balance, many.logits.view().rows(test.tokens - 1, 1),
                             test.biased ? many.bias.view() : ConstTensorView(), test.rule});
    const std::size_t row = static_cast<std::size_t>(test.rule.chosen) * sizeof(float);
    const std::string all = many.weights.bits();
    EXPECT_EQ(one.weights.bits().substr(0, row), all.substr(all.size() - row));
  }
}

TEST_P(Router, infinities_and_nan_stay_and_experts_are_chosen_all_the_same) {
  Context context = test_context(GetParam());
  const std::vector<std::vector<double>> rows = {
      {kNan, 1, 2, 3, 4}, {1, 2, 3, 4, kNan}, {kNan, kNan, kNan, kNan, kNan}};
  for (const RouterScore score : {kSoftmax, kSigmoid}) {
    for (const bool normalized : {false, true}) {
      const RouterRule rule{.score = score, .chosen = 2, .normalized = normalized};
      for (const auto& row : rows) {
        Operands operands(rule, TestTensor::of(DType::kF32, {1, 5}, row));
        operands.forward(context);
        for (const double w : operands.weights.values()) EXPECT_TRUE(std::isnan(w));
        const auto chosen = operands.chosen.values();
        EXPECT_TRUE(0 <= chosen[0] && chosen[0] < chosen[1] && chosen[1] < 5);
      }
      // -inf is an expert that gets nothing, and is the last to be chosen.
      Operands operands(
          rule, TestTensor::of(DType::kF32, {1, 5}, {-kInfinity, -kInfinity, 0, -kInfinity, 0}));
      operands.forward(context);
      EXPECT_EQ(operands.chosen.values(), (std::vector<double>{2, 4}));
      expect_close(operands.weights.values(), {0.5, 0.5}, {1e-6}, "weights");
    }
  }
  Operands all({.chosen = 2}, TestTensor::of(DType::kF32, {1, 3}, {-kInfinity, 0, -kInfinity}));
  all.forward(context);
  EXPECT_EQ(all.chosen.values(), (std::vector<double>{0, 1}));
  expect_close(all.weights.values(), {0, 1}, {1e-6}, "weights");
  Operands sigmoid({.score = kSigmoid, .chosen = 2},
                   TestTensor::of(DType::kF32, {1, 3}, {kInfinity, 0, -200}));
  sigmoid.forward(context);
  expect_close(sigmoid.weights.values(), {1, 0.5}, {1e-6}, "weights");
}

// ---- backward ----

struct Gradient {
  TestTensor dweights, balance, dlogits, losses;
  float z = 0;
  bool balanced = false;

  Gradient(const Operands& operands, DType type = DType::kF32)
      : dweights(TestTensor::random(DType::kF32, operands.chosen.shape(), 3)),
        balance(TestTensor::random(DType::kF32, operands.load.shape(), 4)),
        dlogits(type, operands.logits.shape()),
        losses(DType::kF64, {2}) {}
  void backward(Context& context, const Operands& operands) {
    RouterBackward args{
        dlogits,       losses, operands.logits,           operands.chosen, dweights, {}, z,
        operands.rule, 0,      operands.sequence_tokens()};
    if (balanced) args.balance_BE = balance;
    router_backward(context, args);
  }
  [[nodiscard]] reference::RouterTerms terms(const Operands& operands) const {
    return {operands.chosen.values(), dweights.values(),
            balanced ? balance.values() : std::vector<double>{}, z};
  }
  /// With losses added to `before`.
  void expect_equals_the_reference(const Operands& operands,
                                   const std::vector<double>& before) const {
    const auto sums = terms(operands);
    const auto logits = operands.logits.values();
    const std::size_t experts = operands.experts();
    const bool rounded = dlogits.dtype() == DType::kBF16;
    expect_close(dlogits.values(), reference::router_backward(operands.rule, sums, logits, experts),
                 {rounded ? 1.02 / 256 : 1e-5, 3e-6}, "dlogits");
    const auto expected = reference::router_losses(operands.rule, sums, logits, experts);
    expect_close(losses.values(), {before[0] + expected.balance, before[1] + expected.z}, {1e-6},
                 "losses");
  }
};

struct Terms {
  bool balanced;
  float z;
};
constexpr Terms kTerms[] = {{false, 0}, {true, 0}, {false, 0.01F}, {true, 0.3F}};

TEST_P(Router, gradient_equals_the_reference_for_any_thread_count) {
  Context one = test_context(GetParam()), two = test_context(GetParam(), 2),
          three = test_context(GetParam(), 3);
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.experts);
    Operands operands = operands_of(test);
    operands.forward(one);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      Gradient gradient(operands, type);
      for (const Terms& terms : kTerms) {
        gradient.balanced = terms.balanced;
        gradient.z = terms.z;
        const auto bits = [&](Context& context) {
          gradient.losses = TestTensor::of(DType::kF64, {2}, {10, 20});
          gradient.backward(context, operands);
          return gradient.dlogits.bits() + gradient.losses.bits();
        };
        const std::string expected = bits(one);
        gradient.expect_equals_the_reference(operands, {10, 20});
        EXPECT_EQ(bits(two), expected);
        EXPECT_EQ(bits(three), expected);
      }
    }
  }
}

TEST_P(Router, gradient_equals_finite_differences) {
  Context context = test_context(GetParam());
  for (const RouterRule& rule :
       {RouterRule{.chosen = 2, .scale = 1.5F}, RouterRule{.chosen = 3, .normalized = true},
        RouterRule{kSigmoid, 2, true, 2, 1, 2.5F}, RouterRule{.score = kSigmoid, .chosen = 2}}) {
    for (const Terms& terms : kTerms) {
      Operands operands(rule, random_logits(3, 6));
      operands.forward(context);
      Gradient gradient(operands);
      gradient.balanced = terms.balanced;
      gradient.z = terms.z;
      gradient.backward(context, operands);
      const auto sums = gradient.terms(operands);
      const auto loss = [&](const std::vector<double>& at) {
        const auto losses = reference::router_losses(rule, sums, at, 6);
        return losses.weighted + losses.balance + losses.z;
      };
      expect_close(gradient.dlogits.values(), finite_differences(operands.logits.values(), loss),
                   {1e-5, 3e-6}, "dlogits");
    }
  }
}

TEST_P(Router, normalized_softmax_is_the_softmax_of_the_chosen) {
  Context context = test_context(GetParam());
  Operands operands({.chosen = 2, .normalized = true},
                    TestTensor::of(DType::kF32, {1, 4}, {std::log(3), 7, std::log(2), 7.5}));
  operands.forward(context);
  EXPECT_EQ(operands.chosen.values(), (std::vector<double>{1, 3}));
  const double w0 = 1 / (1 + std::exp(0.5)), w1 = 1 - w0;
  expect_close(operands.weights.values(), {w0, w1}, {1e-6}, "weights");
  Gradient gradient(operands);
  gradient.dweights = TestTensor::of(DType::kF32, {1, 2}, {5, -1});
  gradient.backward(context, operands);
  const double mean = 5 * w0 - w1;
  expect_close(gradient.dlogits.values(), {0, w0 * (5 - mean), 0, w1 * (-1 - mean)}, {1e-5, 1e-6},
               "dlogits");
}

/// Megatron's: coefficient E / (k T^2) sum_e count_e sum_t p_te, coefficient mean_t logsumexp^2.
TEST_P(Router, auxiliary_losses_are_the_published_ones) {
  Context context = test_context(GetParam());
  constexpr std::int64_t kTokens = 6, kExperts = 5, kChosen = 2;
  Operands operands({.chosen = kChosen}, random_logits(kTokens, kExperts));
  operands.forward(context);
  Gradient gradient(operands);
  const double coefficient = 0.25;
  gradient.balanced = true;
  gradient.z = static_cast<float>(coefficient / kTokens);
  for (std::int64_t e = 0; e < kExperts; ++e)
    gradient.balance.set(e, coefficient * kExperts / (kChosen * kTokens * kTokens) *
                                operands.balance.values()[static_cast<std::size_t>(e)]);
  gradient.backward(context, operands);
  double balance = 0, z = 0;
  for (std::size_t t = 0; t < kTokens; ++t) {
    double sum = 0;
    for (std::size_t e = 0; e < kExperts; ++e)
      sum += std::exp(operands.logits.values()[t * kExperts + e]);
    for (std::size_t e = 0; e < kExperts; ++e)
      balance +=
          operands.load.values()[e] * std::exp(operands.logits.values()[t * kExperts + e]) / sum;
    z += std::log(sum) * std::log(sum);
  }
  expect_close(
      gradient.losses.values(),
      {coefficient * kExperts / (kChosen * kTokens * kTokens) * balance, coefficient / kTokens * z},
      {1e-6}, "losses");
}

TEST_P(Router, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  expect_same_bits([&] {
    const Case test{{kSigmoid, 4, true, 4, 2, 1}, 290, 24, true};
    Operands operands = operands_of(test);
    operands.forward(context);
    Gradient gradient(operands);
    gradient.balanced = true;
    gradient.z = 0.1F;
    gradient.backward(context, operands);
    return operands.chosen.bits() + operands.weights.bits() + operands.load.bits() +
           operands.balance.bits() + gradient.dlogits.bits() + gradient.losses.bits();
  });
}

TEST_P(Router, nan_reaches_the_gradient) {
  Context context = test_context(GetParam());
  for (const RouterScore score : {kSoftmax, kSigmoid}) {
    Operands operands({.score = score, .chosen = 2},
                      TestTensor::of(DType::kF32, {2, 4}, {0, kNan, 1, 2, 0, 1, 2, 3}));
    operands.forward(context);
    Gradient gradient(operands);
    gradient.z = 1;
    gradient.backward(context, operands);
    const auto d = gradient.dlogits.values();
    for (std::size_t e = 0; e < 4; ++e) {
      EXPECT_TRUE(std::isnan(d[e]));
      EXPECT_TRUE(std::isfinite(d[4 + e]));
    }
    EXPECT_TRUE(std::isnan(gradient.losses.values()[1]));
  }
}

TEST_P(Router, no_tokens_change_nothing) {
  Context context = test_context(GetParam());
  Operands operands({.chosen = 2}, TestTensor(DType::kF32, {0, 4}), 3);
  operands.load.set(5, 7);
  operands.forward(context);
  EXPECT_EQ(operands.load.values()[5], 7);
  Gradient gradient(operands);
  gradient.balanced = true;
  gradient.losses = TestTensor::of(DType::kF64, {2}, {1, 2});
  gradient.backward(context, operands);
  EXPECT_EQ(gradient.losses.values(), (std::vector<double>{1, 2}));
}

TEST_P(Router, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  Operands right({.chosen = 2}, random_logits(6, 4), 2);
  const auto refused = [&](const std::function<void(RouterForward&)>& spoil, const char* message) {
    RouterForward args{right.chosen, right.weights, right.load, right.balance, right.logits,
                       {},           right.rule};
    spoil(args);
    expect_refused([&] { router_forward(context, args); }, message);
  };
  refused([&](RouterForward& a) { a.rule.chosen = 3; }, "router_forward.chosen: expected [6, 3]");
  refused([&](RouterForward& a) { a.rule.chosen = 5; }, "router_forward.rule.chosen: expected 1");
  refused([&](RouterForward& a) { a.rule.groups = 3; }, "router_forward.rule.groups: expected 1");
  refused([&](RouterForward& a) { a.rule.groups = 4; },
          "router_forward.rule.groups_chosen: expected as many");
  refused([&](RouterForward& a) { a.weights_Tk = right.chosen; },
          "router_forward.weights: expected [6, 2] fp32");
  refused([&](RouterForward& a) { a.bias_E = right.logits; }, "router_forward.bias: expected [4]");
  refused([&](RouterForward& a) { a.balance_BE = right.load; },
          "router_forward.load: shares memory with balance");
  refused([&](RouterForward& a) { a.sequence_tokens = 2; },
          "router_forward.load: has too few sequences");
  Gradient gradient(right);
  RouterBackward args{
      gradient.dlogits, gradient.losses, right.logits, right.chosen, gradient.dweights, {}, 0,
      right.rule};
  router_backward(context, args);
  args.losses = gradient.dweights;
  expect_refused([&] { router_backward(context, args); },
                 "router_backward.losses: expected [2] fp64");
  if (context.on_gpu()) return;
  args.losses = gradient.losses;
  right.chosen.set(3, 4);
  expect_refused([&] { router_backward(context, args); },
                 "router_backward.chosen[3]: expected 0 to 3");
}

}  // namespace
}  // namespace trireme
