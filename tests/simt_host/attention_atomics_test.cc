// Which of attention's backward passes a GPU runs: they give the same numbers, but only one of them
// adds atomically.

#include <gtest/gtest.h>

#include <random>

#include "kernels/attention/attention_internal.h"
#include "kernels/simt_host/runtime.h"
#include "simt_host/device_array.h"

namespace trireme::simt_cases {
namespace {

class AttentionAtomics : public testing::Test {
 protected:
  void TearDown() override { simt::options() = {}; }

  /// How many floats a backward pass over 20 tokens adds atomically.
  static std::uint64_t count(DType dtype, std::int64_t head_dim, bool deterministic,
                             const AttentionBackend& backend = attention_internal::mma_attention) {
    constexpr std::int64_t kTokens = 20;
    const auto elements = static_cast<std::size_t>(kTokens * head_dim);
    const std::size_t size = size_of(dtype);
    const DeviceArray<std::uint8_t> in(std::vector<std::uint8_t>(elements * size));
    const DeviceArray<float> out(std::vector<float>(3 * elements)),
        rows(std::vector<float>(std::size_t{kTokens}));
    const ConstHeadsView q{
        reinterpret_cast<const std::byte*>(in.data()), dtype, kTokens, 1, head_dim, head_dim};
    const auto gradient = [&](std::size_t i) {
      return HeadsView{reinterpret_cast<std::byte*>(out.data() + i * elements),
                       DType::kF32,
                       kTokens,
                       1,
                       head_dim,
                       head_dim};
    };
    const ConstTensorView lse{
        reinterpret_cast<const std::byte*>(rows.data()), DType::kF32, {kTokens, 1}};
    const PositionRange range{0, kTokens};
    Context context({DeviceKind::kCuda, 0}, 1, Isa::kAvx2);
    context.set_attention_backend(backend);
    if (!deterministic) context.set_deterministic(false);
    simt::stats() = {};
    attention_backward(context, {gradient(0),
                                 gradient(1),
                                 gradient(2),
                                 q,
                                 q,
                                 q,
                                 q,
                                 lse,
                                 lse,
                                 {1, {&range, 1}, {&range, 1}, {}},
                                 1});
    context.synchronize();
    return simt::stats().float_atomics;
  }
};

TEST_F(AttentionAtomics, there_are_none_unless_a_context_allows_them) {
  for (const std::int64_t head_dim : {32, 64, 80, 96, 128, 256}) {
    EXPECT_EQ(count(DType::kBF16, head_dim, true), 0U) << head_dim;
    // Each block of 128 keys adds once to each number that stands in dq.
    const std::uint64_t expected = 20U * static_cast<std::uint64_t>(head_dim);
    EXPECT_EQ(count(DType::kBF16, head_dim, false), expected) << head_dim;
    EXPECT_EQ(count(DType::kF32, head_dim, false), 0U) << head_dim;
  }
}

/// Its blocks add all gradients by bulk reductions, to dq in turns where bits have to be equal.
TEST_F(AttentionAtomics, hoppers_kernel_adds_each_gradient_once) {
  for (const std::int64_t head_dim : {64, 128})
    for (const bool deterministic : {true, false})
      EXPECT_EQ(count(DType::kBF16, head_dim, deterministic, own_attention),
                3U * 20U * static_cast<std::uint64_t>(head_dim));
}

TEST_F(AttentionAtomics, a_gpu_with_little_shared_memory_stays_with_the_deterministic_kernels) {
  simt::options().max_smem_bytes = 101376;  // of sm_86 and sm_89
  EXPECT_EQ(count(DType::kBF16, 128, false), 0U);
  for (const std::int64_t head_dim : {64, 80, 96, 256})
    EXPECT_GT(count(DType::kBF16, head_dim, false), 0U) << head_dim;
}

/// dq of 500 tokens by Hopper's kernel: four blocks add to the rows of the last.
std::vector<float> dq_in_turns(int workers) {
  constexpr std::int64_t kTokens = 500, kDim = 64;
  constexpr auto kElements = static_cast<std::size_t>(kTokens * kDim);
  std::mt19937_64 random(7);
  std::vector<__nv_bfloat16> values(4 * kElements);
  for (auto& x : values) x = __float2bfloat16(float(random() % 2001) / 1000.0F - 1);
  const DeviceArray<__nv_bfloat16> in(values);
  const DeviceArray<float> out(std::vector<float>(3 * kElements)),
      rows(std::vector<float>(std::size_t{kTokens}, 5.0F));
  const auto operand = [&](std::size_t i) {
    return ConstHeadsView{reinterpret_cast<const std::byte*>(in.data() + i * kElements),
                          DType::kBF16,
                          kTokens,
                          1,
                          kDim,
                          kDim};
  };
  const auto gradient = [&](std::size_t i) {
    return HeadsView{reinterpret_cast<std::byte*>(out.data() + i * kElements),
                     DType::kF32,
                     kTokens,
                     1,
                     kDim,
                     kDim};
  };
  const ConstTensorView lse{
      reinterpret_cast<const std::byte*>(rows.data()), DType::kF32, {kTokens, 1}};
  const PositionRange range{0, kTokens};
  Context context({DeviceKind::kCuda, 0}, 1, Isa::kAvx2);
  context.set_attention_backend(attention_internal::wgmma_attention);
  simt::options().workers = workers;
  attention_backward(context, {gradient(0),
                               gradient(1),
                               gradient(2),
                               operand(0),
                               operand(1),
                               operand(2),
                               operand(3),
                               lse,
                               lse,
                               {1, {&range, 1}, {&range, 1}, {}},
                               0.1F});
  context.synchronize();
  std::vector<float> dq = out.values();
  dq.resize(kElements);
  return dq;
}

/// Blocks at the same time, each by a thread of the host: only their turns keep the order of sums.
TEST_F(AttentionAtomics, turns_keep_the_order_of_sums_where_blocks_run_at_the_same_time) {
  const std::vector<float> one = dq_in_turns(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(dq_in_turns(4) == one);
}

}  // namespace
}  // namespace trireme::simt_cases
