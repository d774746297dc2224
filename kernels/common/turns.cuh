#pragma once
// Loops of memory-bound kernels: a thread asks for all that it will read before it uses the first
// of it, so that enough bytes are under way to hide memory's latency. A compiler may not move loads
// over stores that could alias, so the two halves are written apart.

#include "kernels/common/vector.cuh"

namespace trireme::cuda {

/// For i = first, first + stride, ... below end: finish(i, load(i)), kTurns loads before the first
/// finish as long as there are as many. load(i) gives a struct of what i needs.
template <int kTurns, class Load, class Finish>
__device__ __forceinline__ void in_turns(std::int64_t first, std::int64_t stride, std::int64_t end,
                                         Load load, Finish finish) {
  for (; first + (kTurns - 1) * stride < end; first += kTurns * stride) {
    decltype(load(first)) taken[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) taken[turn] = load(first + turn * stride);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) finish(first + turn * stride, taken[turn]);
  }
  for (; first < end; first += stride) finish(first, load(first));
}

// ---- elementwise kernels: item i of [0, count) by some thread of a grid of blocks_of_turns ----

inline constexpr int kTurnThreads = 256;

template <int kTurns, class Load, class Finish>
__device__ __forceinline__ void for_each_item(std::int64_t count, Load load, Finish finish) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * (kTurns * kTurnThreads);
  const std::int64_t end = min(begin + kTurns * kTurnThreads, count);
  in_turns<kTurns>(begin + threadIdx.x, kTurnThreads, end, load, finish);
}

inline LaunchConfig config_of_turns(const Exec& exec, int turns, std::int64_t count,
                                    const char* name) {
  return {.grid = static_cast<unsigned>(blocks_for(count, std::int64_t{turns} * kTurnThreads)),
          .block = kTurnThreads,
          .stream = stream_of(exec),
          .name = name};
}

/// Splits [0, count) elements into whole vectors, taken where all operands are aligned, and the
/// rest, one by one: call(width constant, first element, number of items).
template <int kWidth, class Call>
void for_vectors_and_rest(std::int64_t count, bool aligned, Call call) {
  const std::int64_t whole = aligned ? count / kWidth * kWidth : 0;
  if (whole > 0) call(Width<kWidth>(), std::int64_t{0}, whole / kWidth);
  if (whole < count) call(Width<1>(), whole, count - whole);
}

}  // namespace trireme::cuda
