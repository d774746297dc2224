#include "comm/gpu_channel.h"

#include <algorithm>

namespace trireme {

std::int64_t nccl_bytes(int axes, std::int64_t max_ctas) {
  constexpr std::int64_t kBlocksMost = 24, kBytesOfBlock = std::int64_t{9728} << 10;
  const std::int64_t blocks = max_ctas > 0 ? std::min(max_ctas, kBlocksMost) : kBlocksMost;
  return axes * blocks * kBytesOfBlock;
}

}  // namespace trireme
