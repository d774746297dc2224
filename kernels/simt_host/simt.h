// Runs CUDA kernels on the host: one fiber per CUDA thread, blocks one after another.
//
// Only kernels/common/cuda.cuh includes this file, and only when nvcc is not the compiler. It supplies what nvcc supplies
// silently: threadIdx and friends, barriers, warp collectives, atomics, math functions. CUDA's own headers supply the
// types (float4, __nv_bfloat16, __nv_fp8_e4m3, cudaStream_t): they compile with g++ as they are.
//
// Model. Threads run until they wait (barrier, warp collective, exit), so a launch is deterministic for a given order
// and seed. Every wait checks that all threads wait at the same source line. Built with -fsanitize=thread (compile
// flag only: simt.cc supplies the __tsan_* callbacks, libtsan is not linked) every load and store of a kernel is
// checked against a shadow of shared and device memory.
#pragma once
#ifdef __CUDACC__
#error "simt.h replaces nvcc; kernels include kernels/common/cuda.cuh"
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda.h>          // CUtensorMap and its enums only
#include <cuda_runtime.h>  // types and declarations only: no CUDA library is linked

#include <cuda_bf16.h>
#include <cuda_fp8.h>

// cuda_runtime.h leaves these empty or undefined when nvcc is absent.
#undef __shared__
#define __shared__ static thread_local  // one block per OS thread at a time; attributes go before it: alignas(16) __shared__ T x[8];
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};
inline constexpr int warpSize = 32;

