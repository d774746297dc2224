#include "kernels/adafactor/adafactor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/math.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class Adafactor : public OpTest {};
TRIREME_FOR_ALL_ISAS(Adafactor);

constexpr double kEps = std::numeric_limits<float>::epsilon();

/// What a rank has of a matrix or a vector, and where lines are joined with others'.
struct Part {
  TestTensor parameter, gradient, copy, variance, row_var, col_var, row_largest, col_largest,
      row_sums, col_sums, words, scalars;
  std::int64_t whole_rows, whole_columns;

  Part(Shape shape, std::uint64_t seed, double scale = 0.1, DType copied = DType::kBF16)
      : parameter(TestTensor::random(DType::kF32, shape, seed)),
        gradient(TestTensor::random(DType::kF32, shape, seed + 50, scale)),
        copy(copied, shape),
        variance(DType::kF32, {shape[0]}),
        row_var(DType::kF32, {shape[0]}),
        col_var(DType::kF32, {shape[shape.rank() - 1]}),
        row_largest(DType::kI32, {shape[0]}),
        col_largest(DType::kI32, {shape[shape.rank() - 1]}),
        row_sums(DType::kF64, {shape[0]}),
        col_sums(DType::kF64, {shape[shape.rank() - 1]}),
        words(DType::kF64, {ExactSum::kWords}),
        scalars(DType::kF32, {3}),
        whole_rows(shape[0]),
        whole_columns(shape[shape.rank() - 1]) {}

  [[nodiscard]] bool vector() const { return parameter.shape().rank() == 1; }
  [[nodiscard]] AdafactorTensor tensor() {
    AdafactorTensor tensor{parameter, copy, gradient, {}, {}, {}, {}, words, scalars};
    if (vector()) {
      tensor.variance = variance;
    } else {
      tensor.rows = {row_var, row_largest, row_sums, whole_columns};
      tensor.columns = {col_var, col_largest, col_sums, whole_rows};
    }
    return tensor;
  }
  /// Of what is found; the words are taken.
  [[nodiscard]] ExactSum take_words() {
    test_device::synchronize();
    ExactSum sum;
    const std::string bits = words.bits();
    std::memcpy(sum.words().data(), bits.data(), bits.size());
    words = TestTensor(DType::kF64, {ExactSum::kWords});
    return sum;
  }
  [[nodiscard]] std::string bits() const {
    return parameter.bits() + copy.bits() + variance.bits() + row_var.bits() + col_var.bits();
  }
};

struct Rates {
  double lr = 1e-2, decay = 0.1;
  float scale = 0.5F;
};

void set(TestTensor& scalars, double mean, double keep, double step) {
  scalars.set(0, mean);
  scalars.set(1, keep);
  scalars.set(2, step);
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// The t-th update of parts, each of which is whole, with what the host does between.
void update(Context& context, std::vector<Part>& parts, int t, const Rates& rates = {}) {
  std::vector<AdafactorTensor> tensors;
  for (Part& part : parts) {
    for (TestTensor* each :
         {&part.row_largest, &part.col_largest, &part.row_sums, &part.col_sums, &part.words})
      *each = TestTensor(each->dtype(), each->shape());
    tensors.push_back(part.tensor());
  }
  const double share = std::pow(t, -0.8);
  adafactor_largest(context, tensors);
  adafactor_sums(context, tensors);
  std::vector<double> weights, elements;
  for (Part& part : parts) {
    elements.push_back(static_cast<double>(part.parameter.shape().count()));
    weights.push_back(part.take_words().value());
  }
  for (std::size_t i = 0; i < parts.size(); ++i) tensors[i] = parts[i].tensor();
  adafactor_lines(context, tensors, {rates.scale, share});
  test_device::synchronize();
  for (Part& part : parts) {
    const double mean = part.vector() ? 1 : mean_of(part.row_sums.values());
    set(part.scalars, std::max(mean, kEps), 0, 0);
  }
  adafactor_squares(context, tensors, {rates.scale, share});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double alpha = std::max(1e-3, std::sqrt(weights[i] / elements[i])) *
                         std::min(rates.lr, 1 / std::sqrt(t)),
                 rms = std::sqrt(parts[i].take_words().value() / elements[i]);
    set(parts[i].scalars, parts[i].scalars.values()[0], 1 - rates.lr * rates.decay,
        alpha / std::max(1.0, rms));
    tensors[i] = parts[i].tensor();
  }
  adafactor_update(context, tensors, rates.scale);
  test_device::synchronize();
}

