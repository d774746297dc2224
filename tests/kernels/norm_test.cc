#include "kernels/norm/norm.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/norm_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

constexpr std::int64_t kChannels[] = {1, 7, 8, 9, 31, 33, 1000};
constexpr std::int64_t kTokens[] = {1, 3, 65};

class Norm : public OpTest {};
TRIREME_FOR_ALL_ISAS(Norm);

/// Operands of both passes, weights away from 1 and biases from 0.
struct Operands {
  NormOp op;
  float weight_offset = 0;
  TestTensor x, residual, weight, bias, dy, y, sum, mean, rstd, dx, dweight, dbias;

  Operands(NormOp op_, DType type, std::int64_t tokens, std::int64_t channels,
           int offset = TestTensor::kOffsetByEnvironment)
      : op(op_),
        x(TestTensor::random(type, {tokens, channels}, 1, 2, offset)),
        residual(TestTensor::random(type, {tokens, channels}, 2, 1, offset)),
        weight(TestTensor::random(type, {channels}, 3, 1, offset)),
        bias(TestTensor::random(type, {channels}, 4, 1, offset)),
        dy(TestTensor::random(type, {tokens, channels}, 5)),
        y(type, {tokens, channels}, offset),
        sum(type, {tokens, channels}, offset),
        mean(DType::kF32, {tokens}),
        rstd(DType::kF32, {tokens}),
        dx(type, {tokens, channels}),
        dweight(TestTensor::random(DType::kF32, {channels}, 6)),
        dbias(TestTensor::random(DType::kF32, {channels}, 7)) {}

  NormForward forward() {
    NormForward args;
    args.op = op;
    args.eps = 1e-3;
    args.weight_offset = weight_offset;
    args.y_TC = y;
    args.sum_TC = sum;
    args.mean_T = mean;
    args.rstd_T = rstd;
    args.x_TC = x;
    args.residual_TC = residual;
    args.weight_C = weight;
    if (op == NormOp::kLayer) args.bias_C = bias;
    return args;
  }
  NormBackward backward() {
    NormBackward args;
    args.op = op;
    args.weight_offset = weight_offset;
    args.dx_TC = dx;
    args.dweight_C = dweight;
    if (op == NormOp::kLayer) args.dbias_C = dbias;
    args.dy_TC = dy;
    args.dresidual_TC = residual;
    args.s_TC = sum;
    args.weight_C = weight;
    args.mean_T = mean;
    args.rstd_T = rstd;
    return args;
  }
  reference::NormCase reference_case() const {
    std::vector<double> meant = weight.values();
    for (double& w : meant) w += double{weight_offset};
    return {op, 1e-3, sum.values(), std::move(meant),
            op == NormOp::kLayer ? bias.values() : std::vector<double>()};
  }
};