namespace trireme::simt {

using Loc = std::source_location;

enum class Order { forward, backward, random };

struct Options {
  Order order = Order::forward;
  uint64_t seed = 1;
  int workers = 1;                    // OS threads over blocks; must be 1 for memory checks
  bool check_memory = true;           // effective only in kernels compiled with -fsanitize=thread
  bool check_global_races = true;
  bool late_copies = true;            // cp.async data arrives at the wait, not at the issue
  size_t stack_bytes = 256 << 10;     // virtual; only touched pages count
  size_t max_smem_bytes = 232448;     // 227 KB on sm_90; 101376 on sm_86/89, 166912 on sm_80
};
Options& options();

struct Stats {
  uint64_t blocks, threads, switches, barriers, collectives, atomics, float_atomics, loads, stores, async_copies;
  uint64_t tma_loads, tma_stores, wgmmas, mbarrier_phases, proxy_fences;
};
Stats& stats();

enum class FaultKind {
  divergent_barrier, deadlock, bad_collective, uninitialised, out_of_bounds, misaligned, race, async_copy, host_memory,
  launch_config, stack_overflow, mbarrier, tma, wgmma, proxy_fence,
};
const char* name_of(FaultKind);

struct Fault : std::runtime_error {
  FaultKind kind;
  Fault(FaultKind k, const std::string& text) : std::runtime_error(text), kind(k) {}
};

struct LaunchShape {
  dim3 grid, block;
  size_t smem_bytes;
  const char* name;
  int cluster = 1;
};

// Runs body(context) once per CUDA thread. Throws Fault, on the caller's own stack.
void run_grid(const LaunchShape&, void (*body)(void*), void* context, size_t context_bytes);

template <class... P, class... A>
void launch(void (*kernel)(P...), const LaunchShape& shape, A&&... args) {
  struct Context {
    void (*kernel)(P...);
    std::tuple<P...> args;
  } context{kernel, std::tuple<P...>(std::forward<A>(args)...)};
  run_grid(
      shape, [](void* c) { std::apply(static_cast<Context*>(c)->kernel, static_cast<Context*>(c)->args); }, &context,
      sizeof context);
}

// Streams are queues. lazy: work runs only when something waits for it (cudaStreamSynchronize, cudaEventSynchronize, a
// blocking copy), and only what that something depends on through events: a forgotten cudaStreamWaitEvent reads poison.
// random: like lazy, but other streams' work is mixed in. eager: at once, in program order.
enum class Streams { eager, lazy, random };
void set_streams(Streams, uint64_t seed = 1);
void enqueue(cudaStream_t, std::function<void()>);

// Device memory with red zones, exact sizes, initialised bits; the cudaMalloc of cudart_host.cc ends here.
void* device_alloc(size_t bytes, const char* name = "");
void device_free(void*);
void device_mark_initialised(const void*, size_t);
bool is_device_memory(const void*);
void device_check_range(const void*, size_t, const char* what);

/// Faults where a vector access of so many bytes would be misaligned.
void check_alignment(const void*, size_t bytes);

// ---- for built-ins and ptx.cc ----
int lane_id();
unsigned char* dynamic_smem(size_t needed_bytes, Loc);
void block_barrier(Loc);
int block_barrier_reduce(int op, int value, Loc);  // op 0 count, 1 and, 2 or
void named_barrier(int id, int threads, bool wait, Loc);
void warp_barrier(uint32_t mask, Loc);
// All lanes of mask call with the same fn; the last one runs fn over the argument pointers of all lanes.
using Collective = void (*)(uint32_t mask, void* const* lane_args);
void warp_collective(uint32_t mask, Collective fn, void* arg, const char* what, Loc);
void yield();
[[noreturn]] void fault(FaultKind, const std::string&);

// Shadow accesses for code that is not instrumented (host bodies of PTX functions). thread: linear index in the block, -1 = caller.
void note_read(const void*, size_t, int thread = -1);
void note_write(void*, size_t, int thread = -1);
void note_atomic(void*, size_t, bool is_float);
void async_issue(void* dst, const void* src, int bytes, int source_bytes);
void async_commit();
void async_wait(int groups_left);

// ---- Hopper: bodies in hopper.inc ----
void mbarrier_init(uint64_t* bar, int count);
void mbarrier_invalidate(uint64_t* bar);
void mbarrier_arrive(uint64_t* bar, int expect_tx_bytes);
// Blocks the fiber until the phase of that parity is complete (PTX try_wait may block as well): a hang is a reported deadlock.
void mbarrier_wait(uint64_t* bar, uint32_t parity, Loc);
void fence_mbarrier_init();
void fence_proxy_async();
void tma_load(void* dst, const CUtensorMap* map, int rank, const int* coordinate, uint64_t* bar, Loc);
void tma_store(const CUtensorMap* map, const void* src, int rank, const int* coordinate, Loc);
void tma_check_map(const CUtensorMap* map, const char* what);
void bulk_commit();
void bulk_wait(int groups_left, bool read_only, Loc);
uint64_t wgmma_descriptor_sw128(const void* tile);
void wgmma_fence();
void wgmma_issue(float* d, int n, const uint32_t* a_registers, uint64_t a, uint64_t b, bool accumulate, Loc);
void wgmma_commit();
void wgmma_wait(int groups_left, Loc);
void set_max_registers(int n, bool increase, Loc);
// Host stand-in for cuTensorMapEncodeTiled: rank, dims (elements), strides (bytes, from dim 1), box (elements).
void encode_tensor_map(CUtensorMap* out, int element_bytes, int rank, const void* base, const uint64_t* dims, const uint64_t* strides,
                       const uint32_t* box, bool swizzle_128);

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

// ---- barriers and warp collectives ----
inline void __syncthreads(trireme::simt::Loc loc = trireme::simt::Loc::current()) { trireme::simt::block_barrier(loc); }
inline int __syncthreads_count(int p, trireme::simt::Loc loc = trireme::simt::Loc::current()) { return trireme::simt::block_barrier_reduce(0, p, loc); }
inline int __syncthreads_and(int p, trireme::simt::Loc loc = trireme::simt::Loc::current()) { return trireme::simt::block_barrier_reduce(1, p, loc); }
inline int __syncthreads_or(int p, trireme::simt::Loc loc = trireme::simt::Loc::current()) { return trireme::simt::block_barrier_reduce(2, p, loc); }
inline void __syncwarp(unsigned mask = ~0u, trireme::simt::Loc loc = trireme::simt::Loc::current()) { trireme::simt::warp_barrier(mask, loc); }

template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32, trireme::simt::Loc loc = trireme::simt::Loc::current()) {
  int lane = trireme::simt::lane_id();
  return trireme::simt::shuffle(mask, v, (lane & ~(width - 1)) | (source & (width - 1)), "__shfl_sync", loc);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, trireme::simt::Loc loc = trireme::simt::Loc::current()) {
  int lane = trireme::simt::lane_id(), in = lane & (width - 1);
  return trireme::simt::shuffle(mask, v, in >= int(delta) ? lane - int(delta) : lane, "__shfl_up_sync", loc);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, trireme::simt::Loc loc = trireme::simt::Loc::current()) {
  int lane = trireme::simt::lane_id(), in = lane & (width - 1);
  return trireme::simt::shuffle(mask, v, in + int(delta) < width ? lane + int(delta) : lane, "__shfl_down_sync", loc);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int lane_mask, int width = 32, trireme::simt::Loc loc = trireme::simt::Loc::current()) {
  int lane = trireme::simt::lane_id(), source = lane ^ lane_mask;
  return trireme::simt::shuffle(mask, v, source / width > lane / width ? lane : source, "__shfl_xor_sync", loc);
}
unsigned __ballot_sync(unsigned mask, int predicate, trireme::simt::Loc loc = trireme::simt::Loc::current());
inline int __any_sync(unsigned mask, int p, trireme::simt::Loc loc = trireme::simt::Loc::current()) { return __ballot_sync(mask, p, loc) != 0; }
inline int __all_sync(unsigned mask, int p, trireme::simt::Loc loc = trireme::simt::Loc::current()) { return __ballot_sync(mask, p, loc) == mask; }

