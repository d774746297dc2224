// Units and products of experts that have biases: beside scalar loops in double, and gradients
// beside finite differences of those loops.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/expert_rows/expert_rows.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class ExpertBiasTest : public OpTest {};
TRIREME_FOR_ALL_ISAS(ExpertBiasTest);

using Values = std::vector<double>;
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};
constexpr float kAlpha = 1.702F, kLimit = 1.5F;

/// Segments of 0 to 2 rows, so that some experts have none; room for three rows more.
struct Rows {
  std::int64_t experts, sources, count = 0;
  std::vector<std::size_t> expert_of;  ///< of each row
  Values of_slots;                     ///< the weights
  TestTensor begins, row_slot, weights;

  Rows(std::int64_t experts_, std::int64_t sources_)
      : experts(experts_),
        sources(sources_),
        begins(DType::kI32, {experts * sources + 1}),
        row_slot(DType::kI32, {0}),
        weights(DType::kF32, {0}) {
    for (std::int64_t i = 0; i < experts * sources; ++i) {
      begins.set(i, static_cast<double>(count));
      const std::int64_t of_segment = (i / sources) % 4 == 1 ? 0 : (i * 5 + 2) % 3;
      expert_of.insert(expert_of.end(), static_cast<std::size_t>(of_segment),
                       static_cast<std::size_t>(i / sources));
      count += of_segment;
    }
    begins.set(experts * sources, static_cast<double>(count));
    weights = TestTensor::random(DType::kF32, {count + 3}, 9);
    of_slots = weights.values();
    row_slot = TestTensor(DType::kI32, {most()});
    for (std::int64_t r = 0; r < most(); ++r)
      row_slot.set(r, r < count ? static_cast<double>(count - 1 - r) : -77.0);
  }
  [[nodiscard]] std::int64_t most() const { return count + 3; }
  [[nodiscard]] double weight(std::size_t r) const {
    return of_slots[static_cast<std::size_t>(count) - 1 - r];
  }
};

double clamp(double x, double low, double high) { return std::min(std::max(x, low), high); }

/// (u + 1) g sigmoid(alpha g) of the clamped sums.
double unit_of(double gate, double up) {
  const double limit = static_cast<double>(kLimit), alpha = static_cast<double>(kAlpha);
  const double g = std::min(gate, limit), u = clamp(up, -limit, limit);
  return (u + 1) * g / (1 + std::exp(-alpha * g));
}

struct Unit {
  Rows rows;
  std::int64_t ffn;
  TestTensor gate_up, bias, dh, h, again, dgate_up, dweights;

  Unit(DType type, std::int64_t experts, std::int64_t sources, std::int64_t ffn_)
      : rows(experts, sources),
        ffn(ffn_),
        gate_up(TestTensor::random(type, {rows.most(), 2 * ffn}, 1)),
        bias(TestTensor::random(type, {experts, 2 * ffn}, 2)),
        dh(TestTensor::random(type, {rows.most(), ffn}, 3)),
        h(type, {rows.most(), ffn}),
        again(type, {rows.most(), ffn}),
        dgate_up(type, {rows.most(), 2 * ffn}),
        dweights(DType::kF32, {rows.most()}) {}
  [[nodiscard]] WeightedGlu args() const {
    return {GluGate::kSilu, gate_up,     rows.weights,
            rows.row_slot,  rows.begins, {bias, kAlpha, kLimit, rows.sources}};
  }
  void run(Context& context) {
    weighted_glu_forward(context, h, args());
    weighted_glu_backward(context, dgate_up, dweights, again, dh, args());
  }
  [[nodiscard]] std::string bits() const { return h.bits() + dgate_up.bits() + dweights.bits(); }