std::vector<double> add(std::vector<double> a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST_P(Norm, values_by_hand) {
  Context context = test_context(GetParam());
  const TestTensor x = TestTensor::of(DType::kF32, {1, 2}, {3, 5}),
                   weight = TestTensor::of(DType::kF32, {2}, {2, 10}),
                   bias = TestTensor::of(DType::kF32, {2}, {100, 200});
  TestTensor y(DType::kF32, {1, 2}), mean(DType::kF32, {1}), rstd(DType::kF32, {1});
  NormForward args;
  args.op = NormOp::kLayer;
  args.eps = 3;  // variance 1, so that rstd is 1/2
  args.y_TC = y;
  args.mean_T = mean;
  args.rstd_T = rstd;
  args.x_TC = x;
  args.weight_C = weight;
  args.bias_C = bias;
  norm_forward(context, args);
  EXPECT_EQ(y.values(), (std::vector<double>{99, 205}));
  EXPECT_EQ(mean.values(), std::vector<double>{4});
  EXPECT_EQ(rstd.values(), std::vector<double>{0.5});
  args.op = NormOp::kRms;
  args.eps = 8;  // mean square 17, so that rstd is 1/5
  args.bias_C = {};
  norm_forward(context, args);
  expect_close(y.values(), {1.2, 10}, {1e-6}, "rms");
}

void expect_reference(Context& context, Operands& x) {
  const DType type = x.x.dtype();
  norm_forward(context, x.forward());
  expect_close(x.sum.values(), add(x.x.values(), x.residual.values()), tolerance_of(type), "sum");
  const auto expected = reference::norm_forward(x.reference_case());
  expect_close(x.y.values(), expected.y, tolerance_of(type), "y");
  expect_close(x.rstd.values(), expected.rstd, {1e-6}, "rstd");
  const bool layer = x.op == NormOp::kLayer;
  if (layer) expect_close(x.mean.values(), expected.mean, {1e-6, 1e-6}, "mean");

  const auto dweight = x.dweight.values(), dbias = x.dbias.values();
  norm_backward(context, x.backward());
  const auto gradients = reference::norm_backward(x.reference_case(), x.dy.values());
  // With one channel a layer norm's gradient is zero up to cancellation: a scale from dy is needed.
  const Tolerance loose{type == DType::kBF16 ? 1.01 / 256 : 2e-6, 3e-6};
  expect_close(x.dx.values(), add(gradients.ds, x.residual.values()), loose, "dx");
  expect_close(x.dweight.values(), add(dweight, gradients.dweight), {2e-6, 3e-6}, "dweight");
  if (layer) expect_close(x.dbias.values(), add(dbias, gradients.dbias), {2e-6, 3e-6}, "dbias");
}

TEST_P(Norm, both_passes_equal_the_reference_for_odd_sizes_and_any_thread_count) {
  for (const int threads : {1, 2, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const NormOp op : {NormOp::kRms, NormOp::kLayer}) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        for (const std::int64_t channels : kChannels) {
          for (const std::int64_t tokens : kTokens) {
            Operands x(op, type, tokens, channels);
            expect_reference(context, x);
          }
        }
      }
    }
  }
}

TEST_P(Norm, rows_of_every_length_equal_the_reference) {
  Context context = test_context(GetParam(), 2);
  for (const NormOp op : {NormOp::kRms, NormOp::kLayer}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t channels : {136, 520, 1544, 3000, 6000, 12008, 20000, 25600}) {
        Operands x(op, type, 2, channels);
        expect_reference(context, x);
      }
    }
  }
}

TEST_P(Norm, weights_that_are_stored_around_zero_equal_the_reference) {
  Context context = test_context(GetParam(), 2);
  for (const NormOp op : {NormOp::kRms, NormOp::kLayer}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t channels : {7, 40, 136, 1544, 20000}) {
        Operands x(op, type, 5, channels);
        x.weight_offset = 1;
        expect_reference(context, x);
        NormBackward again = x.backward();
        if (op == NormOp::kLayer) again.bias_C = x.bias;
        again.y_TC = x.dy;
        norm_backward(context, again);
        EXPECT_EQ(x.dy.bits(), x.y.bits());
      }
    }
  }
}

TEST_P(Norm, without_a_norm_the_sum_goes_on_as_it_is) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t channels : {1, 7, 40, 1000}) {
      Operands like(NormOp::kRms, type, 65, channels), x = like;
      norm_forward(context, like.forward());
      NormForward forward;
      forward.op = NormOp::kNone;
      forward.y_TC = x.y;
      forward.sum_TC = x.sum;
      forward.x_TC = x.x;
      forward.residual_TC = x.residual;
      norm_forward(context, forward);
      EXPECT_EQ(x.sum.bits(), like.sum.bits());
      EXPECT_EQ(x.y.bits(), like.sum.bits());
      forward.sum_TC = {};
      forward.residual_TC = {};
      norm_forward(context, forward);
      EXPECT_EQ(x.y.bits(), x.x.bits());

      const std::vector<double> expected = add(x.dy.values(), x.residual.values());
      NormBackward backward;
      backward.op = NormOp::kNone;
      backward.dx_TC = x.dx;
      backward.dy_TC = x.dy;
      backward.dresidual_TC = x.residual;
      backward.s_TC = x.sum;
      backward.y_TC = x.dy;
      norm_backward(context, backward);
      expect_close(x.dx.values(), expected, tolerance_of(type), "dx");
      EXPECT_EQ(x.dy.bits(), x.sum.bits());
    }
  }
  Operands x(NormOp::kRms, DType::kF32, 2, 3);
  NormForward args = x.forward();
  args.op = NormOp::kNone;
  expect_refused([&] { norm_forward(context, args); }, "norm_forward.weight");
}

