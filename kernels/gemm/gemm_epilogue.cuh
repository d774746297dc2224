#pragma once
// What follows a product's sums, written once for all main loops.
//
// A main loop computes a tile of op(a) op(b) in f32 registers and hands every sum to an epilogue E,
// two neighbours of a row at a time:
//   E::column(column)                                  once for two columns: their bias
//   E::load(row, column)                               for each row: what it reads there
//   E::operator()(sink, row, column, state, read, y)   for each row
// with an even column, only for rows and columns that exist. What is read is asked for in a call of
// its own, so that a main loop has many loads under way: kLoads pairs of rows and columns at a
// time. Columns of a dual epilogue (kDual) are those of its result; it gets the sums of both
// products. It writes through the sink: output 0 is c, the others what is saved. A sink may drop
// some: a kernel can call twice, but where what an output needs is read or dear (kTogether).
//
// What is absent (a bias, a residual) is -0, which added to any number leaves its bits: that costs
// an addition, where asking each time costs a branch.

#include "kernels/common/activation.cuh"
#include "kernels/common/vector.cuh"

namespace trireme::cuda {

/// Two neighbouring elements of a row of `columns`; the second may not exist.
struct PairAt {
  std::int64_t index;
  bool both, whole;  ///< whole: may move as one access
};

/// Not widened: what is under way takes the fewest registers.
template <class T>
__device__ __forceinline__ Vector<T, 2> load_pair(const T* from, PairAt at) {
  if (at.whole) return load<2>(from + at.index);
  return {from[at.index], at.both ? from[at.index + 1] : from_float<T>(0.0F)};
}
template <class T>
__device__ __forceinline__ float2 widened(Vector<T, 2> pair) {
  return {to_float(pair.at[0]), to_float(pair.at[1])};
}
/// Both by one conversion, where there is one.
template <class T>
__device__ __forceinline__ Vector<T, 2> narrowed(float2 value) {
  Vector<T, 2> pair;
  if constexpr (sizeof(T) == sizeof(bf16)) {
    const std::uint32_t word = pack(value.x, value.y);
    __builtin_memcpy(static_cast<void*>(pair.at), &word, sizeof word);
  } else {
    pair = {from_float<T>(value.x), from_float<T>(value.y)};
  }
  return pair;
}
template <class T>
__device__ __forceinline__ void store_pair(T* to, PairAt at, float2 value) {
  if (at.whole) return store(to + at.index, narrowed<T>(value));
  to[at.index] = from_float<T>(value.x);
  if (at.both) to[at.index + 1] = from_float<T>(value.y);
}
/// As if stored and loaded again: where an unfused sequence would round.
template <class T>
__device__ __forceinline__ float2 rounded(float2 value) {
  return widened(narrowed<T>(value));
}

template <class... P>
bool aligned_to_pairs(std::size_t element_bytes, const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % (2 * element_bytes) == 0) && ...);
}

/// Where outputs go: rows of `columns`, `stride` apart; null: not wanted.
template <class C>
struct Outputs {
  C* at[3];
  std::int64_t stride[3];
};

/// Straight to memory.
template <class C>
struct DirectSink {
  template <int kOutput>
  static constexpr bool kTakes = true;
  Outputs<C> outputs;
  std::int64_t columns;
  bool pairs;  ///< rows begin at whole pairs, in all operands

  __device__ __forceinline__ void put_missing(std::int64_t, std::int64_t) const {}
  __device__ __forceinline__ bool has(std::int64_t column) const { return column < columns; }
  template <int kOutput>
  __device__ __forceinline__ void put(std::int64_t row, std::int64_t column, float2 value) const {
    if (outputs.at[kOutput] == nullptr) return;
    store_pair(outputs.at[kOutput],
               {row * outputs.stride[kOutput] + column, column + 1 < columns, pairs}, value);
  }
};

inline constexpr float kAbsent = -0.0F;

