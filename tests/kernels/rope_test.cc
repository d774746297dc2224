#include "kernels/rope/rope.h"

#include <cmath>
#include <numeric>

#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "kernels/rope_reference.h"
#include "kernels/support/op_test.h"
#include "kernels/support/rotation.h"

namespace trireme {
namespace {

class Rope : public OpTest {};
TRIREME_FOR_ALL_ISAS(Rope);

enum class Norm { kNone, kHeads };

/// All of a head rotates, or a part.
struct HeadSize {
  std::int64_t dim, rotated;
  HeadSize(std::int64_t dim_) : dim(dim_), rotated(dim_) {}
  HeadSize(std::int64_t dim_, std::int64_t rotated_) : dim(dim_), rotated(rotated_) {}
};

struct Operands {
  Norm norm;
  std::int64_t heads, head_dim;
  Margins margins;
  float weight_offset = 0;
  TestTensor in, out, dout, din, positions, cos_sin, weight, rstd, dweight;

  Operands(Norm norm_, DType type, std::int64_t tokens, std::int64_t heads_, HeadSize size,
           Margins margins_ = kOdd)
      : norm(norm_),
        heads(heads_),
        head_dim(size.dim),
        margins(margins_),
        in(TestTensor::random(type, row(tokens), 1)),
        out(type, row(tokens)),
        dout(TestTensor::random(type, row(tokens), 2)),
        din(type, row(tokens)),
        positions(DType::kI32, {tokens}),
        cos_sin(angles(size.rotated)),
        weight(TestTensor::random(type, {head_dim}, 3)),
        rstd(DType::kF32, {tokens, heads}),
        dweight(TestTensor::random(DType::kF32, {head_dim}, 4)) {
    for (std::int64_t t = 0; t < tokens; ++t)
      positions.set(t, static_cast<double>(t * 7 % kPositions));
  }
  Shape row(std::int64_t tokens) const {
    return {tokens, margins.before + heads * head_dim + margins.after};
  }
  template <class Tensor>
  auto view(Tensor& x) const {
    return heads_of(x.view(), margins.before, heads, head_dim);
  }
  RopeForward forward() {
    RopeForward args;
    args.out = view(out);
    args.in = view(std::as_const(in));
    args.positions_T = positions;
    args.cos_sin_PR = cos_sin;
    args.eps = 1e-3;
    if (norm == Norm::kHeads) {
      args.weight_D = weight;
      args.rstd_TH = rstd;
      args.weight_offset = weight_offset;
    }
    return args;
  }
  RopeBackward backward() {
    RopeBackward args;
    args.din = view(din);
    args.dout = view(std::as_const(dout));
    args.positions_T = positions;
    args.cos_sin_PR = cos_sin;
    if (norm == Norm::kHeads) {
      args.in = view(std::as_const(in));
      args.weight_D = weight;
      args.rstd_TH = rstd;
      args.dweight_D = dweight;
      args.weight_offset = weight_offset;
    }
    return args;
  }
  /// Only the heads' columns.
  std::vector<double> dense(const TestTensor& x) const {
    const std::vector<double> all = x.values();
    const std::int64_t width = x.shape()[1];
    std::vector<double> columns;
    for (std::int64_t t = 0; t < x.shape()[0]; ++t) {
      const auto begin = all.begin() + t * width + margins.before;
      columns.insert(columns.end(), begin, begin + heads * head_dim);
    }
    return columns;
  }
  reference::RopeCase reference_case() const {
    std::vector<double> meant = weight.values();
    for (double& w : meant) w += double{weight_offset};
    reference::RopeCase c{static_cast<std::size_t>(in.shape()[0]),
                          static_cast<std::size_t>(heads),
                          static_cast<std::size_t>(head_dim),
                          1e-3,
                          dense(in),
                          positions.values(),
                          cos_sin.values(),
                          norm == Norm::kHeads ? meant : std::vector<double>(),
                          {},
                          static_cast<std::size_t>(cos_sin.shape()[1])};
    if (in.dtype() == DType::kBF16) {
      c.rounded = [](double x) {
        return static_cast<double>(to_float(to_bfloat16(static_cast<float>(x))));
      };
    }
    return c;
  }
};

TEST_P(Rope, values_by_hand) {
  Context context = test_context(GetParam());
  // One head of 4; position 1 turns pair 0 by 90 degrees and pair 1 by none.
  const TestTensor cos_sin = TestTensor::of(DType::kF32, {2, 4}, {1, 1, 0, 0, 0, 1, 1, 0});
  TestTensor x = TestTensor::of(DType::kF32, {1, 4}, {1, 2, 3, 4});
  const TestTensor positions = TestTensor::of(DType::kI32, {1}, {1});
  RopeForward args;
  args.out = heads_of(x.view(), 0, 1, 4);
  args.in = args.out;
  args.positions_T = positions;
  args.cos_sin_PR = cos_sin;
  rope_forward(context, args);
  EXPECT_EQ(x.values(), (std::vector<double>{-3, 2, 1, 4}));
  RopeBackward back;
  back.din = heads_of(x.view(), 0, 1, 4);
  back.dout = back.din;
  back.positions_T = positions;
  back.cos_sin_PR = cos_sin;
  rope_backward(context, back);
  EXPECT_EQ(x.values(), (std::vector<double>{1, 2, 3, 4}));
}

void expect_reference(Context& context, Operands& x) {
  const DType type = x.in.dtype();
  rope_forward(context, x.forward());
  const auto expected = reference::rope_forward(x.reference_case());
  // A value near a tie of bf16 may round the other way before it is rotated.
  const bool twice = type == DType::kBF16 && x.norm == Norm::kHeads;
  expect_close(
      x.dense(x.out), expected.out,
      twice ? Tolerance{1.01 / 256, 1.0 / 256} : Tolerance{tolerance_of(type).relative, 1e-6},
      "out");
  if (x.norm == Norm::kHeads) expect_close(x.rstd.values(), expected.rstd, {1e-6}, "rstd");

  const auto dweight = x.dweight.values();
  rope_backward(context, x.backward());
  const auto gradients = reference::rope_backward(x.reference_case(), x.dense(x.dout));
  expect_close(x.dense(x.din), gradients.din, {type == DType::kBF16 ? 1.01 / 256 : 2e-6, 2e-6},
               "din");
  if (x.norm == Norm::kNone) return;
  std::vector<double> sum = gradients.dweight;
  for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += dweight[d];
  expect_close(x.dweight.values(), sum, {2e-6, 3e-6}, "dweight");
}

TEST_P(Rope, both_passes_equal_the_reference_for_odd_sizes_and_any_thread_count) {
  for (const int threads : {1, 2, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const Norm norm : {Norm::kNone, Norm::kHeads}) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        for (const std::int64_t head_dim : {2, 6, 16, 24, 34, 64, 128}) {
          for (const std::int64_t tokens : {1, 3, 65}) {
            Operands x(norm, type, tokens, 3, head_dim);
            expect_reference(context, x);
          }
        }
      }
    }
  }
}

