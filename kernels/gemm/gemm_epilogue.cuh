#pragma once
// What is done with a product's sums, written once for all main loops.
//
// A main loop computes a tile of op(a) op(b) in f32 registers and hands every sum to an epilogue,
// two neighbours of a row at a time. It calls
//   E::column(column)                      once for a pair of columns: what those two need (bias)
//   E::operator()(row, column, state, y)   for each row
// with an even column, only for rows and columns that exist. Columns of a dual epilogue are those
// of its result; it gets the sums of both products.

#include "kernels/common/activation.cuh"
#include "kernels/common/vector.cuh"

namespace trireme::cuda {

/// Two neighbouring elements of a row of `columns`; the second may not exist.
struct PairAt {
  std::int64_t index;
  bool both, whole;  ///< whole: may move as one access
};

template <class T>
__device__ __forceinline__ float2 load_pair(const T* from, PairAt at) {
  if (at.whole) {
    const Vector<T, 2> pair = load<2>(from + at.index);
    return {to_float(pair.at[0]), to_float(pair.at[1])};
  }
  return {to_float(from[at.index]), at.both ? to_float(from[at.index + 1]) : 0.0F};
}
template <class T>
__device__ __forceinline__ void store_pair(T* to, PairAt at, float2 value) {
  if (at.whole) {
    Vector<T, 2> pair;
    pair.at[0] = from_float<T>(value.x);
    pair.at[1] = from_float<T>(value.y);
    store(to + at.index, pair);
    return;
  }
  to[at.index] = from_float<T>(value.x);
  if (at.both) to[at.index + 1] = from_float<T>(value.y);
}
/// As if stored and loaded again: where an unfused sequence would round.
template <class T>
__device__ __forceinline__ float2 rounded(float2 value) {
  return {to_float(from_float<T>(value.x)), to_float(from_float<T>(value.y))};
}

template <class... P>
bool aligned_to_pairs(std::size_t element_bytes, const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % (2 * element_bytes) == 0) && ...);
}

/// y = sum + bias, where there is one.
template <class T>
struct BiasRow {
  const T* bias;  ///< may be null
  std::int64_t columns;
  bool pairs;  ///< rows begin at whole pairs, in all operands

  __device__ __forceinline__ PairAt at(std::int64_t row, std::int64_t column) const {
    return {row * columns + column, column + 1 < columns, pairs};
  }
  __device__ __forceinline__ float2 column(std::int64_t column) const {
    return bias == nullptr ? float2{0.0F, 0.0F} : load_pair(bias, at(0, column));
  }
  __device__ __forceinline__ float2 add(float2 bias_of_columns, float2 sum) const {
    if (bias == nullptr) return sum;
    return {sum.x + bias_of_columns.x, sum.y + bias_of_columns.y};
  }
};

/// c = y, c += y, or c = y rounded, plus the residual.
template <class T, class C>
struct StoreEpilogue {
  static constexpr bool kDual = false;
  BiasRow<T> bias;
  C* c;
  const C* residual;  ///< may be null
  bool accumulate;

  __device__ __forceinline__ float2 column(std::int64_t column) const {
    return bias.column(column);
  }
  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column, float2 state,
                                             float2 sum) const {
    float2 y = bias.add(state, sum);
    const PairAt at = bias.at(row, column);
    if (accumulate) {
      const float2 before = load_pair(c, at);
      y = {before.x + y.x, before.y + y.y};
    } else if (residual != nullptr) {
      const float2 stored = rounded<C>(y), other = load_pair(residual, at);
      y = {stored.x + other.x, stored.y + other.y};
    }
    store_pair(c, at, y);
  }
};

/// saved = y, c = gelu(saved).
template <class T>
struct GeluEpilogue {
  static constexpr bool kDual = false;
  BiasRow<T> bias;
  T *c, *saved;  ///< saved may be null

  __device__ __forceinline__ float2 column(std::int64_t column) const {
    return bias.column(column);
  }
  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column, float2 state,
                                             float2 sum) const {
    const float2 x = rounded<T>(bias.add(state, sum));
    const PairAt at = bias.at(row, column);
    if (saved != nullptr) store_pair(saved, at, x);
    store_pair(c, at, {gelu(x.x), gelu(x.y)});
  }
};

/// c = y gelu'(x); saved, where given, becomes gelu(x).
template <class T>
struct GeluBackwardEpilogue {
  static constexpr bool kDual = false;
  BiasRow<T> bias;
  T *c, *saved;
  const T* x;

  __device__ __forceinline__ float2 column(std::int64_t column) const {
    return bias.column(column);
  }
  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column, float2 state,
                                             float2 sum) const {
    const float2 dact = rounded<T>(bias.add(state, sum));
    const PairAt at = bias.at(row, column);
    const float2 before = load_pair(x, at);
    if (saved != nullptr) store_pair(saved, at, {gelu(before.x), gelu(before.y)});
    store_pair(c, at, {dact.x * gelu_slope(before.x), dact.y * gelu_slope(before.y)});
  }
};

/// gate and up, the two products, into saved [m, 2 F]; c = gate sigmoid(gate) up.
template <class T>
struct SwigluEpilogue {
  static constexpr bool kDual = true;
  BiasRow<T> bias;  ///< of [2 F], by columns of c
  T *c, *saved;

  struct State {
    float2 gate, up;
  };
  __device__ __forceinline__ State column(std::int64_t column) const {
    if (bias.bias == nullptr) return {};
    const PairAt at = bias.at(0, column);
    return {load_pair(bias.bias, at), load_pair(bias.bias + bias.columns, at)};
  }
  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t column,
                                             const State& state, float2 gate_sum,
                                             float2 up_sum) const {
    const float2 gate = rounded<T>(bias.add(state.gate, gate_sum)),
                 up = rounded<T>(bias.add(state.up, up_sum));
    const PairAt at = bias.at(row, column);
    T* both = saved + row * bias.columns;  // rows are twice as long there
    store_pair(both, at, gate);
    store_pair(both + bias.columns, at, up);
    store_pair(c, at, {swiglu(gate.x, up.x), swiglu(gate.y, up.y)});
  }
};

}  // namespace trireme::cuda