  /// Of row r and column f, given what stands in gate_up and bias.
  [[nodiscard]] double act(std::size_t r, std::size_t f, const Values& x, const Values& b) const {
    const auto n = static_cast<std::size_t>(ffn);
    const std::size_t at = r * 2 * n + f, of_bias = rows.expert_of[r] * 2 * n + f;
    return unit_of(x[at] + b[of_bias], x[at + n] + b[of_bias + n]);
  }
  /// sum dh h, by the formula.
  [[nodiscard]] double loss(const Values& x, const Values& b) const {
    const Values d = dh.values();
    double sum = 0;
    for (std::size_t r = 0; r < rows.expert_of.size(); ++r) {
      for (std::size_t f = 0; f < static_cast<std::size_t>(ffn); ++f)
        sum += d[r * static_cast<std::size_t>(ffn) + f] * rows.weight(r) * act(r, f, x, b);
    }
    return sum;
  }
};

/// What is behind the last row is 0 as it was.
void expect_unit_equals_the_formula(const Unit& unit) {
  const Values x = unit.gate_up.values(), b = unit.bias.values(), d = unit.dh.values();
  Values h(static_cast<std::size_t>(unit.h.shape().count())),
      dweights(static_cast<std::size_t>(unit.rows.most()));
  for (std::size_t r = 0; r < unit.rows.expert_of.size(); ++r) {
    for (std::size_t f = 0; f < static_cast<std::size_t>(unit.ffn); ++f) {
      const std::size_t at = r * static_cast<std::size_t>(unit.ffn) + f;
      const double act = unit.act(r, f, x, b);
      h[at] = unit.rows.weight(r) * act;
      dweights[r] += d[at] * act;
    }
  }
  expect_close(unit.h.values(), h, tolerance_of(unit.h.dtype()), "h");
  expect_close(unit.dweights.values(), dweights, {4e-6, 4e-6}, "dweights");
  EXPECT_EQ(unit.again.bits(), unit.h.bits());
  // Of each element by itself: no other is in its unit but its partner.
  Values gradient(x.size()), at = x;
  constexpr double kStep = 1e-6;
  const auto columns = static_cast<std::size_t>(2 * unit.ffn);
  for (std::size_t i = 0; i < unit.rows.expert_of.size() * columns; ++i) {
    const std::size_t r = i / columns, f = i % columns % (columns / 2);
    at[i] = x[i] + kStep;
    const double above = unit.act(r, f, at, b);
    at[i] = x[i] - kStep;
    const double below = unit.act(r, f, at, b);
    at[i] = x[i];
    gradient[i] = d[r * (columns / 2) + f] * unit.rows.weight(r) * (above - below) / (2 * kStep);
  }
  expect_close(unit.dgate_up.values(), gradient,
               unit.h.dtype() == DType::kF32 ? Tolerance{2e-5, 1e-6} : Tolerance{1.02 / 256, 1e-5},
               "dgate_up");
}

TEST_P(ExpertBiasTest, clamped_units_equal_the_formula_for_any_thread_count) {
  for (const DType type : kTypes) {
    for (const std::int64_t ffn : {1, 9, 40}) {
      std::string bits;
      for (const int threads : {1, 3}) {
        Context context = test_context(GetParam(), threads);
        Unit unit(type, 5, 2, ffn);
        unit.run(context);
        if (threads == 1) expect_unit_equals_the_formula(unit);
        if (bits.empty()) bits = unit.bits();
        EXPECT_EQ(unit.bits(), bits);
      }
    }
  }
}

TEST_P(ExpertBiasTest, rows_find_their_expert_among_many) {
  Context context = test_context(GetParam(), 2);
  Unit unit(DType::kF32, 70, 3, 8);
  unit.run(context);
  expect_unit_equals_the_formula(unit);
}

