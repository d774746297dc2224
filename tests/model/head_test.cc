// The head in more than one chunk of tokens, beside float64.
#include "model/head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "model/param_table.h"
#include "support/program_device.h"
#include "tensor/buffer.h"
#include "tensor/transfer.h"

namespace trireme {
namespace {

std::vector<float> random_values(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint64_t counter = 0;
  for (float& value : values)
    value = static_cast<float>(uniform_below(seed, 2001, &counter)) / 1000.0F - 1.0F;
  return values;
}

struct Reference {
  double loss = 0;
  std::vector<double> dn, dweight;
};

Reference head_in_float64(const std::vector<float>& n, const std::vector<float>& weight,
                          const std::vector<std::int32_t>& targets, std::int64_t vocabulary,
                          std::int64_t hidden, double scale) {
  Reference r{0, std::vector<double>(n.size()), std::vector<double>(weight.size())};
  std::vector<double> logits(static_cast<std::size_t>(vocabulary));
  for (std::size_t token = 0; token < targets.size(); ++token) {
    if (targets[token] < 0) continue;
    const float* x = n.data() + token * static_cast<std::size_t>(hidden);
    double maximum = -1e300, sum = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      double& logit = logits[static_cast<std::size_t>(v)];
      logit = 0;
      for (std::int64_t c = 0; c < hidden; ++c)
        logit += double{x[c]} * double{weight[static_cast<std::size_t>(v * hidden + c)]};
      maximum = std::max(maximum, logit);
    }
    for (const double logit : logits) sum += std::exp(logit - maximum);
    r.loss += maximum + std::log(sum) - logits[static_cast<std::size_t>(targets[token])];
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      const double share = std::exp(logits[static_cast<std::size_t>(v)] - maximum) / sum;
      const double d = scale * (share - (v == targets[token] ? 1 : 0));
      for (std::int64_t c = 0; c < hidden; ++c) {
        const auto of_weight = static_cast<std::size_t>(v * hidden + c);
        r.dn[token * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(c)] +=
            d * double{weight[of_weight]};
        r.dweight[of_weight] += d * double{x[c]};
      }
    }
  }
  return r;
}

/// Differs by at most 2e-5 of the largest value.
void expect_near(const std::vector<float>& found, const std::vector<double>& expected) {
  double largest = 0, worst = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i)
    worst = std::max(worst, std::abs(double{found[i]} - expected[i]));
  EXPECT_LE(worst, 2e-5 * largest);
}

TEST(Head, several_chunks_give_the_loss_and_gradients_of_all_tokens) {
  // The last chunk of each device is a short one, and the vocabulary has rows of padding.
  const std::int64_t vocabulary = 16'401, hidden = 8, tokens = 520;
  const Device device = program_device();
  const std::int64_t rows = round_up(vocabulary, kVocabularyRowAlignment);
  Context context(device, 2, detect_isa());
  const HeadShape shape{vocabulary, tokens, DType::kF32, {}, device.kind};
  const std::int64_t chunk = head_chunk_tokens(shape);
  ASSERT_LT(chunk, tokens);
  ASSERT_NE(tokens % chunk, 0);

  const std::vector<float> n = random_values(tokens * hidden, 1);
  std::vector<float> weight = random_values(vocabulary * hidden, 2);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(tokens));
  std::uint64_t counter = 0;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const auto id = uniform_below(3, static_cast<std::uint64_t>(vocabulary), &counter);
    targets[t] = t % 7 == 3 ? -1 : static_cast<std::int32_t>(id);
  }
  const float scale = 1.0F / 445;
  const Reference reference = head_in_float64(n, weight, targets, vocabulary, hidden, scale);

  const auto rank = [&](DType dtype, Shape size, const void* data, std::size_t bytes) {
    Buffer buffer(dtype, size, device);
    if (bytes > 0) copy_in(context, buffer.view(), {static_cast<const std::byte*>(data), bytes});
    return buffer;
  };
  weight.resize(static_cast<std::size_t>(rows * hidden));
  const Buffer n_TC = rank(DType::kF32, {tokens, hidden}, n.data(), n.size() * 4);
  const Buffer weight_VC = rank(DType::kF32, {rows, hidden}, weight.data(), weight.size() * 4);
  const Buffer targets_T = rank(DType::kI32, {tokens}, targets.data(), targets.size() * 4);
  const Buffer scale_1 = rank(DType::kF32, {1}, &scale, 4);
  const std::vector<float> garbage(weight.size(), 1e9F);
  const Buffer dweight_VC = rank(DType::kF32, {rows, hidden}, garbage.data(), garbage.size() * 4);
  const Buffer loss_sum = rank(DType::kF64, {1}, nullptr, 0);
  ArenaCursor measure;
  lay_out_head(measure, shape);
  const Memory memory(device, measure.bytes());
  ArenaCursor arena(memory.data());
  const HeadBuffers buffers = lay_out_head(arena, shape);
  EXPECT_EQ(buffers.logits_TV.shape[0], chunk);

  const HeadTraining training{dweight_VC.view(), Accumulate::kNo, scale_1.view()};
  head_loss(context, TensorAxis(), buffers,
            {n_TC.view(), weight_VC.view(), targets_T.view(), {0, vocabulary}, loss_sum.view()},
            &training);

  const auto out = [&](const Buffer& buffer) {
    std::vector<float> values(buffer.bytes() / 4);
    copy_out(context, std::as_writable_bytes(std::span(values)), buffer.view());
    return values;
  };
  double loss = 0;
  copy_out(context, std::as_writable_bytes(std::span(&loss, 1)), loss_sum.view());
  EXPECT_NEAR(loss, reference.loss, 1e-6 * reference.loss);
  expect_near(out(n_TC), reference.dn);
  std::vector<double> padded = reference.dweight;
  padded.resize(weight.size());
  expect_near(out(dweight_VC), padded);
}

TEST(Head, logits_of_a_gpu_in_bf16_take_the_place_of_their_gradient) {
  const HeadShape shape{50'257, 4096, DType::kBF16, {}, DeviceKind::kCuda};
  ArenaCursor measure;
  const HeadBuffers buffers = lay_out_head(measure, shape);
  EXPECT_EQ(buffers.logits_TV.dtype, DType::kBF16);
  EXPECT_EQ(buffers.logits_TV.shape[0], 2048);
  EXPECT_FALSE(buffers.dlogits_TV.given());
}

TEST(Head, a_cpu_keeps_the_logits_of_fewer_tokens) {
  const auto tokens = [](std::int64_t vocabulary, DeviceKind device) {
    return head_chunk_tokens({vocabulary, 4096, DType::kF32, {}, device});
  };
  EXPECT_EQ(tokens(50'257, DeviceKind::kCpu), 192);
  EXPECT_EQ(head_chunk_tokens({50'257, 4096, DType::kBF16, {}, DeviceKind::kCpu}), 512);
  EXPECT_EQ(tokens(50'257, DeviceKind::kCuda), 512);
  EXPECT_EQ(tokens(256, DeviceKind::kCpu), 2048);
  EXPECT_EQ(tokens(10'000, DeviceKind::kCpu), 384);
}

}  // namespace
}  // namespace trireme
