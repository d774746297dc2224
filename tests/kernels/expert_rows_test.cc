#include "kernels/expert_rows/expert_rows.h"

#include <numeric>

#include "base/random.h"
#include "kernels/expert_rows_reference.h"
#include "kernels/glu/glu.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class ExpertRowsTest : public OpTest {};
TRIREME_FOR_ALL_ISAS(ExpertRowsTest);

using Values = std::vector<double>;
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

TestTensor of_i32(const Values& values) {
  return TestTensor::of(DType::kI32, {static_cast<std::int64_t>(values.size())}, values);
}

/// Different experts for the slots of each token, in any order.
TestTensor random_choice(std::int64_t tokens, std::int64_t slots, std::int64_t experts) {
  TestTensor chosen(DType::kI32, {tokens, slots});
  std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::uint64_t counter = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < slots; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const std::uint64_t bound = static_cast<std::uint64_t>(experts - j);
      std::swap(order[at], order[at + uniform_below(7, bound, &counter)]);
      chosen.set(t * slots + j, static_cast<double>(order[at]));
    }
  }
  return chosen;
}

struct Table {
  TestTensor chosen, place, sources, begins, row_slot, slot_row;
  std::int64_t here;

  /// Room for `most` rows, all that could be without it.
  Table(TestTensor chosen_, const Values& place_, const Values& sources_, std::int64_t here_,
        std::int64_t most = -1)
      : chosen(std::move(chosen_)),
        place(of_i32(place_)),
        sources(of_i32(sources_)),
        begins(DType::kI32, {here_ * (sources.shape()[0] - 1) + 1}),
        row_slot(DType::kI32, {most < 0 ? chosen.shape().count() : most}),
        slot_row(DType::kI32, chosen.shape()),
        here(here_) {
    for (std::int64_t r = 0; r < row_slot.shape()[0]; ++r) row_slot.set(r, -77);
  }
  void make(Context& context) {
    expert_rows(context, {begins, row_slot, slot_row, chosen, place, sources});
  }
  [[nodiscard]] std::size_t slots() const { return static_cast<std::size_t>(chosen.shape()[1]); }
  [[nodiscard]] reference::ExpertRowsTable expected() const {
    return reference::expert_rows(chosen.values(), slots(), place.values(), sources.values(), here);
  }
  void expect_equals_the_reference(Context& context) {
    make(context);
    auto table = expected();
    EXPECT_EQ(begins.values(), table.begins);
    EXPECT_EQ(slot_row.values(), table.slot_row);
    table.row_slot.resize(static_cast<std::size_t>(row_slot.shape()[0]), -77);
    EXPECT_EQ(row_slot.values(), table.row_slot) << "or rows behind the last were written";
  }
};

/// 0, 1, ..., count - 1: all experts are here.
Values everywhere(std::int64_t count) {
  Values place(static_cast<std::size_t>(count));
  std::iota(place.begin(), place.end(), 0.0);
  return place;
}
/// Every other expert is here, the last first.
Values some_here(std::int64_t count) {
  Values place(static_cast<std::size_t>(count), -1);
  for (std::int64_t e = 0; e < count; e += 2)
    place[static_cast<std::size_t>(e)] = static_cast<double>((count + 1) / 2 - 1 - e / 2);
  return place;
}

/// Of 90 tokens in three sources, one of which has none, for 8 of 16 experts.
Table usual_table() { return {random_choice(90, 3, 16), some_here(16), {0, 40, 40, 83}, 8}; }

TEST_P(ExpertRowsTest, rows_by_hand) {
  Context context = test_context(GetParam());
  // Experts 3 and 1 are here; tokens 0 and 1 are one source's, 2 another's, 3 is behind.
  Table table(TestTensor::of(DType::kI32, {4, 2}, {1, 3, 0, 1, 3, 1, 1, 3}), {-1, 1, -1, 0},
              {0, 2, 3}, 2);
  table.make(context);
  EXPECT_EQ(table.begins.values(), (Values{0, 1, 2, 4, 5}));
  EXPECT_EQ(table.row_slot.values(), (Values{1, 4, 0, 3, 5, -77, -77, -77}));
  EXPECT_EQ(table.slot_row.values(), (Values{2, 0, -1, 3, 1, 4, -1, -1}));
}

