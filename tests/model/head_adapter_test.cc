// An adapter beside the head in several chunks of tokens, as in one, which other tests have beside
// float64.

#include <gtest/gtest.h>

#include <algorithm>

#include "model/head.h"
#include "model/model_ranks.h"
#include "support/program_device.h"
#include "tensor/buffer.h"
#include "tensor/transfer.h"

namespace trireme {
namespace {

constexpr std::int64_t kVocabulary = 37, kRows = 48, kHidden = 5, kRanks = 3, kTokens = 54;

struct Case {
  DType compute = DType::kF32;
  bool magnitudes = false, dropout = false;
};

/// The gradients of n, A, B and magnitudes, each in f32.
struct Gradients4 {
  std::vector<float> n, a, b, m;
  double loss = 0;
};

class HeadAdapterRun {
 public:
  explicit HeadAdapterRun(const Case& of) : of_(of), context_(program_device(), 1, detect_isa()) {}

  Gradients4 run(std::int64_t chunk) {
    HeadShape shape{kVocabulary, kTokens, of_.compute, {}, program_device().kind};
    shape.adapter = {kHidden, kRanks, of_.magnitudes, of_.dropout, true};
    ArenaCursor measure;
    lay_out_head(measure, shape);
    const Memory memory(program_device(), measure.bytes());
    ArenaCursor arena(memory.data());
    HeadBuffers buffers = lay_out_head(arena, shape);
    buffers.logits_TV = buffers.logits_TV.rows(0, chunk);

    const Buffer n = filled({kTokens, kHidden}, 1, 2), weight = rows_of({kRows, kHidden}, 2),
                 a = filled({kRanks, kHidden}, 3, 1), b = rows_of({kRows, kRanks}, 4),
                 m = filled({kVocabulary}, 5, 1);
    HeadLoss args{n.view(), weight.view(), targets_.view(), {0, kVocabulary}, loss_.view()};
    args.adapter.a_RK = a.view();
    args.adapter.parts[0].b_NR = b.view();
    if (of_.magnitudes) args.adapter.parts[0].magnitude_N = m.view();
    args.adapter.count = 1;
    args.adapter.outputs = kRows;
    args.adapter.scale = 0.75F;
    args.adapter.dropout = {17, kHidden};
    if (of_.dropout) args.dropout = {0.25, numbers_.view()};

    const Buffer da = f32({kRanks, kHidden}), db = f32({kRows, kRanks}), dm = f32({kVocabulary});
    HeadTraining training{{}, Accumulate::kNo, scale_.view()};
    training.adapter.a_RK = {da.view(), Accumulate::kNo};
    training.adapter.parts[0] = {{db.view(), Accumulate::kNo}, 0, {}};
    if (of_.magnitudes) training.adapter.parts[0].magnitude_N = dm.view();
    training.adapter.count = 1;
    training.adapter.outputs = kRows;
    training.adapter.dropout = args.adapter.dropout;
    head_loss(context_, TensorAxis(), buffers, args, &training);
    Gradients4 found{read(context_, n.view()), read(context_, da.view()), read(context_, db.view()),
                     read(context_, dm.view())};
    copy_out(context_, std::as_writable_bytes(std::span(&found.loss, 1)), loss_.view());
    return found;
  }

 private:
  Buffer f32(const Shape& shape) { return {DType::kF32, shape, program_device()}; }
  Buffer filled(const Shape& shape, std::uint64_t seed, double scale) {
    Buffer buffer(of_.compute, shape, program_device());
    write(context_, buffer.view(), numbers(static_cast<std::size_t>(shape.count()), seed, scale));
    return buffer;
  }
  /// Zeros behind those of the vocabulary.
  Buffer rows_of(const Shape& shape, std::uint64_t seed) {
    Buffer buffer(of_.compute, shape, program_device());
    reference::Values values = numbers(static_cast<std::size_t>(kVocabulary * shape[1]), seed, 1);
    values.resize(static_cast<std::size_t>(shape.count()));
    write(context_, buffer.view(), values);
    return buffer;
  }
  template <class F>
  Buffer ints(const Shape& shape, const F& value) {
    Buffer buffer(DType::kI32, shape, program_device());
    std::vector<std::int32_t> values;
    for (std::int32_t i = 0; i < shape.count(); ++i) values.push_back(value(i));
    copy_in(context_, buffer.view(), std::as_bytes(std::span(values)));
    return buffer;
  }
  Buffer one() {
    Buffer buffer = f32({1});
    write(context_, buffer.view(), {0.125});
    return buffer;
  }

  const Case of_;
  Context context_;
  const Buffer targets_ = ints({kTokens}, [](std::int32_t t) { return t * 11 % 37; }),
               numbers_ = ints({kTokens, 2}, [](std::int32_t i) { return i % 2 == 0 ? 3 : i; }),
               scale_ = one(), loss_{DType::kF64, {1}, program_device()};
};

void expect_near(const std::vector<float>& found, const std::vector<float>& expected,
                 double limit) {
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    worst = std::max(worst, std::abs(double{found[i]} - double{expected[i]}));
  }
  EXPECT_LE(worst, limit * largest);
}

TEST(HeadAdapter, several_chunks_are_one) {
  for (const Case& of : {Case{}, Case{DType::kF32, true, false}, Case{DType::kF32, false, true},
                         Case{DType::kF32, true, true}, Case{DType::kBF16, false, false},
                         Case{DType::kBF16, true, true}}) {
    SCOPED_TRACE(fmt::format("{}{}{}", name_of(of.compute), of.magnitudes ? ", magnitudes" : "",
                             of.dropout ? ", dropout" : ""));
    const Gradients4 whole = HeadAdapterRun(of).run(kTokens), parts = HeadAdapterRun(of).run(16);
    const double limit = of.compute == DType::kF32 ? 1e-6 : 1e-2;
    EXPECT_NEAR(parts.loss, whole.loss, limit * whole.loss);
    expect_near(parts.n, whole.n, limit);
    expect_near(parts.a, whole.a, limit);
    expect_near(parts.b, whole.b, limit);
    expect_near(parts.m, whole.m, limit);
    const auto padding = parts.b.begin() + kVocabulary * kRanks;
    EXPECT_EQ(std::count(padding, parts.b.end(), 0.0F), parts.b.end() - padding);
    EXPECT_EQ(std::any_of(parts.m.begin(), parts.m.end(), [](float m) { return m != 0; }),
              of.magnitudes);
  }
}

}  // namespace
}  // namespace trireme
