#include "kernels/common/sigmoid.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/gelu/gelu_table.h"

namespace trireme::cuda {
namespace {

constexpr int kTurns = 4;
constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308F;
constexpr float kCubic = 0.044715F;

/// 0.5 (1 + tanh u) = sigmoid(2u), which does not cancel where tanh is near -1.
__device__ __forceinline__ float twice_u(float x) {
  return kTwiceSqrtTwoOverPi * fmaf(kCubic * (x * x), x, x);
}
__device__ __forceinline__ float gelu(float x) { return x * sigmoid(twice_u(x)); }

/// gelu' = s + x s (1 - s) (2u)',  s = sigmoid(2u)
__device__ __forceinline__ float slope(float x) {
  // Beyond +-64 the slope is 0 or 1 for all the digits there are; x^3 must not overflow to 0 * inf.
  // Not fminf, which would take 64 for a NaN.
  const float c = x > 64.0F ? 64.0F : x < -64.0F ? -64.0F : x;
  const float s = sigmoid(twice_u(c));
  const float du = kTwiceSqrtTwoOverPi * fmaf(3 * kCubic * c, c, 1.0F);
  return fmaf(c * du, s * (1.0F - s), s);
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kTurnThreads)
    forward_kernel(T* act, const T* x, std::int64_t items) {
  for_each_item<kTurns>(
      items, [&](std::int64_t i) { return load<kWidth>(x + i * kWidth); },
      [&](std::int64_t i, const Vector<T, kWidth>& in) {
        Vector<T, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) out.at[k] = from_float<T>(gelu(to_float(in.at[k])));
        store(act + i * kWidth, out);
      });
}

template <class T, int kWidth>
struct Gradient {
  Vector<T, kWidth> x, dact;
};

/// act may be null.
template <int kWidth, class T>
__global__ void __launch_bounds__(kTurnThreads)
    backward_kernel(T* dx, T* act, const T* dact, const T* x, std::int64_t items) {
  for_each_item<kTurns / 2>(
      items,
      [&](std::int64_t i) {
        return Gradient<T, kWidth>{load<kWidth>(x + i * kWidth), load<kWidth>(dact + i * kWidth)};
      },
      [&](std::int64_t i, const Gradient<T, kWidth>& in) {
        Vector<T, kWidth> out;
        if (act != nullptr) {
#pragma unroll
          for (int k = 0; k < kWidth; ++k) out.at[k] = from_float<T>(gelu(to_float(in.x.at[k])));
          store(act + i * kWidth, out);
        }
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          out.at[k] = from_float<T>(to_float(in.dact.at[k]) * slope(to_float(in.x.at[k])));
        store(dx + i * kWidth, out);
      });
}

void forward(const GeluForwardArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    auto* act = static_cast<T*>(args.act);
    const auto* x = static_cast<const T*>(args.x);
    for_vectors_and_rest<kWide<T>>(
        args.count, aligned_to_16(act, x), [&](auto width, std::int64_t first, std::int64_t items) {
          launch(forward_kernel<decltype(width)::value, T>,
                 config_of_turns(args.exec, kTurns, items, "gelu_forward"), act + first, x + first,
                 items);
        });
  });
}

void backward(const GeluBackwardArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    auto *dx = static_cast<T*>(args.dx), *act = static_cast<T*>(args.act);
    const auto *dact = static_cast<const T*>(args.dact), *x = static_cast<const T*>(args.x);
    for_vectors_and_rest<kWide<T>>(
        args.count, aligned_to_16(dx, act, dact, x),
        [&](auto width, std::int64_t first, std::int64_t items) {
          launch(backward_kernel<decltype(width)::value, T>,
                 config_of_turns(args.exec, kTurns / 2, items, "gelu_backward"), dx + first,
                 act == nullptr ? nullptr : act + first, dact + first, x + first, items);
        });
  });
}

}  // namespace

const GeluKernels gelu_cuda = {forward, backward};

}  // namespace trireme::cuda