TEST_P(Rope, aligned_rows_of_any_number_of_heads_equal_the_reference) {
  Context context = test_context(GetParam(), 2);
  struct Size {
    std::int64_t tokens, heads, head_dim;
  };
  for (const Size size : {Size{1, 1, 16}, Size{33, 2, 64}, Size{7, 5, 80}, Size{3, 9, 128},
                          Size{2, 40, 256}, Size{2, 3, 640}, Size{300, 1, 32}}) {
    for (const Norm norm : {Norm::kNone, Norm::kHeads}) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        Operands x(norm, type, size.tokens, size.heads, size.head_dim, kAligned);
        expect_reference(context, x);
      }
    }
  }
}

TEST_P(Rope, a_part_of_each_head_rotates_as_the_reference_has_it) {
  Context context = test_context(GetParam(), 2);
  for (const Margins margins : {kOdd, kAligned}) {
    for (const Norm norm : {Norm::kNone, Norm::kHeads}) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        for (const HeadSize size :
             {HeadSize{128, 64}, HeadSize{64, 48}, HeadSize{64, 2}, HeadSize{34, 16},
              HeadSize{6, 4}, HeadSize{640, 16}, HeadSize{256, 128}}) {
          Operands x(norm, type, 9, 5, size, margins);
          expect_reference(context, x);
        }
      }
    }
  }
}

TEST_P(Rope, weights_that_are_stored_around_zero_equal_the_reference) {
  Context context = test_context(GetParam(), 2);
  for (const Margins margins : {kOdd, kAligned}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t head_dim : {6, 64, 256}) {
        Operands x(Norm::kHeads, type, 9, 3, head_dim, margins);
        x.weight_offset = 1;
        expect_reference(context, x);
      }
    }
  }
}

