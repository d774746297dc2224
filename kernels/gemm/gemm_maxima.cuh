#pragma once
// The largest magnitudes of what an epilogue stores as c, for the product in fp8 that reads it.

#include "kernels/common/float8.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/gemm/gemm_epilogue.cuh"

namespace trireme::cuda {

/// An epilogue of which these are wanted: amax [kMaxima<E>], i32.
template <class E>
struct WithMaxima : E {
  std::int32_t* amax;
};

/// c's parts, which are outputs 0 and 2: the second is c's where one product makes three outputs.
template <class E>
inline constexpr int kMaxima = E::kOutputs == 3 && !E::kDual ? 2 : 1;

/// Passes values on. Their magnitudes' order is that of what is stored, which is rounded once.
template <class Sink, int kParts>
struct NotingSink {
  const Sink& sink;
  unsigned (&orders)[kParts];

  template <int kOutput>
  __device__ __forceinline__ void put(std::int64_t row, std::int64_t column, float2 value) const {
    constexpr bool kOfC = kOutput == 0 || (kOutput == 2 && kParts == 2);
    if constexpr (kOfC && Sink::template kTakes<kOutput>) {
      unsigned& order = orders[kOutput / 2];
      order = max(order, bits_of(value.x) << 1);
      if (sink.has(column + 1)) order = max(order, bits_of(value.y) << 1);
    }
    sink.template put<kOutput>(row, column, value);
  }
};

/// It has what it has found itself: beside the address of a local variable nvcc 13.0 takes an
/// epilogue's other addresses for local ones.
template <class E>
struct NotingEpilogue : E {
  mutable unsigned orders[kMaxima<E>] = {};

  template <class Sink, class... Of>
  __device__ __forceinline__ void operator()(const Sink& sink, std::int64_t row,
                                             std::int64_t column, const Of&... of) const {
    E::operator()(NotingSink<Sink, kMaxima<E>>{sink, orders}, row, column, of...);
  }
  /// Of a copy, which may have found more.
  __device__ __forceinline__ void gather(const NotingEpilogue& copy) const {
#pragma unroll
    for (int part = 0; part < kMaxima<E>; ++part)
      orders[part] = max(orders[part], copy.orders[part]);
  }
};

/// An epilogue E, and what a thread has found of it; of most, nothing.
template <class E>
struct OwnMaxima {
  const E& epilogue;
  __device__ __forceinline__ void leave() const {}
};
template <class E>
struct OwnMaxima<WithMaxima<E>> {
  std::int32_t* amax;
  NotingEpilogue<E> epilogue;

  __device__ __forceinline__ explicit OwnMaxima(const WithMaxima<E>& of)
      : amax(of.amax), epilogue{of} {}
  /// By whole warps.
  __device__ __forceinline__ void leave() const {
#pragma unroll
    for (int part = 0; part < kMaxima<E>; ++part) {
      const unsigned order = warp_max(epilogue.orders[part]);
      const auto stored = from_float<typename E::Out>(float_of_bits(order >> 1));
      if (threadIdx.x % 32 == 0)
        atomicMax(amax + part, static_cast<std::int32_t>(bits_of(to_float(stored))));
    }
  }
};

}  // namespace trireme::cuda