/// torch.optim.Adafactor in double.
struct Reference {
  std::vector<double> w, rows, columns, variance;
  std::int64_t row_count, column_count;
  bool vector;

  explicit Reference(const Part& part)
      : w(part.parameter.values()),
        rows(part.row_var.values()),
        columns(part.col_var.values()),
        variance(part.variance.values()),
        row_count(part.vector() ? 1 : part.whole_rows),
        column_count(part.whole_columns),
        vector(part.vector()) {}

  void update(const std::vector<double>& gradient, int t, const Rates& rates) {
    const double share = std::pow(t, -0.8);
    std::vector<double> g, mean_rows(rows.size()), mean_columns(columns.size());
    for (const double each : gradient) g.push_back(each * rates.scale);
    double weights = 0, steps = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const auto r = i / static_cast<std::size_t>(column_count),
                 c = i % static_cast<std::size_t>(column_count);
      weights += w[i] * w[i];
      mean_columns[c] += g[i] * g[i] / static_cast<double>(row_count);
      if (vector) {
        variance[i] += share * (g[i] * g[i] - variance[i]);
      } else {
        mean_rows[r] += g[i] * g[i] / static_cast<double>(column_count);
      }
    }
    for (std::size_t r = 0; r < rows.size(); ++r) rows[r] += share * (mean_rows[r] - rows[r]);
    for (std::size_t c = 0; c < columns.size(); ++c)
      columns[c] += share * (mean_columns[c] - columns[c]);
    const double mean = std::max(mean_of(rows), kEps);
    std::vector<double> u;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const auto r = i / static_cast<std::size_t>(column_count),
                 c = i % static_cast<std::size_t>(column_count);
      const double v = vector ? variance[i] : rows[r] * columns[c] / mean;
      u.push_back(g[i] / std::sqrt(std::max(v, kEps * kEps)));
      steps += u.back() * u.back();
    }
    const auto count = static_cast<double>(w.size());
    const double alpha =
        std::max(1e-3, std::sqrt(weights / count)) * std::min(rates.lr, 1 / std::sqrt(t));
    for (std::size_t i = 0; i < w.size(); ++i) {
      w[i] -= rates.lr * rates.decay * w[i];
      w[i] -= alpha / std::max(1.0, std::sqrt(steps / count)) * u[i];
    }
  }
};

TEST_P(Adafactor, five_steps_equal_the_reference) {
  for (const double scale : {0.1, 1e-5, 1e4}) {  // 1e-5: below eps
    Context context = test_context(GetParam(), 2);
    std::vector<Part> parts;
    parts.emplace_back(Shape{67, 301}, 1);
    parts.emplace_back(Shape{1003}, 2);
    parts.emplace_back(Shape{1, 5}, 3);
    std::vector<Reference> expected(parts.begin(), parts.end());
    for (int t = 1; t <= 5; ++t) {
      const Rates rates{t < 3 ? 1.0 : 1e-2, 0.1, 0.5F};
      for (std::size_t i = 0; i < parts.size(); ++i) {
        parts[i].gradient = TestTensor::random(DType::kF32, parts[i].parameter.shape(),
                                               static_cast<std::uint64_t>(t) * 10 + i, scale);
      }
      update(context, parts, t, rates);
      for (std::size_t i = 0; i < parts.size(); ++i)
        expected[i].update(parts[i].gradient.values(), t, rates);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      expect_close(parts[i].parameter.values(), expected[i].w, {1e-5, 1e-5}, "parameter");
      if (parts[i].vector()) {
        expect_close(parts[i].variance.values(), expected[i].variance, {1e-5, 1e-6}, "variance");
        continue;
      }
      expect_close(parts[i].row_var.values(), expected[i].rows, {1e-5, 1e-6}, "row_var");
      expect_close(parts[i].col_var.values(), expected[i].columns, {1e-5, 1e-6}, "col_var");
    }
  }
}

std::string updated(Context& context) {
  std::vector<Part> parts;
  for (std::uint64_t i = 0; i < 9; ++i) {
    const auto n = static_cast<std::int64_t>(i);
    parts.emplace_back(Shape{n * 17 % 50 + 1, n * 131 % 600 + 1}, i, n == 3 ? 1e6 : 0.1);
    parts.emplace_back(Shape{n * 301 + 1}, i + 20);
  }
  for (int t = 1; t <= 2; ++t) update(context, parts, t);
  std::string bits;
  for (const Part& part : parts) bits += part.bits();
  return bits;
}