TEST_P(Rope, more_tokens_than_pieces_of_the_weight_gradient_equal_the_reference) {
  Context context = test_context(GetParam(), 2);
  Operands x(Norm::kHeads, DType::kBF16, 270, 9, 272, kAligned);
  expect_reference(context, x);
}

TEST_P(Rope, a_gpu_of_any_number_of_multiprocessors_gives_the_same_bits) {
  Context context = test_context(GetParam());
  if (!context.on_gpu()) GTEST_SKIP() << "a CPU has none";
  for (const std::int64_t head_dim : {64, 6}) {
    std::string expected;
    for (const int multiprocessors : {1000, 1, 29, 108}) {
      context.set_multiprocessors(multiprocessors);
      Operands x(Norm::kHeads, DType::kBF16, 1500, 2, head_dim, kAligned);
      rope_forward(context, x.forward());
      rope_backward(context, x.backward());
      test_device::synchronize();
      const std::string bits = x.din.bits() + x.dweight.bits();
      if (expected.empty()) expected = bits;
      EXPECT_TRUE(bits == expected) << head_dim << " on " << multiprocessors;
    }
  }
}

TEST_P(Rope, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  for (const Margins margins : {kOdd, kAligned}) {
    expect_same_bits([&] {
      Operands x(Norm::kHeads, DType::kBF16, 9, 5, 64, margins);
      rope_forward(context, x.forward());
      rope_backward(context, x.backward());
      return x.out.bits() + x.rstd.bits() + x.din.bits() + x.dweight.bits();
    });
  }
}

TEST_P(Rope, columns_beside_the_heads_are_not_touched) {
  Context context = test_context(GetParam());
  Operands x(Norm::kNone, DType::kBF16, 5, 2, 18);
  x.out = TestTensor::random(DType::kBF16, x.out.shape(), 9);
  const auto before = x.out.values();
  rope_forward(context, x.forward());
  const auto after = x.out.values();
  const auto width = static_cast<std::size_t>(x.out.shape()[1]);
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::size_t column = i % width;
    const bool of_heads = column >= kOdd.before && column < width - kOdd.after;
    EXPECT_TRUE(of_heads || after[i] == before[i]) << i;
  }
}

TEST_P(Rope, reference_gradients_are_finite_differences) {
  Operands x(Norm::kHeads, DType::kF32, 2, 2, 6);
  const reference::RopeCase c = x.reference_case();
  const auto dout = x.dense(x.dout);
  const auto loss = [&](const reference::RopeCase& at) {
    const auto out = reference::rope_forward(at).out;
    return std::inner_product(out.begin(), out.end(), dout.begin(), 0.0);
  };
  const auto with = [&](std::vector<double> reference::RopeCase::*member) {
    return finite_differences(c.*member, [&](const std::vector<double>& values) {
      reference::RopeCase moved = c;
      moved.*member = values;
      return loss(moved);
    });
  };
  const auto gradients = reference::rope_backward(c, dout);
  expect_close(gradients.din, with(&reference::RopeCase::in), {1e-6, 1e-7}, "din");
  expect_close(gradients.dweight, with(&reference::RopeCase::weight), {1e-6, 1e-7}, "dweight");
}

TEST_P(Rope, in_place_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  struct Case {
    DType type;
    std::int64_t head_dim;
    Margins margins;
  };
  for (const auto& [type, head_dim, margins] :
       {Case{DType::kF32, 22, kOdd}, Case{DType::kBF16, 22, kOdd},
        Case{DType::kBF16, 64, kAligned}}) {
    Operands apart(Norm::kNone, type, 9, 3, head_dim, margins), in_place = apart;
    rope_forward(context, apart.forward());
    RopeForward args = in_place.forward();
    args.out = in_place.view(in_place.in);
    rope_forward(context, args);
    EXPECT_EQ(in_place.dense(in_place.in), apart.dense(apart.out));

    Operands norm(Norm::kHeads, type, 9, 3, head_dim, margins);
    rope_forward(context, norm.forward());
    Operands same = norm;
    rope_backward(context, norm.backward());
    RopeBackward back = same.backward();
    back.din = same.view(same.dout);
    rope_backward(context, back);
    EXPECT_EQ(same.dense(same.dout), norm.dense(norm.din));
    EXPECT_EQ(same.dweight.bits(), norm.dweight.bits());
  }
}