TEST_P(Norm, many_rows_equal_the_reference) {
  Context context = test_context(GetParam(), 2);
  // More rows than pieces of a GPU's weight gradient, several times for the first two.
  Operands small(NormOp::kLayer, DType::kBF16, 5000, 16);
  expect_reference(context, small);
  Operands middle(NormOp::kRms, DType::kBF16, 1100, 520);
  expect_reference(context, middle);
  Operands large(NormOp::kLayer, DType::kF32, 136, 4104);
  expect_reference(context, large);
}

TEST_P(Norm, a_gpu_of_any_number_of_multiprocessors_gives_the_same_bits) {
  Context context = test_context(GetParam());
  if (!context.on_gpu()) GTEST_SKIP() << "a CPU has none";
  struct Size {
    NormOp op;
    std::int64_t rows, channels;
  };
  // Rows of a warp and of a block, in registers, read again with sums in and out of shared memory.
  for (const Size& size : {Size{NormOp::kLayer, 5000, 16},
                           {NormOp::kRms, 600, 520},
                           {NormOp::kLayer, 136, 4104},
                           {NormOp::kLayer, 140, 501},
                           {NormOp::kRms, 5, 25'000}}) {
    std::string expected;
    for (const int multiprocessors : {1000, 1, 29, 108}) {
      context.set_multiprocessors(multiprocessors);
      Operands x(size.op, DType::kBF16, size.rows, size.channels);
      norm_forward(context, x.forward());
      norm_backward(context, x.backward());
      test_device::synchronize();
      const std::string bits = x.dx.bits() + x.dweight.bits() + x.dbias.bits();
      if (expected.empty()) expected = bits;
      EXPECT_TRUE(bits == expected) << size.channels << " on " << multiprocessors;
    }
  }
}

TEST_P(Norm, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  for (const NormOp op : {NormOp::kRms, NormOp::kLayer}) {
    for (const std::int64_t channels : {40, 1000, 2048, 20000}) {
      expect_same_bits([&] {
        Operands x(op, DType::kBF16, 5, channels);
        norm_forward(context, x.forward());
        norm_backward(context, x.backward());
        return x.y.bits() + x.rstd.bits() + x.dx.bits() + x.dweight.bits() + x.dbias.bits();
      });
    }
  }
}

TEST_P(Norm, reference_gradients_are_finite_differences) {
  for (const NormOp op : {NormOp::kRms, NormOp::kLayer}) {
    Operands x(op, DType::kF32, 2, 5);
    x.sum = x.x;
    reference::NormCase c = x.reference_case();
    const auto dy = x.dy.values();
    const auto loss = [&](const reference::NormCase& at) {
      const auto y = reference::norm_forward(at).y;
      return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
    };
    const auto gradients = reference::norm_backward(c, dy);
    const auto with = [&](std::vector<double> reference::NormCase::*member) {
      return finite_differences(c.*member, [&](const std::vector<double>& values) {
        reference::NormCase moved = c;
        moved.*member = values;
        return loss(moved);
      });
    };
    expect_close(gradients.ds, with(&reference::NormCase::s), {1e-6, 1e-7}, "ds");
    expect_close(gradients.dweight, with(&reference::NormCase::weight), {1e-6, 1e-7}, "dweight");
    if (op == NormOp::kLayer)
      expect_close(gradients.dbias, with(&reference::NormCase::bias), {1e-6, 1e-7}, "dbias");
  }
}

TEST_P(Norm, allowed_aliases_change_no_bit) {
  Context context = test_context(GetParam(), 2);
  struct Case {
    DType type;
    std::int64_t channels;
  };
  for (const auto [type, channels] : {Case{DType::kF32, 33}, Case{DType::kBF16, 33},
                                      Case{DType::kBF16, 1000}, Case{DType::kF32, 20000}}) {
    Operands apart(NormOp::kLayer, type, 9, channels);
    norm_forward(context, apart.forward());
    for (const bool into_x : {true, false}) {
      Operands x(NormOp::kLayer, type, 9, channels);
      NormForward args = x.forward();
      TestTensor& sum = into_x ? x.x : x.residual;
      args.sum_TC = sum;
      norm_forward(context, args);
      EXPECT_EQ(x.y.bits(), apart.y.bits());
      EXPECT_EQ(sum.bits(), apart.sum.bits());
    }
    Operands copy = apart;
    norm_backward(context, apart.backward());
    for (const bool into_dy : {true, false}) {
      Operands x = copy;
      NormBackward args = x.backward();
      TestTensor& dx = into_dy ? x.dy : x.residual;
      args.dx_TC = dx;
      norm_backward(context, args);
      EXPECT_EQ(dx.bits(), apart.dx.bits());
      EXPECT_EQ(x.dweight.bits(), apart.dweight.bits());
    }
  }
}

TEST_P(Norm, backward_makes_the_forward_result_once_more) {
  Context context = test_context(GetParam(), 2);
  for (const NormOp op : {NormOp::kRms, NormOp::kLayer}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t channels : {33, 1000, 20000}) {
        Operands x(op, type, 5, channels);
        norm_forward(context, x.forward());
        norm_backward(context, x.backward());
        Operands again(op, type, 5, channels);
        norm_forward(context, again.forward());
        NormBackward args = again.backward();
        if (op == NormOp::kLayer) args.bias_C = again.bias;
        args.y_TC = again.dy;
        norm_backward(context, args);
        EXPECT_EQ(again.dy.bits(), x.y.bits());
        EXPECT_EQ(again.dx.bits(), x.dx.bits());
        EXPECT_EQ(again.dweight.bits(), x.dweight.bits());
      }
    }
  }
}