// ---- atomics: relaxed, device scope ----
namespace trireme::simt {
template <class T, class F>
__attribute__((no_sanitize("thread"))) T atomic_update(T* p, F f) {
  note_atomic(p, sizeof(T), std::is_floating_point_v<T>);
  using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  U* u = reinterpret_cast<U*>(p);
  U old = __atomic_load_n(u, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(u, &old, std::bit_cast<U>(T(f(std::bit_cast<T>(old)))), false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return std::bit_cast<T>(old);
}
}  // namespace trireme::simt
template <class T> T atomicAdd(T* p, std::type_identity_t<T> v) { return trireme::simt::atomic_update(p, [=](T x) { return x + v; }); }
template <class T> T atomicSub(T* p, std::type_identity_t<T> v) { return trireme::simt::atomic_update(p, [=](T x) { return x - v; }); }
template <class T> T atomicMax(T* p, std::type_identity_t<T> v) { return trireme::simt::atomic_update(p, [=](T x) { return x > v ? x : v; }); }
template <class T> T atomicMin(T* p, std::type_identity_t<T> v) { return trireme::simt::atomic_update(p, [=](T x) { return x < v ? x : v; }); }
template <class T> T atomicOr(T* p, std::type_identity_t<T> v) { return trireme::simt::atomic_update(p, [=](T x) { return x | v; }); }
template <class T> T atomicAnd(T* p, std::type_identity_t<T> v) { return trireme::simt::atomic_update(p, [=](T x) { return x & v; }); }
template <class T> T atomicExch(T* p, std::type_identity_t<T> v) { return trireme::simt::atomic_update(p, [=](T) { return v; }); }
template <class T> T atomicCAS(T* p, std::type_identity_t<T> compare, std::type_identity_t<T> v) {
  return trireme::simt::atomic_update(p, [=](T x) { return x == compare ? v : x; });
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- loads with cache hints ----
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> void __stcs(T* p, std::type_identity_t<T> v) { *p = v; }
template <class T> void __stcg(T* p, std::type_identity_t<T> v) { *p = v; }

// ---- arithmetic ----
template <class T> constexpr T min(T a, std::type_identity_t<T> b) { return b < a ? b : a; }
template <class T> constexpr T max(T a, std::type_identity_t<T> b) { return a < b ? b : a; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
