#include "kernels/attention_support.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/math.h"
#include "device/gpu.h"
#include "kernels/common/gpu_info.h"
#include "kernels/common/gpu_kernels.h"

namespace trireme::attention_testing {

namespace {

TestTensor random_rows(Rows rows, DType dtype, std::int64_t count, std::int64_t columns,
                       std::uint64_t seed) {
  TestTensor tensor = TestTensor::random(dtype, {count, columns}, seed);
  if (rows == Rows::kAnywhere) return tensor;
  TestTensor aligned(dtype, {count, columns}, 0);
  const auto values = tensor.values();
  for (std::size_t i = 0; i < values.size(); ++i)
    aligned.set(static_cast<std::int64_t>(i), values[i]);
  return aligned;
}

}  // namespace

Problem::Problem(DType dtype, const Sizes& sizes, std::vector<PositionRange> q_ranges,
                 std::vector<PositionRange> kv_ranges, std::uint64_t seed, Rows layout)
    : c{sizes.sequences,
        sizes.heads,
        sizes.kv_heads,
        sizes.head_dim,
        sizes.value_dim(),
        std::move(q_ranges),
        std::move(kv_ranges),
        {},
        1 / std::sqrt(static_cast<double>(sizes.head_dim)),
        {},
        {},
        {}},
      rows(layout),
      qkv_q(random_rows(rows, dtype, q_rows(), sizes.heads * sizes.head_dim + (aligned() ? 8 : 3),
                        seed)),
      qkv_kv(random_rows(
          rows, dtype, kv_rows(),
          sizes.kv_heads * (sizes.head_dim + sizes.value_dim()) + (aligned() ? 24 : 5), seed + 1)),
      d_o(random_rows(rows, dtype, q_rows(), sizes.heads * sizes.value_dim(), seed + 2)),
      first_key(DType::kI32, {q_rows()}),
      numbers(DType::kI32, {2 * c.sequences, 2}) {
  // Scores of a few units: probabilities neither all alike nor one alone.
  c.scale = static_cast<float>(1.5 * c.scale);
  c.q = packed(q());
  c.k = packed(k());
  c.v = packed(v());
}

void Problem::set_documents(std::int64_t length) {
  documents = true;
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < c.sequences; ++b) {
    for (const PositionRange& range : c.q_ranges) {
      for (std::int64_t i = 0; i < range.count; ++i) {
        first_key.set(row++, static_cast<double>((range.first + i + 3 * b) / length * length));
      }
    }
  }
  c.first_key.clear();
  for (const double first : first_key.values())
    c.first_key.push_back(static_cast<std::int32_t>(first));
}

void Problem::set_dropout(double share, std::uint64_t key, std::int64_t first_head) {
  c.share = share;
  c.key = key;
  c.first_head = first_head;
  c.samples.clear();
  for (std::int64_t b = 0; b < c.sequences; ++b) {
    c.samples.push_back(70000 + 3 * b);
    numbers.set(4 * b, static_cast<double>(c.samples.back()));
  }
}

std::vector<double> packed(const ConstHeadsView& view) {
  test_device::synchronize();
  std::vector<double> values;
  for (std::int64_t t = 0; t < view.tokens; ++t) {
    for (std::int64_t i = 0; i < view.heads * view.head_dim; ++i) {
      const std::int64_t at = t * view.token_stride + i;
      values.push_back(view.dtype == DType::kF32
                           ? reinterpret_cast<const float*>(view.data)[at]
                           : to_float(reinterpret_cast<const BFloat16*>(view.data)[at]));
    }
  }
  return values;
}

HeadsView heads(TestTensor& tensor, const AttentionCase& c, std::int64_t count) {
  return heads_of(tensor.view(), 0, count, c.head_dim);
}
ConstHeadsView heads(const TestTensor& tensor, const AttentionCase& c, std::int64_t count) {
  return heads_of(tensor.view(), 0, count, c.head_dim);
}
HeadsView values(TestTensor& tensor, const AttentionCase& c, std::int64_t count) {
  return heads_of(tensor.view(), 0, count, c.value_dim);
}
ConstHeadsView values(const TestTensor& tensor, const AttentionCase& c, std::int64_t count) {
  return heads_of(tensor.view(), 0, count, c.value_dim);
}

Output run_forward(Isa isa, int threads, const Problem& problem, const Way& way) {
  Context context = test_context(isa, threads);
  if (way.backend != nullptr) context.set_attention_backend(*way.backend);
  if (way.multiprocessors > 0) context.set_multiprocessors(way.multiprocessors);
  const AttentionCase& c = problem.c;
  Output out{random_rows(problem.rows, problem.dtype(), problem.q_rows(),
                         c.heads * c.value_dim + (problem.aligned() ? 8 : 1), 9),
             TestTensor::random(DType::kF32, {problem.q_rows(), c.heads}, 9)};
  attention_forward(context, {values(out.o, c, c.heads),
                              out.lse,
                              problem.q(),
                              problem.k(),
                              problem.v(),
                              problem.mask(),
                              problem.scale(),
                              {},
                              problem.dropout()});
  return out;
}

