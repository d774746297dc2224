#include "kernels/update/update.h"

#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/support/op_test.h"
#include "kernels/update_reference.h"

namespace trireme {
namespace {

class AdamWUpdate : public OpTest {};
TRIREME_FOR_ALL_ISAS(AdamWUpdate);

/// One parameter with its state.
struct State {
  TestTensor parameter, gradient, exp_avg, exp_avg_sq, copy;
  double weight_decay, lr_scale = 1;

  State(std::int64_t count, std::uint64_t seed, double decay)
      : parameter(TestTensor::random(DType::kF32, {count}, seed)),
        gradient(TestTensor::random(DType::kF32, {count}, seed + 100, 0.1)),
        exp_avg(DType::kF32, {count}),
        exp_avg_sq(DType::kF32, {count}),
        copy(DType::kBF16, {count}),
        weight_decay(decay) {}
  [[nodiscard]] UpdateTensor tensor(bool with_copy) {
    return {parameter, with_copy ? copy.view() : TensorView(),
            exp_avg,   exp_avg_sq,
            gradient,  weight_decay,
            lr_scale};
  }
  /// Of Lion, which has one moment.
  [[nodiscard]] UpdateTensor of_lion(bool with_copy) {
    UpdateTensor tensor = this->tensor(with_copy);
    tensor.exp_avg_sq = {};
    return tensor;
  }
  [[nodiscard]] std::string bits() const {
    return parameter.bits() + exp_avg.bits() + exp_avg_sq.bits();
  }
};

AdamWScalars scalars_at(int t, const AdamWConstants& constants) {
  return {1e-2 / t, 1 - std::pow(constants.beta1, t), 1 - std::pow(constants.beta2, t), 0.5F};
}

TEST_P(AdamWUpdate, the_first_step_by_hand) {
  Context context = test_context(GetParam());
  // m / c1 = g and v / c2 = g^2: without decay the step is lr * sign(g), but for eps.
  State state(2, 1, 0);
  state.parameter = TestTensor::of(DType::kF32, {2}, {1, 1});
  state.gradient = TestTensor::of(DType::kF32, {2}, {4, -0.25});
  const UpdateTensor tensor = state.tensor(false);
  adamw_update(context, {&tensor, 1}, {0.9, 0.95, 0}, {0.125, 0.1, 0.05, 1});
  expect_close(state.parameter.values(), {0.875, 1.125}, {1e-6}, "parameter");
  expect_close(state.exp_avg.values(), {0.4, -0.025}, {1e-6}, "exp_avg");
  expect_close(state.exp_avg_sq.values(), {0.8, 0.003125}, {1e-6}, "exp_avg_sq");
}

TEST_P(AdamWUpdate, ten_steps_equal_the_reference) {
  for (const AdamWConstants& constants :
       {AdamWConstants{}, AdamWConstants{0.9, 0.999, 1e-6}, AdamWConstants{0, 0, 1e-8}}) {
    Context context = test_context(GetParam(), 2);
    State state(1003, 1, 0.1);
    state.lr_scale = 0.3;
    reference::AdamWState expected{state.parameter.values(), state.exp_avg.values(),
                                   state.exp_avg_sq.values()};
    for (int t = 1; t <= 10; ++t) {
      state.gradient = TestTensor::random(DType::kF32, {1003}, static_cast<std::uint64_t>(t), 0.1);
      const UpdateTensor tensor = state.tensor(false);
      adamw_update(context, {&tensor, 1}, constants, scalars_at(t, constants));
      reference::adamw_update(expected, state.gradient.values(), {0.1, 0.3}, constants,
                              scalars_at(t, constants));
    }
    expect_close(state.parameter.values(), expected.parameter, {1e-6, 1e-6}, "parameter");
    expect_close(state.exp_avg.values(), expected.exp_avg, {1e-6, 1e-6}, "exp_avg");
    expect_close(state.exp_avg_sq.values(), expected.exp_avg_sq, {1e-6, 1e-6}, "exp_avg_sq");
  }
}

TEST_P(AdamWUpdate, many_tensors_have_the_bits_of_each_alone_for_any_thread_count) {
  const std::vector<std::int64_t> counts = {1, 7, 0, 64, 3, 9000, 0, 15, 70001, 2};
  const AdamWConstants constants;
  const auto states_of = [&] {
    std::vector<State> states;
    for (std::size_t i = 0; i < counts.size(); ++i)
      states.emplace_back(counts[i], i, i % 2 == 0 ? 0.1 : 0);
    return states;
  };
  auto alone = states_of();
  Context single = test_context(GetParam());
  for (State& state : alone) {
    const UpdateTensor tensor = state.tensor(true);
    adamw_update(single, {&tensor, 1}, constants, scalars_at(3, constants));
  }
  for (const int threads : {1, 2, 3, 7}) {
    Context context = test_context(GetParam(), threads);
    auto together = states_of();
    std::vector<UpdateTensor> tensors;
    for (std::size_t i = 0; i < counts.size(); ++i)
      tensors.push_back(together[i].tensor(i % 3 == 0));
    adamw_update(context, tensors, constants, scalars_at(3, constants));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      EXPECT_EQ(together[i].bits(), alone[i].bits());
      const TestTensor untouched(DType::kBF16, {counts[i]});
      EXPECT_EQ(together[i].copy.bits(), i % 3 == 0 ? alone[i].copy.bits() : untouched.bits());
    }
  }
}

TEST_P(AdamWUpdate, rows_of_a_tensor_updated_apart_have_the_same_bits) {
  Context context = test_context(GetParam());
  const AdamWConstants constants;
  State whole(101, 5, 0.1), cut = whole;
  const UpdateTensor tensor = whole.tensor(false);
  adamw_update(context, {&tensor, 1}, constants, scalars_at(1, constants));
  std::vector<UpdateTensor> rows;
  for (const auto& [begin, count] :
       {std::pair<std::int64_t, std::int64_t>{0, 13}, {13, 1}, {14, 87}}) {
    const auto part = [begin = begin, count = count](TestTensor& x) {
      return x.view().rows(begin, count);
    };
    rows.push_back({part(cut.parameter),
                    {},
                    part(cut.exp_avg),
                    part(cut.exp_avg_sq),
                    part(cut.gradient),
                    0.1});
  }
  adamw_update(context, rows, constants, scalars_at(1, constants));
  EXPECT_EQ(cut.bits(), whole.bits());
}

/// Of 7 rows of 13 (and of whole vectors), 1, 3 and 4 have a gradient.
TEST_P(AdamWUpdate, a_gradient_in_rows_has_the_bits_of_the_whole) {
  if (test_context(GetParam()).on_gpu()) GTEST_SKIP() << "on a CPU only";
  for (const std::int64_t columns : {1, 13, 64, 700}) {
    for (const int threads : {1, 3}) {
      Context context = test_context(GetParam(), threads);
      State whole(7 * columns, 5, 0.1);
      TestTensor rows(DType::kF32, {4, columns});
      TestTensor slots = TestTensor::of(DType::kI32, {7}, {3, 2, 3, 0, 1, 3, 3});
      for (std::int64_t r = 0; r < 7; ++r) {
        const auto slot = static_cast<std::int64_t>(slots.values()[static_cast<std::size_t>(r)]);
        for (std::int64_t c = 0; c < columns; ++c) {
          const double g = slot == 3 ? 0 : static_cast<double>((r * columns + c) % 19 - 9) / 8;
          whole.gradient.set(r * columns + c, g);
          rows.set(slot * columns + c, g);
        }
      }
      State apart = whole;
      TestTensor kept(DType::kF32, {21 * columns}), others(DType::kF32, {21 * columns});
      UpdateTensor tensor = whole.tensor(true), in_rows = apart.tensor(true);
      tensor.kept = kept.view();
      in_rows.kept = others.view();
      in_rows.parameter = in_rows.parameter.reshape({7, columns});
      in_rows.gradient = rows;
      in_rows.gradient_slots = slots;
      for (int t = 1; t <= 2; ++t) {
        adamw_update(context, {&tensor, 1}, {}, scalars_at(t, {}));
        adamw_update(context, {&in_rows, 1}, {}, scalars_at(t, {}));
      }
      EXPECT_EQ(apart.bits() + apart.copy.bits() + others.bits(),
                whole.bits() + whole.copy.bits() + kept.bits());
    }
  }
}

TEST_P(AdamWUpdate, slots_that_are_no_rows_are_refused) {
  Context context = test_context(GetParam());
  State state(6, 5, 0.1);
  TestTensor rows(DType::kF32, {2, 2}), slots = TestTensor::of(DType::kI32, {3}, {0, 2, 1});
  UpdateTensor tensor = state.tensor(false);
  tensor.parameter = tensor.parameter.reshape({3, 2});
  tensor.gradient = rows;
  tensor.gradient_slots = slots;
  expect_refused(
      [&] {
        adamw_update(context, {&tensor, 1}, {}, scalars_at(1, {}));
      },
      "gradient_slots");
}

TEST_P(AdamWUpdate, the_form_is_the_new_value_rounded_once) {
  Context context = test_context(GetParam());
  State state(100, 1, 0.1);
  TestTensor rounded(DType::kBF16, {100});
  const UpdateTensor tensor = state.tensor(true);
  adamw_update(context, {&tensor, 1}, {}, scalars_at(1, {}));
  cast(context, rounded, state.parameter);
  EXPECT_EQ(state.copy.bits(), rounded.bits());
}

/// Tensors of many sizes, parts of one block of a GPU's and several; every third has a copy.
std::vector<State> many_states(std::size_t count) {
  std::vector<State> states;
  for (std::size_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::int64_t>(i);
    states.emplace_back(n == 7 ? 9001 : n * 13 % 200, i, i % 2 == 0 ? 0.1 : 0);
  }
  return states;
}

std::string updated(Context& context, std::size_t count) {
  std::vector<State> states = many_states(count);
  for (int t = 1; t <= 2; ++t) {
    std::vector<UpdateTensor> tensors;
    for (std::size_t i = 0; i < count; ++i) tensors.push_back(states[i].tensor(i % 3 == 0));
    adamw_update(context, tensors, {}, scalars_at(t, {}));
  }
  std::string bits;
  for (const State& state : states) bits += state.bits() + state.copy.bits();
  return bits;
}

TEST_P(AdamWUpdate, a_device_has_the_bits_of_the_cpu) {
  for (const std::size_t count : {2, 33}) {
    Context context = test_context(GetParam()), cpu({DeviceKind::kCpu, 0}, 1, GetParam());
    EXPECT_TRUE(updated(context, count) == updated(cpu, count)) << count;
  }
}

TEST_P(AdamWUpdate, the_order_of_threads_changes_no_bit) {
  expect_same_bits([&] {
    Context context = test_context(GetParam());
    return updated(context, 10);
  });
}

TEST_P(AdamWUpdate, operands_may_begin_apart_from_each_other) {
  Context context = test_context(GetParam());
  State state(1003, 5, 0.1), apart = state;
  apart.copy = TestTensor(DType::kBF16, {1003}, 1);
  apart.exp_avg = TestTensor(DType::kF32, {1003}, 3);
  const UpdateTensor tensor = state.tensor(true), other = apart.tensor(true);
  adamw_update(context, {&tensor, 1}, {}, scalars_at(1, {}));
  adamw_update(context, {&other, 1}, {}, scalars_at(1, {}));
  EXPECT_EQ(apart.bits() + apart.copy.bits(), state.bits() + state.copy.bits());
}

TEST_P(AdamWUpdate, old_values_are_kept_on_the_way) {
  for (const std::int64_t count : {1, 64, 1003, 9001}) {
    for (const bool with_copy : {false, true}) {
      for (const int offset : {0, 1}) {
        Context context = test_context(GetParam(), 2);
        State plain(count, 5, 0.1);
        const UpdateTensor tensor = plain.tensor(with_copy);
        adamw_update(context, {&tensor, 1}, {}, scalars_at(1, {}));
        State keeping = plain;
        const std::vector<double> old[] = {plain.parameter.values(), plain.exp_avg.values(),
                                           plain.exp_avg_sq.values()};
        TestTensor kept(DType::kF32, {3 * count}, offset);
        UpdateTensor other = keeping.tensor(with_copy);
        other.kept = kept.view();
        adamw_update(context, {&tensor, 1}, {}, scalars_at(2, {}));
        adamw_update(context, {&other, 1}, {}, scalars_at(2, {}));
        EXPECT_EQ(keeping.bits() + keeping.copy.bits(), plain.bits() + plain.copy.bits());
        std::vector<double> expected;
        for (const std::vector<double>& part : old)
          expected.insert(expected.end(), part.begin(), part.end());
        EXPECT_EQ(kept.values(), expected);
      }
    }
  }
}

class LionUpdate : public OpTest {};
TRIREME_FOR_ALL_ISAS(LionUpdate);

TEST_P(LionUpdate, the_first_steps_by_hand) {
  Context context = test_context(GetParam());
  State state(3, 1, 0.5);
  state.parameter = TestTensor::of(DType::kF32, {3}, {1, 1, 1});
  state.gradient = TestTensor::of(DType::kF32, {3}, {4, -0.25, 0});
  const UpdateTensor tensor = state.of_lion(false);
  lion_update(context, {&tensor, 1}, {0.5, 0.75}, 0.125, 1);
  expect_close(state.parameter.values(), {0.8125, 1.0625, 0.9375}, {0}, "parameter");
  expect_close(state.exp_avg.values(), {1, -0.0625, 0}, {0}, "exp_avg");
  // The sign of beta1 m + (1 - beta1) g: the first gradient's outweighs a half of its own.
  state.gradient = TestTensor::of(DType::kF32, {3}, {-0.5, 0.25, 0});
  const UpdateTensor again = state.of_lion(false);
  lion_update(context, {&again, 1}, {0.5, 0.75}, 0.0625, 0.5F);
  const std::vector<double> before = {0.8125, 1.0625, 0.9375};
  const std::vector<double> sign = {1, 1, 0};
  std::vector<double> expected;
  for (std::size_t i = 0; i < 3; ++i)
    expected.push_back(before[i] * (1 - 0.03125) - 0.0625 * sign[i]);
  expect_close(state.parameter.values(), expected, {1e-7, 1e-7}, "parameter");
}

TEST_P(LionUpdate, ten_steps_equal_the_reference) {
  for (const LionConstants& constants :
       {LionConstants{}, LionConstants{0.95, 0.98}, LionConstants{0, 0}}) {
    Context context = test_context(GetParam(), 2);
    State state(1003, 1, 0.1);
    state.lr_scale = 0.3;
    reference::AdamWState expected{state.parameter.values(), state.exp_avg.values(), {}};
    for (int t = 1; t <= 10; ++t) {
      state.gradient = TestTensor::random(DType::kF32, {1003}, static_cast<std::uint64_t>(t), 0.1);
      const UpdateTensor tensor = state.of_lion(false);
      lion_update(context, {&tensor, 1}, constants, 1e-2 / t, 0.5F);
      reference::lion_update(expected, state.gradient.values(), {0.1, 0.3}, constants, 1e-2 / t,
                             0.5);
    }
    expect_close(state.parameter.values(), expected.parameter, {1e-6, 1e-6}, "parameter");
    expect_close(state.exp_avg.values(), expected.exp_avg, {1e-6, 1e-6}, "exp_avg");
  }
}

/// Two updates of `count` tensors, every third of which has a copy; one in `keeping` keeps.
std::string updated_by_lion(Context& context, std::size_t count, int keeping = 0) {
  std::vector<State> states = many_states(count);
  std::vector<TestTensor> kept;
  for (const State& state : states)
    kept.emplace_back(DType::kF32, Shape{2 * state.parameter.view().count()});
  for (int t = 1; t <= 2; ++t) {
    std::vector<UpdateTensor> tensors;
    for (std::size_t i = 0; i < count; ++i) {
      tensors.push_back(states[i].of_lion(i % 3 == 0));
      if (keeping > 0 && i % static_cast<std::size_t>(keeping) == 0)
        tensors.back().kept = kept[i].view();
    }
    lion_update(context, tensors, {}, 1e-2 / t, 0.5F);
  }
  std::string bits;
  for (const State& state : states)
    bits += state.parameter.bits() + state.exp_avg.bits() + state.copy.bits();
  return bits;
}

TEST_P(LionUpdate, a_device_has_the_bits_of_the_cpu_on_any_number_of_threads) {
  for (const int keeping : {0, 2}) {
    Context cpu({DeviceKind::kCpu, 0}, 1, GetParam());
    const std::string expected = updated_by_lion(cpu, 33);
    for (const int threads : {1, 2, 3}) {
      Context context = test_context(GetParam(), threads);
      EXPECT_TRUE(updated_by_lion(context, 33, keeping) == expected) << threads;
    }
  }
}

TEST_P(LionUpdate, old_values_are_kept_on_the_way) {
  for (const std::int64_t count : {1, 64, 1003, 9001}) {
    for (const int offset : {0, 1}) {
      Context context = test_context(GetParam(), 2);
      State state(count, 5, 0.1);
      state.exp_avg = TestTensor::random(DType::kF32, {count}, 9);
      std::vector<double> expected = state.parameter.values();
      for (const double m : state.exp_avg.values()) expected.push_back(m);
      TestTensor kept(DType::kF32, {2 * count}, offset);
      UpdateTensor tensor = state.of_lion(true);
      tensor.kept = kept.view();
      lion_update(context, {&tensor, 1}, {}, 1e-2, 1);
      EXPECT_EQ(kept.values(), expected);
    }
  }
}

TEST_P(LionUpdate, a_gradient_in_rows_has_the_bits_of_the_whole) {
  if (test_context(GetParam()).on_gpu()) GTEST_SKIP() << "on a CPU only";
  Context context = test_context(GetParam(), 2);
  State whole(3 * 13, 5, 0.1), apart = whole;
  TestTensor rows(DType::kF32, {2, 13}), slots = TestTensor::of(DType::kI32, {3}, {1, 0, 1});
  for (std::int64_t c = 0; c < 13; ++c) {
    rows.set(c, static_cast<double>(c - 6) / 8);
    for (const std::int64_t r : {0, 1, 2})
      whole.gradient.set(r * 13 + c, r == 1 ? static_cast<double>(c - 6) / 8 : 0);
  }
  const UpdateTensor tensor = whole.of_lion(true);
  UpdateTensor in_rows = apart.of_lion(true);
  in_rows.parameter = in_rows.parameter.reshape({3, 13});
  in_rows.gradient = rows;
  in_rows.gradient_slots = slots;
  lion_update(context, {&tensor, 1}, {}, 1e-2, 1);
  lion_update(context, {&in_rows, 1}, {}, 1e-2, 1);
  EXPECT_EQ(apart.bits() + apart.copy.bits(), whole.bits() + whole.copy.bits());
}

TEST_P(LionUpdate, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  State state(4, 1, 0);
  TestTensor five(DType::kF32, {5}), twelve(DType::kF32, {12});
  const auto update = [&](const UpdateTensor& tensor) {
    lion_update(context, {&tensor, 1}, {}, 1e-3, 1);
  };
  expect_refused([&] { update(state.tensor(true)); }, "lion_update.exp_avg_sq");
  UpdateTensor bad = state.of_lion(true);
  bad.exp_avg = five.view();
  expect_refused([&] { update(bad); }, "lion_update.exp_avg: expected [4] fp32, found [5] fp32");
  bad = state.of_lion(true);
  bad.kept = twelve.view();
  expect_refused([&] { update(bad); }, "lion_update.kept: expected [8] fp32, found [12] fp32");
}

class AverageUpdate : public OpTest {};
TRIREME_FOR_ALL_ISAS(AverageUpdate);

/// Of tensors of many sizes, after two calls.
std::string averaged(Context& context, int offset = 0) {
  std::vector<TestTensor> averages, values;
  for (std::int64_t i = 0; i < 33; ++i) {
    const std::int64_t count = i == 7 ? 9001 : i * 13 % 200;
    const auto seed = static_cast<std::uint64_t>(i);
    TestTensor average(DType::kF32, {count}, offset);
    const std::vector<double> start = TestTensor::random(DType::kF32, {count}, seed + 50).values();
    for (std::int64_t at = 0; at < count; ++at)
      average.set(at, start[static_cast<std::size_t>(at)]);
    averages.push_back(std::move(average));
    values.push_back(TestTensor::random(DType::kF32, {count}, seed));
  }
  std::vector<AveragedTensor> tensors;
  for (std::size_t i = 0; i < averages.size(); ++i)
    tensors.push_back({averages[i].view(), values[i].view()});
  for (int t = 0; t < 2; ++t) average_update(context, tensors, 0.99);
  std::string bits;
  for (const TestTensor& average : averages) bits += average.bits();
  return bits;
}

TEST_P(AverageUpdate, move_by_their_share_of_the_distance) {
  Context context = test_context(GetParam());
  TestTensor average = TestTensor::of(DType::kF32, {3}, {1, -2, 8}),
             value = TestTensor::of(DType::kF32, {3}, {3, -2, 0});
  const AveragedTensor tensor{average.view(), value.view()};
  average_update(context, {&tensor, 1}, 0.75);
  EXPECT_EQ(average.values(), (std::vector<double>{1.5, -2, 6}));
  EXPECT_EQ(value.values(), (std::vector<double>{3, -2, 0}));
  average_update(context, {}, 0.75);
}

TEST_P(AverageUpdate, a_device_has_the_bits_of_the_cpu_on_any_number_of_threads) {
  Context cpu({DeviceKind::kCpu, 0}, 1, GetParam());
  const std::string expected = averaged(cpu);
  for (const int threads : {1, 2, 3}) {
    Context context = test_context(GetParam(), threads);
    EXPECT_TRUE(averaged(context, threads - 1) == expected) << threads;
  }
}

TEST_P(AverageUpdate, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  TestTensor four(DType::kF32, {4}), five(DType::kF32, {5});
  const AveragedTensor tensor{four.view(), five.view()};
  expect_refused(
      [&] {
        average_update(context, {&tensor, 1}, 0.5);
      },
      "average_update.parameter: expected [4] fp32, found [5] fp32");
}

TEST_P(AdamWUpdate, no_tensors_are_no_work) {
  Context context = test_context(GetParam());
  adamw_update(context, {}, {}, {});
}

TEST_P(AdamWUpdate, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  State state(4, 1, 0);
  TestTensor five(DType::kF32, {5}), half(DType::kBF16, {4});
  const auto update = [&](const UpdateTensor& tensor, const AdamWScalars& scalars = {}) {
    adamw_update(context, {&tensor, 1}, {}, scalars);
  };
  UpdateTensor bad = state.tensor(true);
  bad.gradient = half.view();
  expect_refused([&] { update(bad); }, "adamw_update.gradient: expected [4] fp32, found [4] bf16");
  bad = state.tensor(true);
  bad.exp_avg = five.view();
  expect_refused([&] { update(bad); }, "adamw_update.exp_avg: expected [4] fp32, found [5] fp32");
  bad = state.tensor(true);
  bad.copy = state.parameter.view();
  expect_refused([&] { update(bad); }, "adamw_update.copy: expected [4] bf16");
  bad = state.tensor(true);
  bad.kept = five.view();
  expect_refused([&] { update(bad); }, "adamw_update.kept: expected [12] fp32, found [5] fp32");
  expect_refused(
      [&] {
        update(state.tensor(true), {1e-3, 0, 0, 1});
      },
      "the bias corrections must be positive");
}

}  // namespace
}  // namespace trireme
