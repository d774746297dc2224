#include "kernels/common/activation.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/gelu/gelu_table.h"

namespace trireme::cuda {
namespace {

constexpr int kTurns = 4;

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
          out.at[k] = from_float<T>(to_float(in.dact.at[k]) * gelu_slope(to_float(in.x.at[k])));
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