TEST_P(ExpertBiasTest, gradients_may_replace_what_they_are_made_of) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : kTypes) {
    Unit apart(type, 5, 2, 40), within = apart;
    apart.run(context);
    weighted_glu_backward(context, within.gate_up, within.dweights, within.dh, within.dh,
                          within.args());
    const std::size_t bytes = static_cast<std::size_t>(apart.rows.count * 40) * size_of(type);
    EXPECT_EQ(within.gate_up.bits().substr(0, 2 * bytes),
              apart.dgate_up.bits().substr(0, 2 * bytes));
    EXPECT_EQ(within.dh.bits().substr(0, bytes), apart.h.bits().substr(0, bytes));
    EXPECT_EQ(within.dweights.bits(), apart.dweights.bits());
  }
}

TEST_P(ExpertBiasTest, a_clamp_hides_no_nan) {
  Context context = test_context(GetParam());
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const std::int64_t column : {0, 1}) {
    Unit unit(DType::kF32, 1, 1, 1);
    unit.gate_up.set(column, kNan);
    unit.run(context);
    EXPECT_TRUE(std::isnan(unit.h.values()[0]));
    EXPECT_TRUE(std::isnan(unit.dgate_up.values()[0]));
  }
}

/// c_g = the sums of a's rows times their factors.
TestTensor bias_gradient(Context& context, const Rows& rows, const TestTensor& a,
                         const TestTensor& factors) {
  const std::int64_t columns = a.shape()[1];
  TestTensor c(DType::kF32, {rows.experts, columns, 1});
  grouped_gemm_weights(context,
                       {c, a, factors, Accumulate::kNo, rows.begins, rows.sources, "expert_bias"});
  return c;
}

TEST_P(ExpertBiasTest, the_gradient_of_a_bias_before_units_is_a_sum_of_rows) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : kTypes) {
    Unit unit(type, 5, 2, 9);
    unit.run(context);
    TestTensor ones(type, {unit.rows.most(), 1});
    row_factors(context, ones);
    EXPECT_EQ(ones.values(), Values(static_cast<std::size_t>(unit.rows.most()), 1.0));
    const TestTensor dbias = bias_gradient(context, unit.rows, unit.dgate_up, ones);
    const Values x = unit.gate_up.values();
    expect_close(dbias.values(),
                 finite_differences(
                     unit.bias.values(), [&](const Values& at) { return unit.loss(x, at); }, 1e-6),
                 type == DType::kF32 ? Tolerance{2e-5, 2e-6} : Tolerance{0.01, 0.01}, "dbias");
  }
}

// ---- behind the last product ----

struct Behind {
  Rows rows;
  TestTensor bias, y, dy, dweights;

  Behind(DType type, std::int64_t channels, std::int64_t experts = 5)
      : rows(experts, 2),
        bias(TestTensor::random(type, {experts, channels}, 1)),
        y(TestTensor::random(type, {rows.most(), channels}, 2)),
        dy(TestTensor::random(type, {rows.most(), channels}, 3)),
        dweights(TestTensor::random(DType::kF32, {rows.most()}, 4)) {}
  [[nodiscard]] ExpertBias args() const {
    return {bias, rows.weights, rows.row_slot, rows.begins, rows.sources};
  }
  void run(Context& context) {
    expert_bias_forward(context, y, args());
    expert_bias_backward(context, dweights, dy, args());
  }
};

/// Of `before`, whose rows behind the last stay as they are.
void expect_bias_equals_the_formula(const Behind& before, const Behind& after) {
  const auto channels = static_cast<std::size_t>(before.y.shape()[1]);
  Values y = before.y.values(), dweights = before.dweights.values();
  const Values bias = before.bias.values(), dy = before.dy.values();
  for (std::size_t r = 0; r < before.rows.expert_of.size(); ++r) {
    for (std::size_t c = 0; c < channels; ++c) {
      const double b = bias[before.rows.expert_of[r] * channels + c];
      y[r * channels + c] += before.rows.weight(r) * b;
      dweights[r] += dy[r * channels + c] * b;
    }
  }
  const DType type = before.y.dtype();
  expect_close(after.y.values(), y, tolerance_of(type), "y");
  expect_close(after.dweights.values(), dweights, {4e-6, 4e-6}, "dweights");
}