TEST_P(Norm, fused_residual_equals_an_add_and_a_norm_in_bits) {
  Context context = test_context(GetParam());
  for (const std::int64_t channels : {37, 1000, 20000}) {
    Operands fused(NormOp::kRms, DType::kBF16, 5, channels);
    norm_forward(context, fused.forward());
    Operands apart = fused;
    NormForward args = apart.forward();
    args.x_TC = apart.sum;
    args.residual_TC = {};
    args.sum_TC = {};
    norm_forward(context, args);
    EXPECT_EQ(apart.y.bits(), fused.y.bits());
  }
}

/// What a pass of its own makes of y, in its place and beside it.
void expect_quantized(Context& context, Operands& x, int offset) {
  const std::int64_t tokens = x.y.shape()[0], channels = x.y.shape()[1];
  const ScaleDim rows(tokens, 1), columns(channels, 128);
  const auto memory = [&](DType type, const Shape& shape) {
    TestTensor tensor(type, shape, offset);
    for (std::int64_t i = 0; i < shape.count(); ++i) tensor.set(i, 0x55);  // what stays is seen
    return tensor;
  };
  const Shape of_codes = codes_shape(rows, columns, true), of_scales = scales_shape(rows, columns);
  TestTensor codes = memory(DType::kF8E4M3, of_codes), scales = memory(DType::kF32, of_scales);
  TestTensor amax(DType::kI32, {1});
  NormForward args = x.forward();
  args.y_TC = {};
  args.quantized.codes = {codes, scales, rows, columns, true};
  norm_forward(context, args);
  const TestTensor alone = codes, of_alone = scales;
  args.y_TC = x.y;
  args.quantized.amax_P = amax;
  norm_forward(context, args);

  TestTensor separate = memory(DType::kF8E4M3, of_codes), of = memory(DType::kF32, of_scales);
  TestTensor most(DType::kI32, {1, 1});
  quantize(context, {{separate, of, rows, columns, true}, x.y});
  absolute_max(context, most, x.y, rows.with_block(0), columns.with_block(0));
  EXPECT_EQ(alone.bits(), separate.bits()) << channels;
  EXPECT_EQ(of_alone.bits(), of.bits()) << channels;
  EXPECT_EQ(codes.bits(), separate.bits()) << channels;
  EXPECT_EQ(scales.bits(), of.bits()) << channels;
  EXPECT_EQ(amax.bits(), most.bits()) << channels;
}

