#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "kernels/support/op_test.h"
#include "kernels/update/update.h"
#include "kernels/update_reference.h"

namespace trireme {
namespace {

class ScheduleFreeUpdate : public OpTest {};
TRIREME_FOR_ALL_ISAS(ScheduleFreeUpdate);

/// One parameter with its state; the copy `offset` elements from where memory is aligned.
struct State {
  TestTensor x, z, exp_avg_sq, gradient, copy;
  double weight_decay, lr_scale = 1;

  State(std::int64_t count, std::uint64_t seed, double decay, DType copied = DType::kF32,
        int offset = 0)
      : x(DType::kF32, {count}),
        z(DType::kF32, {count}),
        exp_avg_sq(DType::kF32, {count}),
        gradient(TestTensor::random(DType::kF32, {count}, seed + 100, 0.1)),
        copy(copied, {count}, offset),
        weight_decay(decay) {
    const std::vector<double> start = TestTensor::random(DType::kF32, {count}, seed).values();
    for (std::int64_t i = 0; i < count; ++i) {
      x.set(i, start[static_cast<std::size_t>(i)]);
      z.set(i, start[static_cast<std::size_t>(i)]);
    }
  }
  [[nodiscard]] UpdateTensor tensor(bool with_copy = true) {
    return {x,        with_copy ? copy.view() : TensorView(),
            z,        exp_avg_sq,
            gradient, weight_decay,
            lr_scale, {},
            {}};
  }
  [[nodiscard]] std::string bits() const {
    return x.bits() + z.bits() + exp_avg_sq.bits() + copy.bits();
  }
};

/// Of the t-th update at a rate that rises for two of them.
ScheduleFreeScalars scalars_at(int t, double beta2) {
  double weights = 0;
  for (int k = 1; k <= t; ++k) weights += k < 2 ? 0.25 : 1;
  return {t < 2 ? 5e-3 : 1e-2, 1 - std::pow(beta2, t), (t < 2 ? 0.25 : 1) / weights, 0.5F};
}

TEST_P(ScheduleFreeUpdate, the_first_steps_by_hand) {
  Context context = test_context(GetParam());
  State state(2, 1, 0.5);
  state.x = state.z = TestTensor::of(DType::kF32, {2}, {1, -2});
  state.gradient = TestTensor::of(DType::kF32, {2}, {4, -0.25});
  const UpdateTensor first = state.tensor();
  // v / c2 = g^2, so that z moves by lr (sign(g) + wd y), and the average is all of z.
  schedule_free_update(context, {&first, 1}, {0.75, 0.5, 0}, {0.125, 0.5, 1, 1});
  expect_close(state.z.values(), {1 - 0.1875, -2 + 0.25}, {1e-6}, "z");
  expect_close(state.x.values(), {1 - 0.1875, -2 + 0.25}, {1e-6}, "x");
  expect_close(state.exp_avg_sq.values(), {8, 0.03125}, {1e-6}, "exp_avg_sq");
  // Half of the second, at y = 3/4 x + 1/4 z; of a gradient of 0.
  state.x = TestTensor::of(DType::kF32, {2}, {1, -2});
  state.gradient = TestTensor::of(DType::kF32, {2}, {0, 0});
  const UpdateTensor second = state.tensor();
  schedule_free_update(context, {&second, 1}, {0.75, 0.5, 1e-8}, {0.125, 0.75, 0.5, 1});
  const double y[] = {0.75 + 0.25 * 0.8125, -1.5 - 0.25 * 1.75};
  const double z[] = {0.8125 - 0.0625 * y[0], -1.75 - 0.0625 * y[1]};
  expect_close(state.z.values(), {z[0], z[1]}, {1e-6}, "z");
  expect_close(state.x.values(), {(1 + z[0]) / 2, (z[1] - 2) / 2}, {1e-6}, "x");
  expect_close(state.copy.values(),
               {0.375 * (1 + z[0]) + 0.25 * z[0], 0.375 * (z[1] - 2) + 0.25 * z[1]}, {1e-6}, "y");
}

TEST_P(ScheduleFreeUpdate, ten_steps_equal_the_reference) {
  for (const ScheduleFreeConstants& constants :
       {ScheduleFreeConstants{}, ScheduleFreeConstants{0.95, 0.999, 1e-6},
        ScheduleFreeConstants{0, 0, 1e-8}}) {
    Context context = test_context(GetParam(), 2);
    State state(1003, 1, 0.1);
    state.lr_scale = 0.3;
    reference::ScheduleFreeState expected{
        state.x.values(), state.z.values(), state.exp_avg_sq.values(), {}};
    for (int t = 1; t <= 10; ++t) {
      state.gradient = TestTensor::random(DType::kF32, {1003}, static_cast<std::uint64_t>(t), 0.1);
      const UpdateTensor tensor = state.tensor();
      schedule_free_update(context, {&tensor, 1}, constants, scalars_at(t, constants.beta2));
      reference::schedule_free_update(expected, state.gradient.values(), {0.1, 0.3}, constants,
                                      scalars_at(t, constants.beta2));
    }
    expect_close(state.x.values(), expected.x, {1e-6, 1e-6}, "x");
    expect_close(state.z.values(), expected.z, {1e-6, 1e-6}, "z");
    expect_close(state.exp_avg_sq.values(), expected.exp_avg_sq, {1e-6, 1e-6}, "exp_avg_sq");
    expect_close(state.copy.values(), expected.y, {1e-6, 1e-6}, "y");
  }
}

/// Tensors of many sizes, with a copy in fp32, in bf16 or none.
std::vector<State> many_states(int offset) {
  std::vector<State> states;
  for (std::uint64_t i = 0; i < 33; ++i) {
    const auto n = static_cast<std::int64_t>(i);
    states.emplace_back(n == 7 || n == 8 ? 9001 : n * 13 % 200, i, i % 2 == 0 ? 0.1 : 0,
                        i % 3 == 1 ? DType::kBF16 : DType::kF32, offset);
  }
  return states;
}

std::string updated(Context& context, int offset = 0) {
  std::vector<State> states = many_states(offset);
  for (int t = 1; t <= 3; ++t) {
    std::vector<UpdateTensor> tensors;
    for (std::size_t i = 0; i < states.size(); ++i) tensors.push_back(states[i].tensor(i % 3 < 2));
    schedule_free_update(context, tensors, {}, scalars_at(t, 0.95));
  }
  std::string bits;
  for (const State& state : states) bits += state.bits();
  return bits;
}

TEST_P(ScheduleFreeUpdate, a_device_has_the_bits_of_the_cpu_on_any_number_of_threads) {
  Context cpu({DeviceKind::kCpu, 0}, 1, GetParam());
  const std::string expected = updated(cpu);
  for (const int threads : {1, 2, 3}) {
    Context context = test_context(GetParam(), threads);
    EXPECT_TRUE(updated(context, threads - 1) == expected) << threads;
  }
}

TEST_P(ScheduleFreeUpdate, a_copy_by_itself_has_the_bits_of_an_update_s) {
  for (const int offset : {0, 1}) {
    Context context = test_context(GetParam(), 2);
    std::vector<State> states = many_states(offset);
    std::vector<UpdateTensor> tensors;
    for (State& state : states) tensors.push_back(state.tensor());
    for (int t = 1; t <= 2; ++t) schedule_free_update(context, tensors, {}, scalars_at(t, 0.95));
    std::string expected, found;
    for (State& state : states) {
      expected += state.bits();
      clear(context, state.copy.view());
    }
    schedule_free_copy(context, tensors, 0.9);
    for (const State& state : states) found += state.bits();
    EXPECT_TRUE(found == expected) << offset;
    // With beta1 = 1 products read x.
    schedule_free_copy(context, tensors, 1);
    for (State& state : states) {
      TestTensor rounded(state.copy.view().dtype, state.copy.view().shape);
      cast(context, rounded, state.x);
      EXPECT_EQ(state.copy.bits(), rounded.bits());
    }
  }
}

TEST_P(ScheduleFreeUpdate, old_values_are_kept_on_the_way) {
  for (const std::int64_t count : {1, 64, 1003, 9001}) {
    Context context = test_context(GetParam(), 2);
    State state(count, 5, 0.1);
    state.z = TestTensor::random(DType::kF32, {count}, 9);
    std::vector<double> expected = state.x.values();
    for (const double z : state.z.values()) expected.push_back(z);
    for (const double v : state.exp_avg_sq.values()) expected.push_back(v);
    TestTensor kept(DType::kF32, {3 * count});
    UpdateTensor tensor = state.tensor();
    tensor.kept = kept.view();
    schedule_free_update(context, {&tensor, 1}, {}, scalars_at(1, 0.95));
    EXPECT_EQ(kept.values(), expected);
  }
}

TEST_P(ScheduleFreeUpdate, a_gradient_in_rows_has_the_bits_of_the_whole) {
  if (test_context(GetParam()).on_gpu()) GTEST_SKIP() << "on a CPU only";
  constexpr std::int64_t kColumns = 13;
  for (const DType copied : {DType::kF32, DType::kBF16}) {
    Context context = test_context(GetParam(), 3);
    State whole(7 * kColumns, 5, 0.1, copied);
    TestTensor rows(DType::kF32, {4, kColumns});
    TestTensor slots = TestTensor::of(DType::kI32, {7}, {3, 2, 3, 0, 1, 3, 3});
    for (std::int64_t r = 0; r < 7; ++r) {
      const auto slot = static_cast<std::int64_t>(slots.values()[static_cast<std::size_t>(r)]);
      for (std::int64_t c = 0; c < kColumns; ++c) {
        const double g = slot == 3 ? 0 : static_cast<double>((r * kColumns + c) % 19 - 9) / 8;
        whole.gradient.set(r * kColumns + c, g);
        rows.set(slot * kColumns + c, g);
      }
    }
    State apart = whole;
    const UpdateTensor tensor = whole.tensor();
    UpdateTensor in_rows = apart.tensor();
    in_rows.parameter = in_rows.parameter.reshape({7, kColumns});
    in_rows.gradient = rows;
    in_rows.gradient_slots = slots;
    schedule_free_update(context, {&tensor, 1}, {}, scalars_at(1, 0.95));
    schedule_free_update(context, {&in_rows, 1}, {}, scalars_at(1, 0.95));
    EXPECT_EQ(apart.bits(), whole.bits());
  }
}

TEST_P(ScheduleFreeUpdate, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  State state(4, 1, 0);
  TestTensor five(DType::kF32, {5});
  const auto update = [&](const UpdateTensor& tensor, const ScheduleFreeScalars& scalars = {}) {
    schedule_free_update(context, {&tensor, 1}, {}, scalars);
  };
  UpdateTensor bad = state.tensor();
  bad.copy = five.view();
  expect_refused([&] { update(bad); },
                 "schedule_free_update.copy: expected [4] fp32, found [5] fp32");
  bad = state.tensor();
  bad.exp_avg = five.view();
  expect_refused([&] { update(bad); },
                 "schedule_free_update.exp_avg: expected [4] fp32, found [5] fp32");
  expect_refused(
      [&] {
        schedule_free_copy(context, {&bad, 1}, 0.9);
      },
      "schedule_free_copy.exp_avg: expected [4] fp32, found [5] fp32");
  expect_refused(
      [&] {
        update(state.tensor(), {1e-3, 0, 1, 1});
      },
      "the bias correction must be positive");
}

}  // namespace
}  // namespace trireme