void expect_left_of_o(Isa isa, const Problem& problem, Left left, const std::string& what,
                      const Way& way) {
  Context context = test_context(isa, 2);
  if (way.backend != nullptr) context.set_attention_backend(*way.backend);
  if (way.multiprocessors > 0) context.set_multiprocessors(way.multiprocessors);
  const AttentionCase& c = problem.c;
  const Shape shape{problem.q_rows(), c.heads * c.value_dim};
  const auto memory = [&](DType type, const Shape& of) {
    TestTensor tensor(type, of, problem.aligned() ? 0 : TestTensor::kOffsetByEnvironment);
    for (std::int64_t i = 0; i < of.count(); ++i) tensor.set(i, 0x55);  // what stays is seen
    return tensor;
  };
  TestTensor o = memory(problem.dtype(), shape), plain_o = o;
  TestTensor lse(DType::kF32, {problem.q_rows(), c.heads});
  AttentionForward args{values(o, c, c.heads), lse,         problem.q(),
                        problem.k(),           problem.v(), problem.mask(),
                        problem.scale()};
  const ScaleDim rows(shape[0], 1), columns(shape[1], 128);
  const Shape of_codes = codes_shape(rows, columns, true), of_scales = scales_shape(rows, columns);
  TestTensor codes = memory(DType::kF8E4M3, of_codes), scales = memory(DType::kF32, of_scales);
  TestTensor separate = codes, of = scales;
  TestTensor amax(DType::kI32, {1}), most(DType::kI32, {1, 1});
  if (left == Left::kCodesAndMaximum) args.quantized.codes = {codes, scales, rows, columns, true};
  args.quantized.amax_P = amax;
  attention_forward(context, args);
  args.o = values(plain_o, c, c.heads);
  args.quantized = {};
  attention_forward(context, args);
  EXPECT_EQ(o.bits(), plain_o.bits()) << what;
  absolute_max(context, most, o, rows.with_block(0), columns.with_block(0));
  EXPECT_EQ(amax.bits(), most.bits()) << what;
  if (left == Left::kMaximum) return;
  quantize(context, {{separate, of, rows, columns, true}, o});
  EXPECT_EQ(codes.bits(), separate.bits()) << what;
  EXPECT_EQ(scales.bits(), of.bits()) << what;
}

std::vector<double> o_values(const Problem& problem, const Output& out) {
  return packed(values(out.o, problem.c, problem.c.heads));
}

Gradients run_backward(Isa isa, int threads, const Problem& problem, const std::vector<double>& lse,
                       const std::vector<double>& delta, const BackwardWay& how) {
  Context context = test_context(isa, threads);
  context.set_deterministic(how.determinism == Determinism::kEqualBits);
  if (how.way.backend != nullptr) context.set_attention_backend(*how.way.backend);
  const AttentionCase& c = problem.c;
  const auto gradient = [&](std::int64_t rows, std::int64_t columns, std::int64_t others) {
    if (problem.aligned()) return TestTensor(DType::kF32, {rows, columns + 4 * others}, 0);
    return TestTensor(DType::kF32, {rows, columns + others});
  };
  Gradients g{gradient(problem.q_rows(), c.heads * c.head_dim, 2),
              gradient(problem.kv_rows(), c.kv_heads * c.head_dim, 1),
              gradient(problem.kv_rows(), c.kv_heads * c.value_dim, 0)};
  const TestTensor lse_TH = TestTensor::of(DType::kF32, {problem.q_rows(), c.heads}, lse);
  const TestTensor delta_TH = TestTensor::of(DType::kF32, {problem.q_rows(), c.heads}, delta);
  AttentionBackward args{heads(g.dq, c, c.heads),
                         heads(g.dk, c, c.kv_heads),
                         values(g.dv, c, c.kv_heads),
                         values(problem.d_o, c, c.heads),
                         problem.q(),
                         problem.k(),
                         problem.v(),
                         lse_TH,
                         delta_TH,
                         problem.mask(),
                         problem.scale()};
  args.dropout = problem.dropout();
  if (!how.written) {
    attention_backward(context, args);
    return g;
  }
  const auto to_write = [&](const TestTensor& sums) {
    return TestTensor(problem.dtype(), {sums.shape()[0], round_up(sums.shape()[1] + 8, 8)}, 0);
  };
  Gradients to{to_write(g.dq), to_write(g.dk), to_write(g.dv)};
  for (TestTensor* const tensor : {&g.dq, &g.dk, &g.dv, &to.dq, &to.dk, &to.dv})
    for (std::int64_t i = 0; i < tensor->shape().count(); ++i) tensor->set(i, NAN);
  args.written = {heads(to.dq, c, c.heads), heads(to.dk, c, c.kv_heads),
                  values(to.dv, c, c.kv_heads)};
  attention_backward(context, args);
  return to;
}