TEST_P(ExpertRowsTest, rows_equal_the_reference_for_any_thread_count) {
  for (const int threads : {1, 2, 3}) {
    Context context = test_context(GetParam(), threads);
    Table usual = usual_table();
    usual.expect_equals_the_reference(context);
    Table all(random_choice(2700, 4, 40), everywhere(40), {0, 2700}, 40);
    all.expect_equals_the_reference(context);
    Table absent(random_choice(2700, 4, 40), some_here(40), {0, 0, 900, 1800, 1801, 2650, 2650},
                 20);
    absent.expect_equals_the_reference(context);
    Table one(random_choice(50, 1, 1), {0}, {0, 17, 50}, 1);
    one.expect_equals_the_reference(context);
  }
}

TEST_P(ExpertRowsTest, experts_may_have_no_rows_or_all) {
  Context context = test_context(GetParam(), 2);
  TestTensor chosen(DType::kI32, {3000, 2});
  for (std::int64_t t = 0; t < 3000; ++t) {
    chosen.set(2 * t, 5);
    chosen.set(2 * t + 1, t % 2 == 0 ? 2 : 7);
  }
  Table huge(chosen, everywhere(9), {0, 1000, 3000}, 9);
  huge.expect_equals_the_reference(context);
  Table elsewhere(chosen, {0, 1, -1, 2, 3, -1, 4, -1, 5}, {0, 1000, 3000}, 6);
  elsewhere.expect_equals_the_reference(context);
  EXPECT_EQ(elsewhere.begins.values().back(), 0);
}

TEST_P(ExpertRowsTest, there_may_be_no_token_and_just_room_enough) {
  Context context = test_context(GetParam(), 2);
  Table none(TestTensor(DType::kI32, {0, 2}), everywhere(3), {0, 0, 0}, 3);
  none.expect_equals_the_reference(context);
  Table behind(random_choice(20, 2, 3), everywhere(3), {0, 0, 0}, 3);
  behind.expect_equals_the_reference(context);
  Table tight(random_choice(20, 2, 3), everywhere(3), {0, 15}, 3, 30);
  tight.expect_equals_the_reference(context);
}

TEST_P(ExpertRowsTest, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  expect_same_bits([&] {
    Table table(random_choice(600, 4, 24), some_here(24), {0, 0, 250, 590}, 12);
    table.make(context);
    return table.begins.bits() + table.row_slot.bits() + table.slot_row.bits();
  });
}

// ---- rows of tokens ----

constexpr std::int64_t kWidths[] = {1, 7, 8, 33, 64, 200};

TEST_P(ExpertRowsTest, gathered_rows_are_those_of_their_tokens) {
  for (const int threads : {1, 2, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const DType type : kTypes) {
      for (const std::int64_t channels : kWidths) {
        Table table = usual_table();
        table.make(context);
        const TestTensor x = TestTensor::random(type, {90, channels}, 1);
        TestTensor rows(type, {table.row_slot.shape()[0], channels});
        gather_rows(context, rows, x, table.row_slot, table.begins, 3);
        Values expected = reference::gather_rows(x.values(), static_cast<std::size_t>(channels),
                                                 table.expected().row_slot, 3);
        expected.resize(static_cast<std::size_t>(rows.shape().count()));  // zeros stay behind
        EXPECT_EQ(rows.values(), expected);
      }
    }
  }
}

TEST_P(ExpertRowsTest, combined_rows_are_summed_in_order_of_slots) {
  Context context = test_context(GetParam());
  // 2^24 + 1 - 2^24 + 1: a sum from the first slot on gives 1, any other order 0 or 2.
  const double big = 16777216;
  const TestTensor slot_row =
      TestTensor::of(DType::kI32, {2, 5}, {1, 3, -1, 0, 2, -1, -1, -1, -1, -1});
  const TestTensor rows = TestTensor::of(DType::kF32, {4, 1}, {-big, big, 1, 1});
  TestTensor y(DType::kF32, {2, 1});
  combine_rows(context, y, rows, slot_row);
  EXPECT_EQ(y.values(), (Values{1, 0}));
  // The addend is last: before 2^24 it would be kept.
  const TestTensor addend = TestTensor::of(DType::kF32, {2, 1}, {0.25, -3});
  combine_rows(context, y, rows, slot_row, addend);
  EXPECT_EQ(y.values(), (Values{1.25, -3}));
}