/// y = sum + bias, where there is one.
template <class T>
struct BiasRow {
  const T* bias;  ///< may be null
  std::int64_t columns;
  bool pairs;  ///< as in DirectSink

  __device__ __forceinline__ PairAt at(std::int64_t row, std::int64_t column) const {
    return {row * columns + column, column + 1 < columns, pairs};
  }
  __device__ __forceinline__ float2 column(std::int64_t column) const {
    return bias == nullptr ? float2{kAbsent, kAbsent} : widened(load_pair(bias, at(0, column)));
  }
};
__device__ __forceinline__ float2 add(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

/// What an epilogue reads that reads nothing.
struct Nothing {};

/// c = sum.
template <class C>
struct PlainEpilogue {
  using Out = C;
  static constexpr bool kDual = false, kTogether = false;
  static constexpr int kOutputs = 1, kLoads = 16;

  __device__ __forceinline__ Nothing column(std::int64_t) const { return {}; }
  __device__ __forceinline__ Nothing load(std::int64_t, std::int64_t) const { return {}; }
  template <class Sink>
  __device__ __forceinline__ void operator()(const Sink& sink, std::int64_t row,
                                             std::int64_t column, Nothing, Nothing,
                                             float2 sum) const {
    sink.template put<0>(row, column, sum);
  }
};

/// c = y, c += y, or c = y rounded, plus the residual.
template <class T, class C>
struct StoreEpilogue {
  using Out = C;
  static constexpr bool kDual = false, kTogether = false;
  static constexpr int kOutputs = 1, kLoads = 16;
  BiasRow<T> bias;
  const C* accumulated;  ///< c, which is f32, or null
  const C* residual;     ///< may be null

  __device__ __forceinline__ bool is_plain() const { return only_adds() && !accumulates(); }
  /// c = sum or c += sum.
  __device__ __forceinline__ bool only_adds() const {
    return bias.bias == nullptr && residual == nullptr;
  }
  __device__ __forceinline__ bool accumulates() const { return accumulated != nullptr; }
  __device__ __forceinline__ PlainEpilogue<C> plain() const { return {}; }
  __device__ __forceinline__ float2 column(std::int64_t column) const {
    return bias.column(column);
  }
  __device__ __forceinline__ Vector<C, 2> load(std::int64_t row, std::int64_t column) const {
    const C* from = accumulated != nullptr ? accumulated : residual;
    if (from == nullptr) return {from_float<C>(kAbsent), from_float<C>(kAbsent)};
    return load_pair(from, bias.at(row, column));
  }
  template <class Sink>
  __device__ __forceinline__ void operator()(const Sink& sink, std::int64_t row,
                                             std::int64_t column, float2 state, Vector<C, 2> read,
                                             float2 sum) const {
    // Where nothing is added the second rounding changes nothing.
    sink.template put<0>(row, column, add(rounded<C>(add(sum, state)), widened(read)));
  }
};

/// saved = y, c = gelu(saved).
template <class T>
struct GeluEpilogue {
  using Out = T;
  static constexpr bool kDual = false, kTogether = false;
  static constexpr int kOutputs = 2, kLoads = 2;
  BiasRow<T> bias;

  __device__ __forceinline__ float2 column(std::int64_t column) const {
    return bias.column(column);
  }
  __device__ __forceinline__ Nothing load(std::int64_t, std::int64_t) const { return {}; }
  template <class Sink>
  __device__ __forceinline__ void operator()(const Sink& sink, std::int64_t row,
                                             std::int64_t column, float2 state, Nothing,
                                             float2 sum) const {
    const float2 x = rounded<T>(add(sum, state));
    sink.template put<1>(row, column, x);
    sink.template put<0>(row, column, {gelu(x.x), gelu(x.y)});
  }
};

/// c = y gelu'(x); saved, where wanted, becomes gelu(x).
template <class T>
struct GeluBackwardEpilogue {
  using Out = T;
  static constexpr bool kDual = false, kTogether = true;
  static constexpr int kOutputs = 2, kLoads = 16;
  BiasRow<T> bias;
  const T* x;

  __device__ __forceinline__ float2 column(std::int64_t column) const {
    return bias.column(column);
  }
  __device__ __forceinline__ Vector<T, 2> load(std::int64_t row, std::int64_t column) const {
    return load_pair(x, bias.at(row, column));
  }
  template <class Sink>
  __device__ __forceinline__ void operator()(const Sink& sink, std::int64_t row,
                                             std::int64_t column, float2 state, Vector<T, 2> read,
                                             float2 sum) const {
    const float2 before = widened(read);
    const float2 dact = rounded<T>(add(sum, state));
    sink.template put<1>(row, column, {gelu(before.x), gelu(before.y)});
    sink.template put<0>(row, column,
                         {dact.x * gelu_slope(before.x), dact.y * gelu_slope(before.y)});
  }
};

/// gate and up, the two products, are saved as outputs 1 and 2; c = gate sigmoid(gate) up.
template <class T>
struct SwigluEpilogue {
  using Out = T;
  static constexpr bool kDual = true, kTogether = false;
  static constexpr int kOutputs = 3, kLoads = 2;
  BiasRow<T> bias;  ///< of gate, then of up; columns: those of c

  struct State {
    float2 gate, up;
  };
  __device__ __forceinline__ State column(std::int64_t column) const {
    if (bias.bias == nullptr) return {{kAbsent, kAbsent}, {kAbsent, kAbsent}};
    const PairAt at = bias.at(0, column);
    return {widened(load_pair(bias.bias, at)), widened(load_pair(bias.bias + bias.columns, at))};
  }
  __device__ __forceinline__ Nothing load(std::int64_t, std::int64_t) const { return {}; }
  template <class Sink>
  __device__ __forceinline__ void operator()(const Sink& sink, std::int64_t row,
                                             std::int64_t column, const State& state, Nothing,
                                             float2 gate_sum, float2 up_sum) const {
    const float2 gate = rounded<T>(add(gate_sum, state.gate)),
                 up = rounded<T>(add(up_sum, state.up));
    sink.template put<1>(row, column, gate);
    sink.template put<2>(row, column, up);
    sink.template put<0>(row, column, {swiglu(gate.x, up.x), swiglu(gate.y, up.y)});
  }
};

/// c [m, 2 F], outputs 0 and 2: the gradients of gate and up; saved, where wanted, becomes swiglu.
template <class T>
struct SwigluBackwardEpilogue {
  using Out = T;
  static constexpr bool kDual = false, kTogether = true;
  static constexpr int kOutputs = 3, kLoads = 8;
  BiasRow<T> bias;
  const T* gate_up;  ///< [m, 2 F]

  struct Read {
    Vector<T, 2> gate, up;
  };

  __device__ __forceinline__ float2 column(std::int64_t column) const {
    return bias.column(column);
  }
  __device__ __forceinline__ Read load(std::int64_t row, std::int64_t column) const {
    const PairAt at = bias.at(2 * row, column);
    return {load_pair(gate_up, at), load_pair(gate_up + bias.columns, at)};
  }
  template <class Sink>
  __device__ __forceinline__ void operator()(const Sink& sink, std::int64_t row,
                                             std::int64_t column, float2 state, const Read& read,
                                             float2 sum) const {
    const float2 gate = widened(read.gate), up = widened(read.up);
    const float2 dact = rounded<T>(add(sum, state));
    const GluGradient x = swiglu_gradient(gate.x, up.x, dact.x),
                      y = swiglu_gradient(gate.y, up.y, dact.y);
    sink.template put<1>(row, column, {x.act, y.act});
    sink.template put<0>(row, column, {x.gate, y.gate});
    sink.template put<2>(row, column, {x.up, y.up});
  }
};

}  // namespace trireme::cuda
