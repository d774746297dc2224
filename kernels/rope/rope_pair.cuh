#pragma once
// What RoPE's kernels share: elements that rotate together, and sums that an op rounds.

#include "kernels/common/vector.cuh"
#include "kernels/rope/rope_table.h"

namespace trireme::cuda {

struct Pair {
  float low, high;
};

__device__ __forceinline__ Pair rotate(Pair x, float cosine, float sine) {
  return {fmaf(-x.high, sine, __fmul_rn(x.low, cosine)),
          fmaf(x.low, sine, __fmul_rn(x.high, cosine))};
}

/// As T, to which sums are rounded.
template <class T, int kWidth, class In>
__device__ __forceinline__ Vector<T, kWidth> load_as(const In* from) {
  if constexpr (std::is_same_v<T, In>) {
    return load<kWidth>(from);
  } else {
    constexpr int kPart = kWide<In>;
    Vector<T, kWidth> rounded;
#pragma unroll
    for (int first = 0; first < kWidth; first += kPart) {
      const Vector<In, kPart> part = load<kPart>(from + first);
#pragma unroll
      for (int k = 0; k < kPart; ++k) rounded.at[first + k] = from_float<T>(part.at[k]);
    }
    return rounded;
  }
}
/// call(T(), In()): of an op's tensors, and of sums that it rounds.
template <class F>
void for_types(DType type, DType in, const F& call) {
  for_type(type, [&](auto of) {
    using T = decltype(of);
    if constexpr (sizeof(T) < sizeof(float)) {
      if (in == DType::kF32) return call(of, float());
    }
    call(of, of);
  });
}

void rope_backward_codes(const RopeCodesArgs& args);

}  // namespace trireme::cuda