bool on_gpu() { return test_device::device().kind == DeviceKind::kCuda; }

bool on_hopper() {
  return on_gpu() && gpu_kernels().attention_sm90 != nullptr &&
         runs_sm90a(gpu::info(test_device::device().index));
}

namespace {

void expect_gradient(const ConstHeadsView& found, const std::vector<double>& expected,
                     Tolerance tolerance, const std::string& what) {
  const auto numbers = packed(found);
  const auto vanishes = [](double x) { return std::abs(x) < 1e-12; };
  if (!std::all_of(expected.begin(), expected.end(), vanishes)) {
    return expect_close(numbers, expected, tolerance, what);
  }
  // One key: dO.v and delta cancel, and what is left is their rounding.
  for (const double x : numbers) ASSERT_LE(std::abs(x), 1e-5) << what;
}

}  // namespace

void expect_same_bits_among_other_queries(Isa isa, const Problem& problem,
                                          const PositionRange& part) {
  const AttentionCase& c = problem.c;
  const Output all = run_forward(isa, 1, problem);
  Context context = test_context(isa);
  TestTensor o = random_rows(problem.rows, problem.dtype(), part.count,
                             c.heads * c.value_dim + (problem.aligned() ? 8 : 1), 9),
             lse(DType::kF32, {part.count, c.heads});
  attention_forward(context, {values(o, c, c.heads),
                              lse,
                              problem.q().rows(part.first, part.count),
                              problem.k(),
                              problem.v(),
                              {1, {&part, 1}, c.kv_ranges, {}},
                              problem.scale(),
                              {},
                              problem.dropout()});
  const auto row = static_cast<std::size_t>(c.heads) * sizeof(float);
  EXPECT_EQ(lse.bits(), all.lse.bits().substr(static_cast<std::size_t>(part.first) * row,
                                              static_cast<std::size_t>(part.count) * row));
  EXPECT_EQ(packed(values(std::as_const(o), c, c.heads)),
            packed(values(all.o, c, c.heads).rows(part.first, part.count)));
}

namespace {

void expect_output(const reference::AttentionOutput& expected, const Problem& problem,
                   const Output& out, const std::string& what) {
  const bool bf16 = problem.dtype() == DType::kBF16;
  const bool rounds = bf16 && on_gpu();
  const Tolerance o_tolerance =
      bf16 ? Tolerance{1.02 / 256, rounds ? 0.5 / 256 : 1e-5} : kSumTolerance;
  expect_close(o_values(problem, out), expected.o, o_tolerance, what + " o");
  expect_close(out.lse.values(), expected.lse, {2e-6, 2e-6}, what + " lse");
}

}  // namespace

void expect_output_of_reference(const Problem& problem, const Output& out,
                                const std::string& what) {
  expect_output(reference::attention_forward(problem.c), problem, out, what);
}

void expect_equal_to_reference(Isa isa, int threads, const Problem& problem,
                               const std::string& what) {
  const auto expected = reference::attention_forward(problem.c);
  expect_output(expected, problem, run_forward(isa, threads, problem), what);
  expect_gradients_of_reference(isa, threads, problem, what);
}

void expect_gradients_of_reference(Isa isa, int threads, const Problem& problem,
                                   const std::string& what, const Way& way) {
  const AttentionCase& c = problem.c;
  const auto expected = reference::attention_forward(c);
  const bool rounds = problem.dtype() == DType::kBF16 && on_gpu();
  const auto d_o = problem.d_o.values();
  const auto delta = reference::attention_delta(c, d_o, expected.o);
  const auto wanted = reference::attention_backward(c, d_o, expected.lse, delta);
  const Gradients g =
      run_backward(isa, threads, problem, expected.lse, delta, {Determinism::kEqualBits, way});
  const Tolerance tolerance = rounds ? Tolerance{1.02 / 256, 1.0 / 256} : kSumTolerance;
  expect_gradient(heads(std::as_const(g.dq), c, c.heads), wanted.dq, tolerance, what + " dq");
  expect_gradient(heads(std::as_const(g.dk), c, c.kv_heads), wanted.dk, tolerance, what + " dk");
  expect_gradient(values(std::as_const(g.dv), c, c.kv_heads), wanted.dv, tolerance, what + " dv");
  if (!on_gpu()) return;
  const Gradients faster =
      run_backward(isa, threads, problem, expected.lse, delta, {Determinism::kNone, way});
  expect_gradient(heads(std::as_const(faster.dq), c, c.heads), wanted.dq, tolerance,
                  what + " dq by atomics");
  EXPECT_TRUE(faster.dk.bits() == g.dk.bits()) << what;
  EXPECT_TRUE(faster.dv.bits() == g.dv.bits()) << what;
}

}  // namespace trireme::attention_testing