/// Rounded by the op, and with the largest magnitude of what it makes.
TEST_P(Rope, sums_give_the_bits_that_they_give_once_rounded) {
  Context context = test_context(GetParam(), 2);
  for (const Margins margins : {kOdd, kAligned}) {
    for (const Norm norm : {Norm::kNone, Norm::kHeads}) {
      for (const HeadSize size :
           {HeadSize{128}, HeadSize{64, 48}, HeadSize{64, 0}, HeadSize{34, 16}, HeadSize{256}}) {
        Operands x(norm, DType::kBF16, 9, 5, size, margins);
        rope_forward(context, x.forward());
        TestTensor sums = TestTensor::random(DType::kF32, x.dout.shape(), 7, 3);
        cast(context, x.dout, sums);
        Operands of_sums = x;
        rope_backward(context, x.backward());
        TestTensor most(DType::kI32, {1, 1}), amax(DType::kI32, {1});
        absolute_max(context, most, x.din, ScaleDim(9, 0), ScaleDim(x.din.shape()[1], 0));
        RopeBackward args = of_sums.backward();
        args.dout = of_sums.view(std::as_const(sums));
        args.amax_1 = amax;
        rope_backward(context, args);
        EXPECT_EQ(of_sums.din.bits(), x.din.bits()) << size.dim;
        EXPECT_EQ(of_sums.dweight.bits(), x.dweight.bits()) << size.dim;
        EXPECT_EQ(amax.bits(), most.bits()) << size.dim;
        args = x.backward();
        args.amax_1 = amax;
        amax.set(0, 0);
        rope_backward(context, args);
        EXPECT_EQ(amax.bits(), most.bits()) << size.dim;
      }
    }
  }
}

/// A projection's gradient: q's, k's and v's columns.
struct Projection {
  std::int64_t tokens, heads, kv_heads, head_dim, rotated, value_dim;
  [[nodiscard]] std::int64_t q() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t k() const { return kv_heads * head_dim; }
  [[nodiscard]] std::int64_t v() const { return kv_heads * value_dim; }
  [[nodiscard]] std::int64_t columns() const { return q() + k() + v(); }
};

/// Codes and scales of it in both orders, in memory whose bytes are all the same.
struct BothCodes {
  ScaleDim columns, tokens;
  TestTensor along, along_scales, across, across_scales;

  static ScaleDim columns_of(const Projection& of) {
    ScaleDim dim;
    dim.block = 128;
    for (const std::int64_t size : {of.q(), of.k(), of.v()}) dim.add({size});
    return dim;
  }
  static TestTensor filled(DType type, const Shape& shape) {
    TestTensor tensor(type, shape, 0);
    for (std::int64_t i = 0; i < shape.count(); ++i) tensor.set(i, 3);
    return tensor;
  }
  BothCodes(const Projection& of, DType format)
      : columns(columns_of(of)),
        tokens(of.tokens, 128),
        along(filled(format, codes_shape(tokens.with_block(1), columns, true))),
        along_scales(filled(DType::kF32, scales_shape(tokens.with_block(1), columns))),
        across(filled(format, codes_shape(columns.with_block(1), tokens, true))),
        across_scales(filled(DType::kF32, scales_shape(columns.with_block(1), tokens))) {}
  QuantizedView of_rows() { return {along, along_scales, tokens.with_block(1), columns, true}; }
  QuantizedView of_columns() {
    return {across, across_scales, columns.with_block(1), tokens, true};
  }
  std::string bits() const {
    return along.bits() + along_scales.bits() + across.bits() + across_scales.bits();
  }
};