TEST_P(Norm, what_is_left_for_a_product_are_the_bits_of_a_pass_of_its_own) {
  Context context = test_context(GetParam(), 2);
  for (const NormOp op : {NormOp::kRms, NormOp::kLayer}) {
    for (const std::int64_t channels : {8, 144, 264, 1000, 2056, 4096, 8320, 16640}) {
      for (const int offset : {TestTensor::kOffsetByEnvironment, 0}) {
        Operands x(op, DType::kBF16, 3, channels, offset);
        x.weight_offset = 1;
        x.x.set(channels, INFINITY);  // its row's blocks have no finite scale
        expect_quantized(context, x, offset);
      }
    }
  }
  Operands wide(NormOp::kRms, DType::kF32, 5, 40);
  TestTensor amax(DType::kI32, {1}), most(DType::kI32, {1, 1});
  NormForward args = wide.forward();
  args.quantized.amax_P = amax;
  norm_forward(context, args);
  absolute_max(context, most, wide.y, ScaleDim(5, 0), ScaleDim(40, 0));
  EXPECT_EQ(amax.bits(), most.bits());
}

TEST_P(Norm, what_backward_leaves_for_a_product_are_the_bits_of_a_pass_of_its_own) {
  Context context = test_context(GetParam(), 2);
  const auto expect_maximum = [&](NormOp op, DType type, std::int64_t channels, int offset) {
    Operands x(op, type, 5, channels, offset);
    x.dy = TestTensor::random(type, {5, channels}, 5, 1, offset);
    x.dx = TestTensor(type, {5, channels}, offset);
    norm_forward(context, x.forward());
    Operands plain = x;
    norm_backward(context, plain.backward());
    TestTensor amax(DType::kI32, {1}), most(DType::kI32, {1, 1});
    NormBackward args = x.backward();
    args.amax_1 = amax;
    norm_backward(context, args);
    absolute_max(context, most, x.dx, ScaleDim(5, 0), ScaleDim(channels, 0));
    EXPECT_EQ(amax.bits(), most.bits()) << channels;
    EXPECT_EQ(x.dx.bits(), plain.dx.bits()) << channels;
    EXPECT_EQ(x.dweight.bits(), plain.dweight.bits()) << channels;
  };
  for (const NormOp op : {NormOp::kRms, NormOp::kLayer}) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t channels : {40, 520, 2048, 8320}) {
        for (const int offset : {TestTensor::kOffsetByEnvironment, 0})
          expect_maximum(op, type, channels, offset);
      }
    }
  }
}

TEST_P(Norm, two_runs_give_the_same_bits_and_a_token_does_not_depend_on_its_neighbours) {
  Context context = test_context(GetParam(), 3);
  Operands x(NormOp::kLayer, DType::kF32, 1300, 40), again(NormOp::kLayer, DType::kF32, 1300, 40);
  norm_forward(context, x.forward());
  norm_backward(context, x.backward());
  norm_forward(context, again.forward());
  norm_backward(context, again.backward());
  EXPECT_EQ(x.dweight.bits(), again.dweight.bits());
  EXPECT_EQ(x.dx.bits(), again.dx.bits());

  Context single = test_context(GetParam(), 1);
  Operands other(NormOp::kLayer, DType::kF32, 1300, 40);
  norm_forward(single, other.forward());
  norm_backward(single, other.backward());
  EXPECT_EQ(x.y.bits(), other.y.bits());
  EXPECT_EQ(x.dx.bits(), other.dx.bits());
}

