#include "kernels/update/update_8bit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/math.h"
#include "kernels/support/op_test.h"
#include "kernels/update_8bit_reference.h"
#include "kernels/update_reference.h"
#include "support/golden.h"

namespace trireme {
namespace {

class Update8bit : public OpTest {};
TRIREME_FOR_ALL_ISAS(Update8bit);

TestTensor of_f32(const std::vector<double>& x) {
  return TestTensor::of(DType::kF32, {static_cast<std::int64_t>(x.size())}, x);
}

/// A moment of `count` elements, and room for the maxima of its blocks.
struct Moment {
  TestTensor codes, absmax, next;
  explicit Moment(std::int64_t count)
      : codes(DType::kU8, {count}),
        absmax(DType::kF32, {ceil_div(count, kMomentBlock)}),
        next(DType::kI32, {ceil_div(count, kMomentBlock)}) {}
  CodedMoment view() { return {codes, absmax, {}}; }
  CodedMoment with_next() { return {codes, absmax, next}; }
  [[nodiscard]] reference::Moments values() const { return {codes.values(), absmax.values()}; }
  [[nodiscard]] std::string bits() const { return codes.bits() + absmax.bits(); }
  /// What follows an update of parts.
  void take_next() {
    TestTensor taken(DType::kF32, absmax.shape());
    const std::string bits = next.bits();
    std::copy(bits.begin(), bits.end(), reinterpret_cast<char*>(taken.view().data));
    test_device::initialise(taken.view().data, bits.size());
    absmax = taken;
    next = TestTensor(DType::kI32, next.shape());
  }
};

/// One parameter with its state.
struct State {
  TestTensor parameter, gradient, copy;
  Moment exp_avg, exp_avg_sq;