void expect_codes(Context& context, const Projection& of, DType type, DType format) {
  TestTensor dout = TestTensor::random(type, {of.tokens, of.columns()}, 11, 2, 0);
  dout.set(5, INFINITY);
  dout.set(of.columns() - 1, std::nan(""));
  TestTensor positions(DType::kI32, {of.tokens});
  for (std::int64_t t = 0; t < of.tokens; ++t)
    positions.set(t, static_cast<double>(t * 7 % kPositions));
  const std::vector<double> values = angles(of.rotated).values();
  TestTensor q_table(DType::kF32, {kPositions, of.rotated}, 0), k_table = q_table;
  for (std::size_t i = 0; i < values.size(); ++i) {
    k_table.set(static_cast<std::int64_t>(i), values[i]);
    q_table.set(static_cast<std::int64_t>(i), 2 * values[i]);
  }
  BothCodes made(of, format), wanted(of, format);
  rope_backward_codes(
      context, {made.of_rows(), made.of_columns(), dout, positions, q_table, k_table, of.head_dim});

  TestTensor stored(DType::kBF16, dout.shape(), 0);
  cast(context, stored, dout);
  const auto rotate = [&](std::int64_t column, std::int64_t heads, const TestTensor& table) {
    RopeBackward args;
    args.din = heads_of(stored.view(), column, heads, of.head_dim);
    args.dout = args.din;
    args.positions_T = positions;
    args.cos_sin_PR = table;
    rope_backward(context, args);
  };
  rotate(0, of.heads, q_table);
  rotate(of.q(), of.kv_heads, k_table);
  quantize_both(context, {wanted.of_rows(), wanted.of_columns(), stored});
  EXPECT_EQ(made.bits(), wanted.bits()) << "D" << of.head_dim << " T" << of.tokens;
}

TEST_P(Rope, codes_are_those_of_the_gradient_that_nobody_stores) {
  Context context = test_context(GetParam(), 2);
  for (const Projection& of :
       {Projection{1, 3, 1, 128, 128, 128}, Projection{130, 2, 1, 128, 128, 128},
        Projection{129, 3, 3, 64, 64, 64}, Projection{70, 5, 1, 96, 32, 96},
        Projection{300, 1, 1, 256, 256, 256}, Projection{40, 3, 2, 80, 80, 40},
        Projection{9, 2, 1, 192, 64, 128}}) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      for (const DType format : {DType::kF8E4M3, DType::kF8E5M2})
        expect_codes(context, of, type, format);
    }
  }
}

TEST_P(Rope, two_runs_give_the_same_bits_and_only_the_weight_sum_knows_the_threads) {
  std::string out, din;
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    Operands x(Norm::kHeads, DType::kF32, 300, 4, 32), again = x;
    rope_forward(context, x.forward());
    rope_backward(context, x.backward());
    rope_forward(context, again.forward());
    rope_backward(context, again.backward());
    EXPECT_EQ(x.dweight.bits(), again.dweight.bits());
    if (threads == 1) {
      out = x.out.bits();
      din = x.din.bits();
    }
    EXPECT_EQ(x.out.bits(), out);
    EXPECT_EQ(x.din.bits(), din);
  }
}

TEST_P(Rope, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  Operands x(Norm::kHeads, DType::kF32, 4, 2, 8);
  const auto refuse = [&](auto change, const std::string& message) {
    RopeForward args = x.forward();
    change(args);
    expect_refused([&] { rope_forward(context, args); }, message);
  };
  const TestTensor narrow(DType::kF32, {6}), table(DType::kF32, {kPositions, 10}),
      odd(DType::kF32, {kPositions, 5});
  TestTensor beyond = x.positions;
  beyond.set(3, kPositions);
  refuse([&](auto& a) { a.weight_D = narrow; },
         "rope_forward.weight: expected [8] fp32, found [6] fp32");
  refuse([&](auto& a) { a.cos_sin_PR = table; },
         "rope_forward.cos_sin: turns an odd number of dims, or more than a head has");
  refuse([&](auto& a) { a.cos_sin_PR = odd; }, "rope_forward.cos_sin: turns an odd number");
  if (!context.on_gpu()) {
    refuse([&](auto& a) { a.positions_T = beyond; },
           "rope_forward.positions[3]: expected 0 to 39, found 40");
  }
  refuse([&](auto& a) { a.rstd_TH = {}; },
         "rope_forward.rstd: expected [4, 2] fp32, found nothing");
  refuse([&](auto& a) { a.out = x.view(x.in); }, "rope_forward.out: may not be in with a weight");
  refuse([&](auto& a) { a.in.head_dim = 7; }, "rope_forward.in: an odd head size");
  refuse(
      [&](auto& a) { a.out.heads = 1; },
      "rope_forward.out: expected heads [4, 2, 8] fp32, found [4, 1, 8] fp32 with a stride of 21");
  RopeBackward back = x.backward();
  back.in = {};
  expect_refused([&] { rope_backward(context, back); },
                 "rope_backward.in: expected heads [4, 2, 8] fp32");
}

}  // namespace
}  // namespace trireme
