#include "comm/rank_order_sum.h"

#include <algorithm>
#include <cstring>

namespace trireme {

namespace {
// Explicit vectors, because -O2 leaves such loops scalar. Lanes are elements: no sum crosses them.
using Lanes = float __attribute__((vector_size(16)));
constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(float);
constexpr std::size_t kBlock = 1024;  // 4 KiB: the running sum stays in the first-level cache

void add_to(float* sum, const float* terms, std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes a, b;
    std::memcpy(&a, sum + i, sizeof a);
    std::memcpy(&b, terms + i, sizeof b);
    a += b;
    std::memcpy(sum + i, &a, sizeof a);
  }
  for (; i < count; ++i) sum[i] += terms[i];
}
}  // namespace

void sum_in_rank_order(std::span<const float* const> sources, std::size_t count,
                       float* out) noexcept {
  alignas(16) float sum[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = std::min(kBlock, count - begin);
    std::memcpy(sum, sources[0] + begin, n * sizeof(float));
    for (const float* source : sources.subspan(1)) add_to(sum, source + begin, n);
    std::memcpy(out + begin, sum, n * sizeof(float));
  }
}

}  // namespace trireme
