// The head and the loss in several chunks of tokens, the vocabulary shared out unevenly over 1, 2
// and 3 tensor-parallel ranks, beside float64 and its finite differences.

#include <gtest/gtest.h>

#include <algorithm>

#include "model/head.h"
#include "model/model_ranks.h"
#include "support/program_device.h"
#include "tensor/buffer.h"
#include "tensor/transfer.h"

namespace trireme {
namespace {

constexpr std::int64_t kVocabulary = 37, kHidden = 5;
constexpr std::int64_t kTokens = 54, kChunk = 16;  // the last chunk is a short one
constexpr double kScale = 0.125, kBefore = 0.5;

struct HeadReference {
  reference::Values n, weight, dn, dweight;
  reference::Batch batch;
  double loss_sum = 0;
};

const HeadReference& head_reference() {
  static HeadReference r;
  if (!r.n.empty()) return r;
  r.n = numbers(kTokens * kHidden, 1, 2);
  r.weight = numbers(kVocabulary * kHidden, 2, 2);
  r.batch = random_batch(1, kTokens, kVocabulary, false);
  /// Of tokens [first, first + count).
  const auto loss_of = [&](std::int64_t first, std::int64_t count) {
    reference::Architecture model;
    model.vocabulary = kVocabulary;
    reference::Batch part;
    part.targets.assign(r.batch.targets.begin() + first, r.batch.targets.begin() + first + count);
    reference::Values logits;
    for (std::int64_t t = first; t < first + count; ++t) {
      for (std::int64_t v = 0; v < kVocabulary; ++v) {
        double sum = 0;
        for (std::int64_t c = 0; c < kHidden; ++c)
          sum += r.n[static_cast<std::size_t>(t * kHidden + c)] *
                 r.weight[static_cast<std::size_t>(v * kHidden + c)];
        logits.push_back(sum);
      }
    }
    return reference::loss_sum(model, logits, part);
  };
  r.loss_sum = loss_of(0, kTokens);
  r.dweight = reference::differences(r.weight, [&] { return kScale * loss_of(0, kTokens); });
  std::int64_t token = 0, read = 0;  // a token's loss depends on its own row alone
  r.dn = reference::differences(r.n, [&] {
    token = read++ / (2 * kHidden);
    return kScale * loss_of(token, 1);
  });
  return r;
}

struct HeadResult {
  Gathered dn;
  std::vector<float> dweight;                ///< all rows of the vocabulary
  std::vector<double> loss_sums, evaluated;  ///< of each rank
};

/// What one rank computes.
class HeadRank {
 public:
  HeadRank(const RankSetup& setup, Communicator& channel)
      : setup_(setup),
        rank_{channel.size(), channel.rank()},
        part_(vocabulary_part(kVocabulary, rank_)),
        context_(program_device(), 1, detect_isa()),
        tensor_(rank_.extent == 1 ? TensorAxis() : TensorAxis(channel, setup.sequence_parallel)),
        shape_{kVocabulary, kTokens, DType::kF32, rank_, program_device().kind},
        rows_(round_up(part_.valid, kVocabularyRowAlignment)) {
    ArenaCursor measure;
    lay_out_head(measure, shape_);
    memory_ = Memory(context_.device(), measure.bytes());
    ArenaCursor arena(memory_.data());
    buffers_ = lay_out_head(arena, shape_);
    buffers_.logits_TV = buffers_.logits_TV.rows(0, kChunk);
  }
  void run(const HeadReference& reference, HeadResult& result) {
    const std::int64_t first = part_.first * kHidden, count = part_.valid * kHidden;
    reference::Values mine(static_cast<std::size_t>(rows_ * kHidden));
    std::copy_n(reference.weight.begin() + first, count, mine.begin());
    const Buffer n = buffer(DType::kF32, {kTokens, kHidden}), loss = buffer(DType::kF64, {1}),
                 weight = buffer(DType::kF32, {rows_, kHidden}),
                 dweight = buffer(DType::kF32, {rows_, kHidden}), scale = buffer(DType::kF32, {1}),
                 targets = buffer(DType::kI32, {kTokens});
    const std::vector<std::int32_t> ids(reference.batch.targets.begin(),
                                        reference.batch.targets.end());
    copy_in(context_, targets.view(), std::as_bytes(std::span(ids)));
    write(context_, n.view(), reference.n);
    write(context_, weight.view(), mine);
    write(context_, scale.view(), {kScale});
    reference::Values before(mine.size());
    std::fill_n(before.begin(), count, kBefore);
    write(context_, dweight.view(), before);
    const HeadLoss args{n.view(), weight.view(), targets.view(), part_, loss.view()};

    const auto rank = static_cast<std::size_t>(rank_.index);
    head_loss(context_, tensor_, buffers_, args, nullptr);
    result.evaluated[rank] = value(loss);
    EXPECT_EQ(read(context_, n.view()), std::vector<float>(reference.n.begin(), reference.n.end()));
    const HeadTraining training{dweight.view(), Accumulate::kYes, scale.view()};
    head_loss(context_, tensor_, buffers_, args, &training);
    result.loss_sums[rank] = value(loss) - result.evaluated[rank];  // it has been added

    const std::vector<float> rows = read(context_, dweight.view());
    EXPECT_EQ(std::count(rows.begin() + count, rows.end(), 0.0F), std::ssize(rows) - count)
        << "the padding's gradients";
    std::copy_n(rows.begin(), count, result.dweight.begin() + first);
    add_stream(result, n);
  }

 private:
  Buffer buffer(DType dtype, Shape shape) { return {dtype, shape, context_.device()}; }
  double value(const Buffer& loss) {
    double sum = 0;
    copy_out(context_, std::as_writable_bytes(std::span(&sum, 1)), loss.view());
    return sum;
  }
  void add_stream(HeadResult& result, const Buffer& n) {
    result.dn.add_stream("dn", rank_, setup_, read(context_, tensor_.residual_rows(n.view())));
  }

  const RankSetup& setup_;
  const AxisRank rank_;
  const VocabularyPart part_;
  Context context_;
  const TensorAxis tensor_;
  const HeadShape shape_;
  const std::int64_t rows_;
  Memory memory_;
  HeadBuffers buffers_;
};

TEST(HeadRanks, loss_and_gradients_equal_float64) {
  const HeadReference& reference = head_reference();
  for (const RankSetup& setup : setups()) {
    SCOPED_TRACE(setup.text());
    HeadResult result;
    const auto ranks = static_cast<std::size_t>(setup.ranks);
    result.loss_sums.resize(ranks);
    result.evaluated.resize(ranks);
    result.dweight.resize(kVocabulary * kHidden);
    on_threads(
        setup.ranks,
        [&](Communicator& channel) { HeadRank(setup, channel).run(reference, result); },
        setup.shares_memory);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      EXPECT_NEAR(result.evaluated[rank], reference.loss_sum, 1e-6 * reference.loss_sum);
      EXPECT_NEAR(result.loss_sums[rank], result.evaluated[rank], 1e-12 * reference.loss_sum);
      EXPECT_EQ(result.evaluated[rank], result.evaluated[0]);
    }
    reference::Values dweight = reference.dweight;
    for (double& value : dweight) value += kBefore;
    expect_near(result.dweight, dweight, 2e-6, "dweight");
    expect_near(result.dn.tensor("dn"), reference.dn, 2e-6, "dn");
  }
}

}  // namespace
}  // namespace trireme