  State(const Shape& shape, std::uint64_t seed)
      : parameter(TestTensor::random(DType::kF32, shape, seed)),
        gradient(TestTensor::random(DType::kF32, shape, seed + 100, 0.1)),
        copy(DType::kBF16, shape),
        exp_avg(shape.count()),
        exp_avg_sq(shape.count()) {}
  CodedTensor tensor(bool of_lion = false) {
    CodedTensor tensor;
    tensor.parameter = parameter;
    tensor.copy = copy;
    tensor.exp_avg = exp_avg.view();
    if (!of_lion) tensor.exp_avg_sq = exp_avg_sq.view();
    tensor.gradient = gradient;
    tensor.weight_decay = 0.1;
    return tensor;
  }
  [[nodiscard]] std::string bits() const {
    return parameter.bits() + copy.bits() + exp_avg.bits() + exp_avg_sq.bits();
  }
  void next_gradient(int t) {
    gradient =
        TestTensor::random(DType::kF32, gradient.shape(), static_cast<std::uint64_t>(t), 0.1);
  }
};

AdamWScalars scalars_at(int t, const AdamWConstants& constants = {}) {
  return {1e-2 / t, 1 - std::pow(constants.beta1, t), 1 - std::pow(constants.beta2, t), 0.5F};
}

/// Moments become gradients, and their squares.
void store_moments(Context& context, State& state) {
  const CodedTensor tensor = state.tensor();
  adamw_8bit_update(context, {&tensor, 1}, {0, 0, 1}, {0, 1, 1, 1});
}

double share_of_equal(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1 : 0;
  return equal / static_cast<double>(a.size());
}

TEST(MomentCodes, the_maps_are_those_of_bitsandbytes) {
  for (const bool of_signed : {true, false}) {
    const MomentCodes& codes = of_signed ? moment_tables().of_signed : moment_tables().of_unsigned;
    const std::vector<float>& map = reference::moment_map(of_signed);
    EXPECT_TRUE(std::equal(map.begin(), map.end(), codes.value)) << of_signed;
  }
}

TEST_P(Update8bit, every_code_comes_back_as_itself) {
  Context context = test_context(GetParam());
  // 1 of each block is its largest magnitude, so that every value of the map is.
  const std::vector<float>& map = reference::moment_map(true);
  State state({256}, 1);
  for (std::size_t code = 0; code < 256; ++code)
    state.gradient.set(static_cast<std::int64_t>(code), static_cast<double>(map[code]) * 0.5);
  store_moments(context, state);
  for (int code = 0; code < 256; ++code)
    EXPECT_EQ(state.exp_avg.codes.values()[static_cast<std::size_t>(code)], code);
  EXPECT_EQ(state.exp_avg.absmax.values(), std::vector<double>{0.5});
  // Once more, without a gradient and without decay: the same codes.
  const std::string before = state.exp_avg.bits();
  state.gradient = TestTensor(DType::kF32, {256});
  const CodedTensor tensor = state.tensor();
  adamw_8bit_update(context, {&tensor, 1}, {1, 1, 1}, {0, 1, 1, 1});
  EXPECT_EQ(state.exp_avg.bits(), before);
}

TEST_P(Update8bit, a_code_is_that_of_the_nearest_value) {
  Context context = test_context(GetParam());
  const std::vector<float>& map = reference::moment_map(true);
  std::vector<double> x;
  // Midpoints and their neighbours; magnitudes of 16 decades; zeros; what is too small to divide
  // by.
  for (std::size_t code = 0; code + 1 < map.size(); ++code) {
    const float middle = (map[code] + map[code + 1]) / 2;
    for (const float v : {std::nextafter(middle, -2.0F), middle, std::nextafter(middle, 2.0F)})
      x.push_back(v);
  }
  while (x.size() % 256 != 0) x.push_back(1);
  for (std::size_t at = 0; at < x.size(); at += 256) x[at] = 1;
  const std::vector<double> noise = TestTensor::random(DType::kF32, {4096}, 5).values();
  for (std::size_t i = 0; i < noise.size(); ++i)
    x.push_back(noise[i] * std::pow(10, -static_cast<double>(i % 16)));
  for (int i = 0; i < 256; ++i) x.push_back(i % 2 == 0 ? 0.0 : -0.0);
  for (int i = 0; i < 77; ++i) x.push_back(noise[static_cast<std::size_t>(i)] * 1e-42);
  State state({static_cast<std::int64_t>(x.size())}, 1);
  state.gradient = of_f32(x);
  store_moments(context, state);
  const reference::Moments expected = reference::encode_moments(state.gradient.values(), true);
  EXPECT_EQ(state.exp_avg.codes.values(), expected.codes);
  EXPECT_EQ(state.exp_avg.absmax.values(), expected.absmax);
  std::vector<double> squares;
  for (const double g : state.gradient.values())
    squares.push_back(static_cast<float>(g) * static_cast<float>(g));
  const reference::Moments of_squares = reference::encode_moments(squares, false);
  EXPECT_EQ(state.exp_avg_sq.codes.values(), of_squares.codes);
  EXPECT_EQ(state.exp_avg_sq.absmax.values(), of_squares.absmax);
}

TEST_P(Update8bit, equals_bitsandbytes) {
  Context context = test_context(GetParam(), 2);
  const GoldenTensors golden = read_tensors(golden_path("moments/tensors.safetensors"));
  const Json cases = read_golden_json("moments/cases.json");
  int count = 0;
  for (const auto& [name, section] : cases.as_object()) {
    SCOPED_TRACE(name);
    ++count;
    const auto of = [&, name = name](const std::string& what) -> const GoldenTensor& {
      return golden.at(name + "." + what);
    };
    const bool lion = section.find("kind")->as_string() == "lion",
               nearest = name.ends_with("nearest");
    const auto number = [&, section = section](const char* key) {
      return section.find(key)->as_double();
    };
    const double beta1 = section.find("betas")->as_array()[0].as_double(),
                 beta2 = section.find("betas")->as_array()[1].as_double();
    State state({37, 113}, 1);
    state.parameter = TestTensor::of(DType::kF32, {37, 113}, of("parameter").values);
    for (int t = 1; t <= 3; ++t) {
      state.gradient =
          TestTensor::of(DType::kF32, {37, 113}, of("gradient." + std::to_string(t)).values);
      CodedTensor tensor = state.tensor(lion);
      tensor.weight_decay = number("weight_decay");
      if (lion) {
        lion_8bit_update(context, {&tensor, 1}, {beta1, beta2}, number("lr"), 1);
      } else {
        adamw_8bit_update(context, {&tensor, 1}, {beta1, beta2, number("eps")},
                          {number("lr"), 1 - std::pow(beta1, t), 1 - std::pow(beta2, t), 1});
      }
    }
    const double least = nearest ? 0.9995 : 0.98;
    EXPECT_GE(share_of_equal(state.exp_avg.codes.values(), of("exp_avg.codes").values), least);
    expect_close(state.exp_avg.absmax.values(), of("exp_avg.absmax").values, {1e-2}, "absmax");
    double moved = 0, apart = 0;
    const std::vector<double> found = state.parameter.values();
    for (std::size_t i = 0; i < found.size(); ++i) {
      moved += std::pow(of("final").values[i] - of("parameter").values[i], 2);
      apart += std::pow(of("final").values[i] - found[i], 2);
    }
    EXPECT_LE(std::sqrt(apart / moved), nearest ? 2e-4 : 1e-2);
    if (lion) continue;
    EXPECT_GE(share_of_equal(state.exp_avg_sq.codes.values(), of("exp_avg_sq.codes").values),
              least);
    expect_close(state.exp_avg_sq.absmax.values(), of("exp_avg_sq.absmax").values, {1e-2},
                 "absmax");
  }
  EXPECT_EQ(count, 4);
}

TEST_P(Update8bit, ten_steps_equal_the_formula) {
  for (const bool lion : {false, true}) {
    for (const int threads : {1, 3}) {
      Context context = test_context(GetParam(), threads);
      const AdamWConstants constants;
      State state({3, 1003}, 1);
      reference::AdamWState expected{state.parameter.values(), state.exp_avg.codes.values(),
                                     state.exp_avg_sq.codes.values()};
      for (int t = 1; t <= 10; ++t) {
        state.next_gradient(t);
        expected = {state.parameter.values(),
                    reference::decode_moments(state.exp_avg.values(), true),
                    reference::decode_moments(state.exp_avg_sq.values(), false)};
        CodedTensor tensor = state.tensor(lion);
        tensor.lr_scale = 0.3;
        if (lion) {
          lion_8bit_update(context, {&tensor, 1}, {}, 1e-2, 0.5F);
          reference::lion_update(expected, state.gradient.values(), {0.1, 0.3}, {}, 1e-2, 0.5);
        } else {
          adamw_8bit_update(context, {&tensor, 1}, constants, scalars_at(t));
          reference::adamw_update(expected, state.gradient.values(), {0.1, 0.3}, constants,
                                  scalars_at(t));
        }
        expect_close(state.parameter.values(), expected.parameter, {1e-6, 1e-6}, "parameter");
        const reference::Moments m = reference::encode_moments(expected.exp_avg, true);
        EXPECT_GE(share_of_equal(state.exp_avg.codes.values(), m.codes), 0.999);
        if (lion) continue;
        const reference::Moments v = reference::encode_moments(expected.exp_avg_sq, false);
        EXPECT_GE(share_of_equal(state.exp_avg_sq.codes.values(), v.codes), 0.999);
      }
    }
  }
}

/// Two updates of tensors of many sizes, each with a copy or without.
std::string updated(Context& context, bool lion, bool together) {
  const std::vector<std::int64_t> counts = {1, 255, 256, 0, 257, 9001, 40000, 512};
  std::vector<State> states;
  for (std::size_t i = 0; i < counts.size(); ++i) states.emplace_back(Shape{counts[i]}, i);
  for (int t = 1; t <= 2; ++t) {
    std::vector<CodedTensor> tensors;
    for (std::size_t i = 0; i < states.size(); ++i) {
      tensors.push_back(states[i].tensor(lion));
      if (i % 3 == 0) tensors.back().copy = {};
    }
    const auto update = [&](std::span<const CodedTensor> some) {
      lion ? lion_8bit_update(context, some, {}, 1e-2, 0.5F)
           : adamw_8bit_update(context, some, {}, scalars_at(t));
    };
    if (together) {
      update(tensors);
    } else {
      for (const CodedTensor& each : tensors) update({&each, 1});
    }
  }
  std::string bits;
  for (const State& state : states) bits += state.bits();
  return bits;
}

TEST_P(Update8bit, a_device_has_the_bits_of_the_cpu_on_any_number_of_threads) {
  for (const bool lion : {false, true}) {
    Context cpu({DeviceKind::kCpu, 0}, 1, GetParam());
    const std::string expected = updated(cpu, lion, false);
    for (const int threads : {1, 2, 3, 7}) {
      Context context = test_context(GetParam(), threads);
      EXPECT_TRUE(updated(context, lion, true) == expected) << threads;
    }
  }
}

TEST_P(Update8bit, the_order_of_threads_changes_no_bit) {
  expect_same_bits([&] {
    Context context = test_context(GetParam(), 2);
    return updated(context, false, true);
  });
}

TEST_P(Update8bit, operands_may_begin_apart_from_each_other) {
  Context context = test_context(GetParam());
  State state({1003}, 5), apart = state;
  apart.copy = TestTensor(DType::kBF16, {1003}, 1);
  apart.exp_avg.codes = TestTensor(DType::kU8, {1003}, 3);
  for (State* each : {&state, &apart}) {
    const CodedTensor tensor = each->tensor();
    adamw_8bit_update(context, {&tensor, 1}, {}, scalars_at(1));
  }
  EXPECT_EQ(apart.bits(), state.bits());
}

/// Of a matrix [R, C]: rows and columns of a rank.
struct Cut {
  Slice rows, columns;
};

/// The rank's part of a tensor, and its place in the whole.
struct RankPart {
  State state;
  std::vector<MomentPart> parts;
};

TestTensor box_of(const TestTensor& whole, const std::vector<Cut>& cuts, std::int64_t columns) {
  std::vector<double> values;
  const std::vector<double> all = whole.values();
  const Slice rows = cuts.front().rows;
  std::int64_t width = 0;
  for (const Cut& cut : cuts) width += cut.columns.size;
  for (std::int64_t r = rows.begin; r < rows.begin + rows.size; ++r)
    for (const Cut& cut : cuts)
      for (std::int64_t c = cut.columns.begin; c < cut.columns.begin + cut.columns.size; ++c)
        values.push_back(all[static_cast<std::size_t>(r * columns + c)]);
  return TestTensor::of(whole.dtype(), {rows.size, width}, values);
}

/// Cuts of one rank side by side, the rows alike.
RankPart part_of(State& whole, const std::vector<Cut>& cuts, std::int64_t columns) {
  RankPart part{whole, {}};
  part.state.parameter = box_of(whole.parameter, cuts, columns);
  part.state.gradient = box_of(whole.gradient, cuts, columns);
  part.state.copy = box_of(whole.copy, cuts, columns);
  part.state.exp_avg.codes = box_of(whole.exp_avg.codes, cuts, columns);
  part.state.exp_avg_sq.codes = box_of(whole.exp_avg_sq.codes, cuts, columns);
  std::int64_t at = 0;
  for (const Cut& cut : cuts) {
    part.parts.push_back({{0, cut.rows.size},
                          {at, cut.columns.size},
                          cut.rows.begin * columns + cut.columns.begin,
                          columns});
    at += cut.columns.size;
  }
  return part;
}

/// Updates a tensor by ranks that have parts of it, and says what all of them have at the end.
void expect_parts_have_the_bits_of_the_whole(Context& context, const Shape& shape, bool lion,
                                             const std::vector<std::vector<Cut>>& ranks) {
  const std::int64_t columns = shape[1];
  State whole(shape, 7);
  for (int t = 1; t <= 2; ++t) {
    whole.next_gradient(t);
    std::vector<RankPart> parts;
    for (const auto& cuts : ranks) parts.push_back(part_of(whole, cuts, columns));
    Moment next_m(shape.count()), next_v(shape.count());
    const auto run = [&](bool maxima) {
      for (RankPart& part : parts) {
        CodedTensor tensor = part.state.tensor(lion);
        tensor.parts = part.parts;
        tensor.exp_avg.absmax = whole.exp_avg.absmax;
        tensor.exp_avg.next = next_m.next;
        if (!lion) tensor.exp_avg_sq.absmax = whole.exp_avg_sq.absmax;
        if (!lion) tensor.exp_avg_sq.next = next_v.next;
        const auto call = maxima ? adamw_8bit_maxima : adamw_8bit_update;
        const auto call_lion = maxima ? lion_8bit_maxima : lion_8bit_update;
        lion ? call_lion(context, {&tensor, 1}, {}, 1e-2, 0.5F)
             : call(context, {&tensor, 1}, {}, scalars_at(t));
      }
    };
    const std::string before = whole.bits();
    run(true);
    run(false);
    EXPECT_EQ(whole.bits(), before) << "magnitudes are the caller's";
    const CodedTensor tensor = whole.tensor(lion);
    lion ? lion_8bit_update(context, {&tensor, 1}, {}, 1e-2, 0.5F)
         : adamw_8bit_update(context, {&tensor, 1}, {}, scalars_at(t));
    EXPECT_EQ(next_m.next.bits(), whole.exp_avg.absmax.bits());
    if (!lion) {
      EXPECT_EQ(next_v.next.bits(), whole.exp_avg_sq.absmax.bits());
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const State& part = parts[i].state;
      EXPECT_EQ(part.parameter.bits(), box_of(whole.parameter, ranks[i], columns).bits());
      EXPECT_EQ(part.copy.bits(), box_of(whole.copy, ranks[i], columns).bits());
      EXPECT_EQ(part.exp_avg.codes.bits(), box_of(whole.exp_avg.codes, ranks[i], columns).bits());
      EXPECT_EQ(part.exp_avg_sq.codes.bits(),
                box_of(whole.exp_avg_sq.codes, ranks[i], columns).bits());
    }
  }
}

TEST_P(Update8bit, parts_have_the_bits_of_the_whole_tensor) {
  for (const bool lion : {false, true}) {
    for (const int threads : {1, 3}) {
      Context context = test_context(GetParam(), threads);
      const Slice rows{0, 29};
      // Rows; columns; columns of three segments; both; columns narrower than a vector.
      expect_parts_have_the_bits_of_the_whole(
          context, {29, 301}, lion,
          {{{{0, 10}, {0, 301}}}, {{{10, 1}, {0, 301}}}, {{{11, 18}, {0, 301}}}});
      expect_parts_have_the_bits_of_the_whole(
          context, {29, 700}, lion, {{{rows, {0, 300}}}, {{rows, {300, 399}}}, {{rows, {699, 1}}}});
      expect_parts_have_the_bits_of_the_whole(
          context, {29, 600}, lion,
          {{{rows, {0, 100}}, {rows, {200, 50}}, {rows, {300, 150}}},
           {{rows, {100, 100}}, {rows, {250, 50}}, {rows, {450, 150}}}});
      expect_parts_have_the_bits_of_the_whole(context, {29, 40}, lion,
                                              {{{{0, 15}, {0, 20}}},
                                               {{{15, 14}, {0, 20}}},
                                               {{{0, 15}, {20, 20}}},
                                               {{{15, 14}, {20, 20}}}});
      expect_parts_have_the_bits_of_the_whole(context, {29, 4}, lion,
                                              {{{rows, {0, 3}}}, {{rows, {3, 1}}}});
    }
  }
}

TEST_P(Update8bit, what_is_not_finite_shows_in_its_block_alone) {
  Context context = test_context(GetParam());
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::nan("")}) {
    State state({700}, 1);
    state.gradient.set(300, bad);
    store_moments(context, state);
    const std::vector<double> m = reference::decode_moments(state.exp_avg.values(), true),
                              v = reference::decode_moments(state.exp_avg_sq.values(), false);
    for (std::size_t i = 0; i < m.size(); ++i) {
      EXPECT_EQ(std::isfinite(m[i]), i / 256 != 1) << i;
      EXPECT_EQ(std::isfinite(v[i]), i / 256 != 1) << i;
    }
    // And in the parameters of the next step.
    state.gradient = TestTensor(DType::kF32, {700});
    const CodedTensor tensor = state.tensor();
    adamw_8bit_update(context, {&tensor, 1}, {0.9, 0.95, 1}, {1e-2, 1, 1, 1});
    const std::vector<double> p = state.parameter.values();
    for (std::size_t i = 0; i < p.size(); ++i)
      EXPECT_TRUE(std::isfinite(p[i]) || i / 256 == 1) << i;
    EXPECT_FALSE(std::isfinite(p[300]));
  }
}