TEST_P(Norm, gradients_that_are_not_wanted_may_be_left_out) {
  Context context = test_context(GetParam(), 2);
  Operands x(NormOp::kLayer, DType::kF32, 3, 20);
  norm_forward(context, x.forward());
  NormBackward args = x.backward();
  norm_backward(context, args);
  const std::string bits = x.dx.bits();
  args.dweight_C = {};
  args.dbias_C = {};
  norm_backward(context, args);
  EXPECT_EQ(x.dx.bits(), bits);
}

TEST_P(Norm, a_large_mean_does_not_spoil_the_variance) {
  Context context = test_context(GetParam());
  Operands x(NormOp::kLayer, DType::kF32, 1, 512);
  for (int i = 0; i < 512; ++i) x.x.set(i, 4096 + (i % 2 == 0 ? 0.5 : -0.5));
  NormForward args = x.forward();
  args.eps = 0;
  args.residual_TC = {};
  args.sum_TC = {};
  norm_forward(context, args);
  expect_close(x.rstd.values(), {2}, {1e-6}, "rstd");
}

TEST_P(Norm, nan_stays_in_its_token) {
  Context context = test_context(GetParam());
  Operands x(NormOp::kRms, DType::kF32, 2, 20);
  x.x.set(3, std::nan(""));
  norm_forward(context, x.forward());
  const auto y = x.y.values();
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(std::isnan(y[i]));
    EXPECT_TRUE(std::isfinite(y[20 + i]));
  }
}

TEST_P(Norm, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  Operands x(NormOp::kLayer, DType::kF32, 2, 64);
  const TestTensor narrow(DType::kF32, {63}), half(DType::kBF16, {64});
  const auto refuse = [&](auto change, const std::string& message) {
    NormForward args = x.forward();
    change(args);
    expect_refused([&] { norm_forward(context, args); }, message);
  };
  refuse([&](NormForward& a) { a.weight_C = narrow; },
         "norm_forward.weight: expected [64] fp32, found [63] fp32");
  refuse([&](NormForward& a) { a.bias_C = half; },
         "norm_forward.bias: expected [64] fp32, found [64] bf16");
  refuse([&](NormForward& a) { a.mean_T = {}; },
         "norm_forward.mean: expected [2] fp32, found nothing");
  refuse([&](NormForward& a) { a.op = NormOp::kRms; },
         "norm_forward.bias: expected nothing without a layer norm");
  refuse([&](NormForward& a) { a.residual_TC = {}; },
         "norm_forward.sum: expected nothing without residual");
  TestTensor codes(DType::kF8E4M3, {2, 128}), scales(DType::kF32, {2, 1});
  refuse([&](NormForward& a) { a.y_TC = {}; }, "norm_forward.y: expected [2, 64] fp32");
  refuse(
      [&](NormForward& a) {
        a.quantized.codes = {codes, scales, ScaleDim(2, 1), ScaleDim(64, 128), true};
      },
      "norm_forward.codes: are those of bf16 rows");
  refuse([&](NormForward& a) { a.quantized.amax_P = scales; },
         "norm_forward.amax: expected [1] int32");
  refuse([&](NormForward& a) { a.y_TC = x.x; }, "norm_forward.y: shares memory with x");
  NormBackward args = x.backward();
  args.rstd_T = {};
  expect_refused([&] { norm_backward(context, args); },
                 "norm_backward.rstd: expected [2] fp32, found nothing");
  args = x.backward();
  args.dx_TC = x.sum;
  expect_refused([&] { norm_backward(context, args); }, "norm_backward.dx: shares memory with s");
}

}  // namespace
}  // namespace trireme
