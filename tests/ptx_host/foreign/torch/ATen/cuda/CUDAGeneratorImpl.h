#pragma once
// The state of PyTorch's generator that FlashAttention-2's parameters hold. Dropout is off here.
#include <cstdint>

namespace at {
struct PhiloxCudaState {
  std::uint64_t seed = 0, offset = 0;
};
}  // namespace at