TEST_P(ExpertRowsTest, combined_rows_equal_the_reference_for_any_thread_count) {
  for (const DType type : kTypes) {
    for (const std::int64_t channels : kWidths) {
      std::string bits;
      for (const int threads : {1, 2, 3}) {
        Context context = test_context(GetParam(), threads);
        Table table = usual_table();
        table.make(context);
        const TestTensor rows = TestTensor::random(type, {270, channels}, 1);
        TestTensor y(type, {90, channels}), with(type, {90, channels});
        TestTensor addend = TestTensor::random(type, {90, channels}, 2);
        combine_rows(context, y, rows, table.slot_row);
        combine_rows(context, with, rows, table.slot_row, addend);
        const std::string now = y.bits() + with.bits();
        const auto expected = [&](const Values& added) {
          return reference::combine_rows(rows.values(), static_cast<std::size_t>(channels),
                                         table.slot_row.values(), 3, added);
        };
        if (threads == 1) {
          bits = now;
          expect_close(y.values(), expected({}), tolerance_of(type), "y");
          expect_close(with.values(), expected(addend.values()), tolerance_of(type), "with addend");
        }
        combine_rows(context, addend, rows, table.slot_row, addend);
        EXPECT_EQ(addend.bits(), with.bits());
        EXPECT_EQ(now, bits);
      }
    }
  }
}

TEST_P(ExpertRowsTest, values_of_rows_return_to_their_slots) {
  Context context = test_context(GetParam(), 2);
  Table table = usual_table();
  table.make(context);
  const TestTensor of_rows = TestTensor::random(DType::kF32, {270, 1}, 1);
  TestTensor values(DType::kF32, {270, 1});
  for (std::int64_t i = 0; i < 270; ++i) values.set(i, 5);
  combine_rows(context, values, of_rows, table.slot_row.view().reshape({270, 1}));
  EXPECT_EQ(values.values(),
            reference::combine_rows(of_rows.values(), 1, table.slot_row.values(), 1, {}));
}

// ---- weighted units ----

constexpr GluGate kGates[] = {GluGate::kSilu, GluGate::kGelu};

struct Unit {
  Table table;
  TestTensor gate_up, weights, dh, h, again, dgate_up, dweights;
  GluGate gate;

  Unit(Context& context, GluGate gate_, DType type, std::int64_t ffn)
      : table(usual_table()),
        gate_up(TestTensor::random(type, {270, 2 * ffn}, 1)),
        weights(TestTensor::random(DType::kF32, {90, 3}, 2)),
        dh(TestTensor::random(type, {270, ffn}, 3)),
        h(type, {270, ffn}),
        again(type, {270, ffn}),
        dgate_up(type, {270, 2 * ffn}),
        dweights(DType::kF32, {270}),
        gate(gate_) {
    table.make(context);
  }
  [[nodiscard]] WeightedGlu args() const {
    return {gate, gate_up, weights, table.row_slot, table.begins};
  }
  void run(Context& context) {
    weighted_glu_forward(context, h, args());
    weighted_glu_backward(context, dgate_up, dweights, again, dh, args());
  }
  /// Of the first R rows.
  [[nodiscard]] reference::WeightedGlu reference_args() const {
    const Values row_slot = table.expected().row_slot, all = weights.values();
    reference::WeightedGlu args{gate, gate_up.values(), {}, h.shape()[1]};
    for (const double slot : row_slot) args.weights.push_back(all[static_cast<std::size_t>(slot)]);
    args.gate_up.resize(row_slot.size() * 2 * static_cast<std::size_t>(args.ffn));
    return args;
  }
  /// What is behind the last row is 0 as it was.
  void expect_equals_the_reference() const {
    const auto args = reference_args();
    const auto close = [](const TestTensor& actual, Values expected, const char* what) {
      expected.resize(static_cast<std::size_t>(actual.shape().count()));
      expect_close(actual.values(), expected, tolerance_of(actual.dtype()), what);
    };
    Values known = dh.values();
    known.resize(args.gate_up.size() / 2);
    const auto d = reference::weighted_glu_backward(args, known);
    close(h, reference::weighted_glu_forward(args), "h");
    close(dgate_up, d.gate_up, "dgate_up");
    close(dweights, d.weights, "dweights");
  }
};