TEST_P(Update8bit, a_gradient_in_rows_has_the_bits_of_the_whole) {
  if (test_context(GetParam()).on_gpu()) GTEST_SKIP() << "on a CPU only";
  for (const std::int64_t columns : {1, 13, 64, 700}) {
    Context context = test_context(GetParam(), 2);
    State whole({97, columns}, 5);
    TestTensor rows(DType::kF32, {4, columns}), slots(DType::kI32, {97});
    for (std::int64_t r = 0; r < 97; ++r) {
      const std::int64_t slot = r % 5 == 0 ? r % 3 : 3;
      slots.set(r, static_cast<double>(slot));
      for (std::int64_t c = 0; c < columns; ++c) {
        const double g = slot == 3 ? 0 : static_cast<double>((slot * columns + c) % 19 - 9) / 8;
        whole.gradient.set(r * columns + c, g);
        rows.set(slot * columns + c, g);
      }
    }
    State apart = whole;
    for (int t = 1; t <= 2; ++t) {
      const CodedTensor tensor = whole.tensor();
      CodedTensor in_rows = apart.tensor();
      in_rows.gradient = rows;
      in_rows.gradient_slots = slots;
      adamw_8bit_update(context, {&tensor, 1}, {}, scalars_at(t));
      adamw_8bit_update(context, {&in_rows, 1}, {}, scalars_at(t));
    }
    EXPECT_EQ(apart.bits(), whole.bits());
  }
}

