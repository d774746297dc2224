#pragma once
// The language that nvcc supplies silently, for any other compiler: threadIdx and friends,
// barriers, warp collectives, atomics, math functions. CUDA's own headers supply the types (float4,
// __nv_bfloat16, cudaStream_t): they compile with g++ as they are.
//
// Only kernels/common/cuda.cuh includes this file, without nvcc. README.md says how kernels run.
#ifdef __CUDACC__
#error "simt.h replaces nvcc; kernels include kernels/common/cuda.cuh"
#endif

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/simt_host/instructions.h"
#include "kernels/simt_host/runtime.h"

// cuda_runtime.h leaves these empty or undefined when nvcc is absent.
#undef __shared__
// One block per OS thread at a time; attributes go before it: alignas(16) __shared__ T x[8];
#define __shared__ static thread_local
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};
inline constexpr int warpSize = 32;

#define SIMT_LOC trireme::simt::Loc loc = trireme::simt::Loc::current()

namespace trireme::simt {

int lane_id();
unsigned char* dynamic_smem(size_t needed_bytes, Loc);
void block_barrier(Loc);
void named_barrier(int id, int threads, bool wait, Loc);
void warp_barrier(uint32_t mask, Loc);
// All lanes of mask call with the same fn; the last runs it over the arguments of all.
using Collective = void (*)(uint32_t mask, void* const* lane_args);
void warp_collective(uint32_t mask, Collective fn, void* arg, const char* what, Loc);
void yield();
[[noreturn]] void fault(FaultKind, const std::string&);

template <class T>
struct ShuffleArg {
  T in, out;
  int source;
};

[[noreturn]] void shuffle_source_fault(int lane);

template <class T>
__attribute__((no_sanitize("thread"))) void shuffle_fn(uint32_t mask, void* const* lanes) {
  for (int l = 0; l < 32; ++l) {
    if (!(mask >> l & 1)) continue;
    auto& a = *static_cast<ShuffleArg<T>*>(lanes[l]);
    if (!(mask >> a.source & 1)) shuffle_source_fault(a.source);
    a.out = static_cast<ShuffleArg<T>*>(lanes[a.source])->in;
  }
}

template <class T>
T shuffle(uint32_t mask, T value, int source, const char* what, Loc loc) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  ShuffleArg<T> a{value, value, source};
  warp_collective(mask, &shuffle_fn<T>, &a, what, loc);
  return a.out;
}

}  // namespace trireme::simt

// NOLINTBEGIN(readability-identifier-naming): these are CUDA's names

// ---- barriers and warp collectives ----
inline void __syncthreads(SIMT_LOC) { trireme::simt::block_barrier(loc); }
inline void __syncwarp(unsigned mask = ~0u, SIMT_LOC) { trireme::simt::warp_barrier(mask, loc); }

template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32, SIMT_LOC) {
  int lane = trireme::simt::lane_id();
  return trireme::simt::shuffle(mask, v, (lane & ~(width - 1)) | (source & (width - 1)),
                                "__shfl_sync", loc);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, SIMT_LOC) {
  int lane = trireme::simt::lane_id(), in = lane & (width - 1);
  return trireme::simt::shuffle(mask, v, in >= int(delta) ? lane - int(delta) : lane,
                                "__shfl_up_sync", loc);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, SIMT_LOC) {
  int lane = trireme::simt::lane_id(), in = lane & (width - 1);
  return trireme::simt::shuffle(mask, v, in + int(delta) < width ? lane + int(delta) : lane,
                                "__shfl_down_sync", loc);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int lane_mask, int width = 32, SIMT_LOC) {
  int lane = trireme::simt::lane_id(), source = lane ^ lane_mask;
  return trireme::simt::shuffle(mask, v, source / width > lane / width ? lane : source,
                                "__shfl_xor_sync", loc);
}
unsigned __ballot_sync(unsigned mask, int predicate, SIMT_LOC);
inline int __any_sync(unsigned mask, int p, SIMT_LOC) { return __ballot_sync(mask, p, loc) != 0; }

// ---- atomics: relaxed, device scope ----
namespace trireme::simt {
template <class T, class F>
__attribute__((no_sanitize("thread"))) T atomic_update(T* p, F f, Loc loc) {
  note_atomic(p, sizeof(T), std::is_floating_point_v<T>, loc);
  using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  U* u = reinterpret_cast<U*>(p);
  U old = __atomic_load_n(u, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(u, &old, std::bit_cast<U>(T(f(std::bit_cast<T>(old)))), false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return std::bit_cast<T>(old);
}
}  // namespace trireme::simt
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v, SIMT_LOC) {
  return trireme::simt::atomic_update(
      p, [=](T x) { return x + v; }, loc);
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v, SIMT_LOC) {
  return trireme::simt::atomic_update(
      p, [=](T x) { return x < v ? v : x; }, loc);
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v, SIMT_LOC) {
  return trireme::simt::atomic_update(
      p, [=](T x) { return x | v; }, loc);
}
// ---- arithmetic ----
template <class T>
constexpr T min(T a, std::type_identity_t<T> b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, std::type_identity_t<T> b) {
  return a < b ? b : a;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }

// NOLINTEND(readability-identifier-naming)
#undef SIMT_LOC