TEST_P(ExpertRowsTest, weighted_units_equal_the_reference_for_any_thread_count) {
  for (const GluGate gate : kGates) {
    for (const DType type : kTypes) {
      for (const std::int64_t ffn : {1, 8, 33, 72}) {
        std::string bits;
        for (const int threads : {1, 3}) {
          Context context = test_context(GetParam(), threads);
          Unit unit(context, gate, type, ffn);
          unit.run(context);
          const std::string now = unit.h.bits() + unit.dgate_up.bits() + unit.dweights.bits();
          if (threads == 1) {
            bits = now;
            unit.expect_equals_the_reference();
          }
          EXPECT_EQ(unit.again.bits(), unit.h.bits());
          EXPECT_EQ(now, bits);
        }
      }
    }
  }
}

TEST_P(ExpertRowsTest, with_weights_of_1_a_unit_is_the_plain_one) {
  Context context = test_context(GetParam(), 2);
  for (const GluGate gate : kGates) {
    for (const DType type : kTypes) {
      const TestTensor gate_up = TestTensor::random(type, {50, 2 * 37}, 1, 3),
                       dh = TestTensor::random(type, {50, 37}, 2);
      const TestTensor weights = TestTensor::of(DType::kF32, {50}, Values(50, 1.0));
      TestTensor h(type, {50, 37}), again(type, {50, 37}), d(type, {50, 2 * 37}),
          dweights(DType::kF32, {50}), plain_h(type, {50, 37}), plain_d(type, {50, 2 * 37});
      const WeightedGlu args{gate, gate_up, weights, {}, {}};
      weighted_glu_forward(context, h, args);
      weighted_glu_backward(context, d, dweights, again, dh, args);
      glu_forward(context, gate, plain_h, gate_up);
      glu_backward(context, gate, plain_d, dh, gate_up);
      EXPECT_EQ(h.bits(), plain_h.bits());
      EXPECT_EQ(again.bits(), plain_h.bits());
      EXPECT_EQ(d.bits(), plain_d.bits());
    }
  }
}

TEST_P(ExpertRowsTest, gradients_may_replace_what_they_are_made_of) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : kTypes) {
    for (const std::int64_t ffn : {9, 64}) {
      Unit apart(context, GluGate::kSilu, type, ffn), within = apart;
      apart.run(context);
      weighted_glu_backward(context, within.gate_up, within.dweights, within.dh, within.dh,
                            within.args());
      const auto rows = static_cast<std::size_t>(apart.table.begins.values().back());
      const std::size_t bytes = rows * static_cast<std::size_t>(ffn) * size_of(type);
      EXPECT_EQ(within.gate_up.bits().substr(0, 2 * bytes),
                apart.dgate_up.bits().substr(0, 2 * bytes));
      EXPECT_EQ(within.dh.bits().substr(0, bytes), apart.h.bits().substr(0, bytes));
      EXPECT_EQ(within.dweights.bits(), apart.dweights.bits());
    }
  }
}

TEST_P(ExpertRowsTest, gradients_of_a_unit_equal_finite_differences) {
  Context context = test_context(GetParam());
  for (const GluGate gate : kGates) {
    const TestTensor gate_up = TestTensor::random(DType::kF32, {3, 10}, 1),
                     dh = TestTensor::random(DType::kF32, {3, 5}, 2),
                     weights = TestTensor::random(DType::kF32, {3}, 3);
    TestTensor d(DType::kF32, {3, 10}), dweights(DType::kF32, {3}), h(DType::kF32, {3, 5});
    weighted_glu_backward(context, d, dweights, h, dh, {gate, gate_up, weights, {}, {}});
    const auto loss = [&](const Values& at, const Values& of_rows) {
      const Values y = reference::weighted_glu_forward({gate, at, of_rows, 5}), g = dh.values();
      return std::inner_product(y.begin(), y.end(), g.begin(), 0.0);
    };
    expect_close(d.values(),
                 finite_differences(gate_up.values(),
                                    [&](const Values& at) { return loss(at, weights.values()); }),
                 {1e-6, 1e-6}, "dgate_up");
    expect_close(dweights.values(),
                 finite_differences(weights.values(),
                                    [&](const Values& at) { return loss(gate_up.values(), at); }),
                 {1e-6, 1e-6}, "dweights");
  }
}