TEST_P(Update8bit, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  State state({300}, 1);
  Moment small(256);
  const auto update = [&](const CodedTensor& tensor) {
    adamw_8bit_update(context, {&tensor, 1}, {}, scalars_at(1));
  };
  CodedTensor bad = state.tensor();
  bad.exp_avg.absmax = small.absmax;
  expect_refused([&] { update(bad); }, "adamw_8bit_update.exp_avg: expected [2] fp32");
  bad = state.tensor();
  bad.exp_avg_sq.codes = small.codes;
  expect_refused([&] { update(bad); }, "adamw_8bit_update.exp_avg_sq: expected [300]");
  bad = state.tensor();
  bad.exp_avg.next = state.exp_avg.next;
  expect_refused([&] { update(bad); }, "without parts");
  expect_refused(
      [&] {
        const CodedTensor tensor = state.tensor();
        lion_8bit_update(context, {&tensor, 1}, {}, 1e-3, 1);
      },
      "in Lion");
  const std::vector<MomentPart> outside = {{{0, 300}, {0, 1}, 300, 1}};
  bad = state.tensor();
  bad.exp_avg = state.exp_avg.with_next();
  bad.exp_avg_sq = state.exp_avg_sq.with_next();
  bad.parts = outside;
  expect_refused([&] { update(bad); }, "outside of the blocks");
}

}  // namespace
}  // namespace trireme