TEST_P(ExpertBiasTest, biases_behind_products_equal_the_formula_for_any_thread_count) {
  for (const DType type : kTypes) {
    for (const std::int64_t channels : {1, 24, 67, 600}) {
      std::string bits;
      for (const int threads : {1, 3}) {
        Context context = test_context(GetParam(), threads);
        const Behind before(type, channels, channels == 24 ? 70 : 5);
        Behind after = before;
        after.run(context);
        expect_bias_equals_the_formula(before, after);
        if (bits.empty()) bits = after.y.bits() + after.dweights.bits();
        EXPECT_EQ(after.y.bits() + after.dweights.bits(), bits);
      }
    }
  }
}

TEST_P(ExpertBiasTest, the_gradient_of_a_bias_behind_a_product_has_the_rows_weights) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : kTypes) {
    const Behind of(type, 13);
    TestTensor factors(type, {of.rows.most(), 1});
    row_factors(context, factors, of.rows.weights, of.rows.row_slot, of.rows.begins);
    EXPECT_EQ(factors.values().back(), 0);  // behind the last row
    const TestTensor dbias = bias_gradient(context, of.rows, of.dy, factors);
    Values expected(static_cast<std::size_t>(dbias.shape().count()));
    const Values dy = of.dy.values();
    for (std::size_t r = 0; r < of.rows.expert_of.size(); ++r) {
      for (std::size_t c = 0; c < 13; ++c)
        expected[of.rows.expert_of[r] * 13 + c] += of.rows.weight(r) * dy[r * 13 + c];
    }
    expect_close(dbias.values(), expected,
                 type == DType::kF32 ? Tolerance{2e-6, 2e-6} : Tolerance{0.01, 0.005}, "dbias");
  }
}

TEST_P(ExpertBiasTest, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  expect_same_bits([&] {
    Unit unit(DType::kBF16, 5, 2, 72);
    unit.run(context);
    Behind behind(DType::kBF16, 72);
    behind.run(context);
    return unit.bits() + behind.y.bits() + behind.dweights.bits();
  });
}

TEST_P(ExpertBiasTest, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  Unit unit(DType::kF32, 5, 2, 4);
  const auto refused = [&](const std::function<void(WeightedGlu&)>& spoil, const char* message) {
    WeightedGlu args = unit.args();
    spoil(args);
    expect_refused([&] { weighted_glu_forward(context, unit.h, args); },
                   std::string("weighted_clamped_glu_forward.") + message);
  };
  refused([&](WeightedGlu& a) { a.biased.bias_G2F = unit.bias.view().rows(0, 4); },
          "begins: expected one more than segments");
  refused(
      [&](WeightedGlu& a) {
        a.biased.bias_G2F = unit.dgate_up.view().rows(0, 5).reshape({4, 10});
      },
      "bias: expected [4, 8] fp32");
  refused([&](WeightedGlu& a) { a.biased.limit = 0; }, "limit: must be positive");
  refused([&](WeightedGlu& a) { a.biased.sources = 1; }, "begins: expected one more");
  refused(
      [&](WeightedGlu& a) {
        a.row_slot = a.begins = {};
        a.weights = unit.dweights;
      },
      "bias: given, where rows are not those of experts");
  Behind behind(DType::kF32, 6);
  ExpertBias args = behind.args();
  args.bias_GC = unit.bias;
  expect_refused([&] { expert_bias_forward(context, behind.y, args); },
                 "expert_bias_forward.bias: expected [5, 6] fp32");
  expect_refused(
      [&] {
        expert_bias_backward(context, behind.rows.weights.view().rows(0, 2), behind.dy,
                             behind.args());
      },
      "expert_bias_backward.dweights: expected");
  expect_refused([&] { row_factors(context, behind.y); }, "row_factors.factors: expected");
}

}  // namespace
}  // namespace trireme
