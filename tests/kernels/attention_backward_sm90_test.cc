// The backward pass for Hopper, forced: tiles of keys and queries that are whole, cut, masked in
// part or not seen at all, beside the reference and beside the kernels for any GPU.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/attention/attention_internal.h"
#include "kernels/attention_support.h"
#include "kernels/common/gpu_kernels.h"

namespace trireme {
namespace {

using namespace attention_testing;
using attention_internal::OwnKernel;

/// Our own attention, of which the backward pass is by one kernel.
template <OwnKernel kKernel>
const AttentionBackend kForced = [] {
  AttentionBackend backend = own_attention;
  backend.backward = [](Context& context, const AttentionShape& shape,
                        const AttentionBackward& args) {
    attention_internal::backward_by(context, shape, args, kKernel);
  };
  return backend;
}();

/// Heads in rows as TMA takes them, between other columns; on_sides: [B * T, those of a row].
TestTensor rows_of_heads(std::int64_t tokens, std::int64_t columns, std::uint64_t seed) {
  constexpr std::int64_t kOthers = 16;
  TestTensor rows(DType::kBF16, {tokens, columns + kOthers}, 0);
  const std::vector<double> values =
      TestTensor::random(DType::kBF16, {tokens, columns + kOthers}, seed).values();
  for (std::size_t i = 0; i < values.size(); ++i) rows.set(static_cast<std::int64_t>(i), values[i]);
  return rows;
}

class Operands {
 public:
  Operands(const Sizes& sizes, std::vector<PositionRange> q_ranges,
           std::vector<PositionRange> kv_ranges)
      : c{sizes.sequences,
          sizes.heads,
          sizes.kv_heads,
          sizes.head_dim,
          std::move(q_ranges),
          std::move(kv_ranges),
          {},
          static_cast<float>(1.5 / std::sqrt(static_cast<double>(sizes.head_dim))),
          {},
          {},
          {}},
        q_(rows_of_heads(q_rows(), c.heads * c.head_dim, 1)),
        k_(rows_of_heads(kv_rows(), c.kv_heads * c.head_dim, 2)),
        v_(rows_of_heads(kv_rows(), c.kv_heads * c.head_dim, 3)),
        d_o_(rows_of_heads(q_rows(), c.heads * c.head_dim, 4)),
        first_key_(DType::kI32, {q_rows()}) {
    c.q = packed(view(q_, c.heads));
    c.k = packed(view(k_, c.kv_heads));
    c.v = packed(view(v_, c.kv_heads));
  }

  void set_documents(std::int64_t length) {
    std::int64_t row = 0;
    c.first_key.clear();
    for (std::int64_t b = 0; b < c.sequences; ++b)
      for (const PositionRange& range : c.q_ranges)
        for (std::int64_t i = 0; i < range.count; ++i) {
          const std::int64_t first = (range.first + i + 3 * b) / length * length;
          first_key_.set(row++, static_cast<double>(first));
          c.first_key.push_back(static_cast<std::int32_t>(first));
        }
  }

  void compute_reference() {
    const reference::AttentionOutput out = reference::attention_forward(c);
    const std::vector<double> d_o = packed(view(d_o_, c.heads));
    lse_ = out.lse;
    delta_ = reference::attention_delta(c, d_o, out.o);
    wanted = reference::attention_backward(c, d_o, lse_, delta_);
  }

  /// Added to what stands in dq, dk and dv: `before` everywhere.
  [[nodiscard]] Gradients run(Isa isa, const AttentionBackend& backend, Determinism determinism,
                              double before = 0) const {
    Context context = test_context(isa);
    context.set_attention_backend(backend);
    context.set_deterministic(determinism == Determinism::kEqualBits);
    const auto gradient = [&](std::int64_t rows, std::int64_t columns, std::int64_t others) {
      TestTensor tensor(DType::kF32, {rows, columns + others}, 0);
      if (before != 0)
        for (std::int64_t i = 0; i < rows * (columns + others); ++i) tensor.set(i, before);
      return tensor;
    };
    Gradients g{gradient(q_rows(), c.heads * c.head_dim, 4),
                gradient(kv_rows(), c.kv_heads * c.head_dim, 8),
                gradient(kv_rows(), c.kv_heads * c.head_dim, 0)};
    const TestTensor lse = TestTensor::of(DType::kF32, {q_rows(), c.heads}, lse_);
    const TestTensor delta = TestTensor::of(DType::kF32, {q_rows(), c.heads}, delta_);
    const AttentionMask mask{c.sequences, c.q_ranges, c.kv_ranges,
                             c.first_key.empty() ? ConstTensorView() : first_key_.view(), c.window};
    attention_backward(
        context, {heads(g.dq, c, c.heads), heads(g.dk, c, c.kv_heads), heads(g.dv, c, c.kv_heads),
                  view(d_o_, c.heads), view(q_, c.heads), view(k_, c.kv_heads),
                  view(v_, c.kv_heads), lse, delta, mask, static_cast<float>(c.scale)});
    return g;
  }

  void expect_equal_to_reference(Isa isa, Determinism determinism, const std::string& what) {
    compute_reference();
    const Gradients g = run(isa, kForced<OwnKernel::kHopper>, determinism);
    expect_gradient(heads(std::as_const(g.dq), c, c.heads), wanted.dq, what + " dq");
    expect_gradient(heads(std::as_const(g.dk), c, c.kv_heads), wanted.dk, what + " dk");
    expect_gradient(heads(std::as_const(g.dv), c, c.kv_heads), wanted.dv, what + " dv");
  }

  AttentionCase c;
  reference::AttentionGradients wanted;

 private:
  [[nodiscard]] std::int64_t q_rows() const { return c.sequences * c.q_tokens(); }
  [[nodiscard]] std::int64_t kv_rows() const { return c.sequences * c.kv_tokens(); }
  [[nodiscard]] ConstHeadsView view(const TestTensor& rows, std::int64_t count) const {
    return heads_of(rows.view(), 8, count, c.head_dim);
  }
  static void expect_gradient(const ConstHeadsView& found, const std::vector<double>& expected,
                              const std::string& what) {
    const std::vector<double> values = packed(found);
    const auto vanishes = [](double x) { return std::abs(x) < 1e-12; };
    if (!std::all_of(expected.begin(), expected.end(), vanishes))
      return expect_close(values, expected, {1.02 / 256, 1.0 / 256}, what);
    for (const double x : values) ASSERT_LE(std::abs(x), 1e-5) << what;  // dO.v and delta cancel
  }

  TestTensor q_, k_, v_, d_o_, first_key_;
  std::vector<double> lse_, delta_;
};

class AttentionBackwardSm90 : public OpTest {
 protected:
  void SetUp() override {
    if (!on_gpu() || gpu_kernels().attention_backward_sm90 == nullptr)
      GTEST_SKIP() << "Hopper's kernels";
  }
};
TRIREME_FOR_ALL_ISAS(AttentionBackwardSm90);

TEST_P(AttentionBackwardSm90, equals_the_reference_for_causal_sequences_of_any_length) {
  for (const std::int64_t head_dim : {64, 128})
    for (const std::int64_t tokens : {1, 63, 64, 129, 300}) {
      Operands operands({tokens < 64 ? 2 : 1, 1, 1, head_dim}, {{0, tokens}}, {{0, tokens}});
      operands.expect_equal_to_reference(
          GetParam(), Determinism::kNone,
          "D" + std::to_string(head_dim) + " T" + std::to_string(tokens));
    }
}

}  // namespace
}  // namespace trireme