TEST_P(Adafactor, a_device_has_the_bits_of_the_cpu_on_any_number_of_threads) {
  Context cpu({DeviceKind::kCpu, 0}, 1, GetParam());
  const std::string expected = updated(cpu);
  for (const int threads : {1, 2, 3}) {
    Context context = test_context(GetParam(), threads);
    EXPECT_TRUE(updated(context) == expected) << threads;
  }
}

TEST_P(Adafactor, the_order_of_threads_changes_no_bit) {
  expect_same_bits([&] {
    Context context = test_context(GetParam());
    std::vector<Part> parts;
    parts.emplace_back(Shape{70, 300}, 1);
    update(context, parts, 1);
    return parts.front().bits();
  });
}

/// Rows or columns [begin, begin + size) of a matrix, by itself.
TestTensor cut(const TestTensor& whole, int dim, Slice slice) {
  const std::vector<double> values = whole.values();
  Shape shape = whole.shape();
  const std::int64_t columns = shape[1];
  shape.set(dim, slice.size);
  std::vector<double> part;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
    const std::int64_t at = dim == 0 ? i / columns : i % columns;
    if (at >= slice.begin && at < slice.begin + slice.size)
      part.push_back(values[static_cast<std::size_t>(i)]);
  }
  return TestTensor::of(whole.dtype(), shape, part);
}

/// Gradients of sizes that differ by lines, as those of words do.
TestTensor uneven(Shape shape) {
  TestTensor gradient = TestTensor::random(DType::kF32, shape, 9);
  for (std::int64_t i = 0; i < shape.count(); ++i) {
    const std::int64_t r = i / shape[1], c = i % shape[1];
    gradient.set(i, gradient.values()[static_cast<std::size_t>(i)] *
                        std::ldexp(1.0, static_cast<int>(r % 7 * 6 - c % 5 * 9)));
  }
  return gradient;
}

TEST_P(Adafactor, sums_of_parts_are_those_of_the_whole_in_all_bits) {
  Context context = test_context(GetParam(), 2);
  const Shape shape{33, 70};
  for (const double weight : {0.3, 100.0}) {  // 100: squares beyond what adds up exactly
    Part whole(shape, 1);
    whole.gradient = uneven(shape);
    scale(context, whole.parameter, static_cast<float>(weight));
    const AdafactorTensor tensor = whole.tensor();
    adafactor_largest(context, {&tensor, 1});
    adafactor_sums(context, {&tensor, 1});
    const double squares = whole.take_words().value();
    for (const int dim : {0, 1}) {
      std::vector<Part> parts;
      for (const Slice slice : {Slice{0, 5}, Slice{5, 11}, Slice{16, shape[dim] - 16}}) {
        Shape cut_shape = shape;
        cut_shape.set(dim, slice.size);
        Part& part = parts.emplace_back(cut_shape, 1);
        part.parameter = cut(whole.parameter, dim, slice);
        part.gradient = cut(whole.gradient, dim, slice);
        (dim == 0 ? part.col_largest : part.row_largest) =
            dim == 0 ? whole.col_largest : whole.row_largest;
        part.whole_rows = shape[0];
        part.whole_columns = shape[1];
      }
      std::vector<double> crossed(static_cast<std::size_t>(shape[1 - dim])), own;
      ExactSum all;
      for (Part& part : parts) {
        const AdafactorTensor of_part = part.tensor();
        adafactor_largest(context, {&of_part, 1});
        adafactor_sums(context, {&of_part, 1});
        all.add(part.take_words());
        const std::vector<double> mine = (dim == 0 ? part.row_sums : part.col_sums).values(),
                                  shared = (dim == 0 ? part.col_sums : part.row_sums).values();
        own.insert(own.end(), mine.begin(), mine.end());
        for (std::size_t i = 0; i < shared.size(); ++i) crossed[i] += shared[i];
      }
      EXPECT_EQ(own, (dim == 0 ? whole.row_sums : whole.col_sums).values());
      EXPECT_EQ(crossed, (dim == 0 ? whole.col_sums : whole.row_sums).values());
      EXPECT_EQ(all.value(), squares);
    }
  }
}