TEST_P(ExpertRowsTest, every_order_of_threads_gives_a_units_bits) {
  Context context = test_context(GetParam(), 2);
  expect_same_bits([&] {
    Unit unit(context, GluGate::kSilu, DType::kBF16, 72);
    unit.run(context);
    TestTensor y(DType::kBF16, {90, 72});
    combine_rows(context, y, unit.h, unit.table.slot_row);
    return unit.h.bits() + unit.dgate_up.bits() + unit.dweights.bits() + y.bits();
  });
}

TEST_P(ExpertRowsTest, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  Table table = usual_table();
  const auto refused = [&](const std::function<void(ExpertRows&)>& spoil, const char* message) {
    ExpertRows args{table.begins, table.row_slot, table.slot_row,
                    table.chosen, table.place,    table.sources};
    spoil(args);
    expect_refused([&] { expert_rows(context, args); }, message);
  };
  refused([&](ExpertRows& a) { a.begins = table.begins.view().rows(0, 24); },
          "expert_rows.begins: expected one more");
  refused([&](ExpertRows& a) { a.slot_row_Tk = table.slot_row.view().rows(0, 80); },
          "expert_rows.slot_row: expected [90, 3] int32");
  refused([&](ExpertRows& a) { a.sources = table.sources.view().rows(0, 1); },
          "expert_rows.sources: expected two");
  table.make(context);
  TestTensor x(DType::kF32, {90, 4}), rows(DType::kF32, {270, 4}), half(DType::kBF16, {90, 4});
  expect_refused([&] { gather_rows(context, rows, x, table.begins, table.begins, 3); },
                 "gather_rows.row_slot: expected [270] int32");
  expect_refused([&] { gather_rows(context, rows, half, table.row_slot, table.begins, 3); },
                 "gather_rows.x: expected [90, 4] fp32");
  expect_refused([&] { combine_rows(context, half, rows, table.slot_row); },
                 "combine_rows.rows: expected [270, 4] bf16");
  expect_refused([&] { combine_rows(context, rows.view().rows(1, 90), rows, table.slot_row); },
                 "combine_rows.y: shares memory with rows");
  TestTensor h(DType::kF32, {270, 2}), weights(DType::kF32, {270});
  WeightedGlu unit{GluGate::kSilu, rows, weights, {}, {}};
  weighted_glu_forward(context, h, unit);
  unit.begins = table.begins;
  expect_refused([&] { weighted_glu_forward(context, h, unit); },
                 "weighted_swiglu_forward.begins: expected with row_slot");
  unit = {GluGate::kGelu, rows, weights.view().rows(0, 90), {}, {}};
  expect_refused([&] { weighted_glu_forward(context, h, unit); },
                 "weighted_geglu_forward.weights: expected [270] fp32");
}

TEST_P(ExpertRowsTest, values_that_a_cpu_reads_are_refused) {
  Context context = test_context(GetParam());
  if (context.on_gpu()) return;
  const auto refused = [&](const Values& place, const Values& sources, std::int64_t most,
                           const char* message) {
    Table table(random_choice(20, 2, 3), place, sources, 2, most);
    expect_refused([&] { table.make(context); }, message);
  };
  refused({0, 1}, {0, 20}, 40, "expert_rows.chosen[");
  refused({0, 2, 1}, {0, 20}, 40, "expert_rows.place: names an expert beyond begins");
  refused({0, 1, -1}, {1, 20}, 40, "expert_rows.sources: the first token is not 0");
  refused({0, 1, -1}, {0, 20, 10}, 40, "expert_rows.sources: descends");
  refused({0, 1, -1}, {0, 21}, 40, "expert_rows.sources: has more tokens than chosen");
  refused({0, 1, -1}, {0, 20}, 19, "expert_rows.begins: has more rows than there is room for");
}

}  // namespace
}  // namespace trireme