TEST_P(Adafactor, squares_of_parts_are_those_of_the_whole_in_all_bits) {
  Context context = test_context(GetParam(), 2);
  const Shape shape{33, 70};
  for (const float size : {1.0F, 1e6F}) {  // 1e6: squares beyond what adds up exactly
    Part whole(shape, 1);
    for (std::int64_t r = 0; r < shape[0]; ++r) whole.row_var.set(r, 0.5 + static_cast<double>(r));
    for (std::int64_t c = 0; c < shape[1]; ++c) whole.col_var.set(c, 0.25 + static_cast<double>(c));
    set(whole.scalars, 3, 1, 1);
    const AdafactorTensor tensor = whole.tensor();
    adafactor_squares(context, {&tensor, 1}, {size, 1});
    const double squares = whole.take_words().value();
    EXPECT_GT(squares, 0);
    ExactSum all;
    for (const Slice rows : {Slice{0, 5}, Slice{5, 28}}) {
      Part part({rows.size, shape[1]}, 1);
      part.gradient = cut(whole.gradient, 0, rows);
      for (std::int64_t r = 0; r < rows.size; ++r)
        part.row_var.set(r, 0.5 + static_cast<double>(rows.begin + r));
      part.col_var = whole.col_var;
      part.scalars = whole.scalars;
      const AdafactorTensor of_part = part.tensor();
      adafactor_squares(context, {&of_part, 1}, {size, 1});
      all.add(part.take_words());
    }
    EXPECT_EQ(all.value(), squares);
  }
}

TEST_P(Adafactor, a_gradient_in_rows_has_the_bits_of_the_whole) {
  if (test_context(GetParam()).on_gpu()) GTEST_SKIP() << "on a CPU only";
  Context context = test_context(GetParam(), 2);
  constexpr std::int64_t kRows = 7, kColumns = 13;
  std::vector<Part> whole;
  whole.emplace_back(Shape{kRows, kColumns}, 1);
  TestTensor slots = TestTensor::of(DType::kI32, {kRows}, {3, 2, 3, 0, 1, 3, 3});
  TestTensor rows(DType::kF32, {4, kColumns});
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    const auto slot = static_cast<std::int64_t>(slots.values()[static_cast<std::size_t>(i / 13)]);
    const double g = slot == 3 ? 0 : static_cast<double>(i % 19 - 9) / 8;
    whole.front().gradient.set(i, g);
    rows.set(slot * kColumns + i % kColumns, g);
  }
  Part apart = whole.front();
  const auto run = [&](Part& part, bool in_rows) {
    AdafactorTensor tensor = part.tensor();
    if (in_rows) tensor.gradient = rows;
    if (in_rows) tensor.gradient_slots = slots;
    adafactor_largest(context, {&tensor, 1});
    adafactor_sums(context, {&tensor, 1});
    adafactor_lines(context, {&tensor, 1}, {1, 1});
    set(part.scalars, 0.1, 0.99, 0.01);
    adafactor_squares(context, {&tensor, 1}, {1, 1});
    adafactor_update(context, {&tensor, 1}, 1);
    return part.bits() + part.words.bits();
  };
  EXPECT_EQ(run(apart, true), run(whole.front(), false));
}

TEST_P(Adafactor, what_is_not_finite_is_not_hidden) {
  Context context = test_context(GetParam());
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    std::vector<Part> parts;
    parts.emplace_back(Shape{3, 5}, 1);
    parts.emplace_back(Shape{5}, 2);
    for (Part& part : parts) part.gradient.set(4, bad);
    update(context, parts, 1);
    for (const Part& part : parts) EXPECT_TRUE(std::isnan(part.parameter.values()[4]));
  }
}

TEST_P(Adafactor, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  Part part({2, 3}, 1);
  TestTensor five(DType::kF32, {5});
  AdafactorTensor bad = part.tensor();
  bad.rows.variance = five.view();
  expect_refused(
      [&] {
        adafactor_lines(context, {&bad, 1}, {});
      },
      "adafactor_lines.lines.variance: expected [2] fp32, found [5] fp32");
  bad = part.tensor();
  bad.variance = five.view();
  expect_refused([&] { adafactor_update(context, {&bad, 1}, 1); }, "adafactor_update.variance");
  bad = part.tensor();
  bad.gradient = five.view();
  expect_refused(
      [&] {
        adafactor_largest(context, {&bad, 1});
      },
      "adafactor_largest.gradient: expected [2, 3] fp32, found [5] fp32");
}

}  // namespace
}  // namespace trireme
