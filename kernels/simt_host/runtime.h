#pragma once
// Executing kernels on the host, for tests and launch(): options, faults, streams, device memory.

#include <cuda.h>          // CUtensorMap and its enums only
#include <cuda_runtime.h>  // types and declarations only: no CUDA library is linked

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace trireme::simt {

using Loc = std::source_location;

/// Which of the threads that can run goes on, and which block comes next.
enum class Order { kForward, kBackward, kRandom };

struct Options {
  Order order = Order::kForward;
  uint64_t seed = 1;
  int workers = 1;           // OS threads over blocks; must be 1 for memory checks
  bool check_memory = true;  // effective only in kernels compiled with -fsanitize=thread
  bool check_global_races = true;
  bool late_copies = true;         // cp.async data arrives at the wait, not at the issue
  bool tensor_core_sums = false;   // wgmma of fp8 adds as Hopper does, not k upwards in fp32
  size_t stack_bytes = 256 << 10;  // virtual; only touched pages count
  size_t max_smem_bytes = 232448;  // 227 KB on sm_90; 101376 on sm_86/89, 166912 on sm_80
};
Options& options();

struct Stats {
  uint64_t blocks, threads, switches, barriers, collectives, atomics, float_atomics, loads, stores,
      async_copies;
  uint64_t tma_loads, tma_stores, wgmmas, mbarrier_phases, proxy_fences;
};
Stats& stats();

enum class FaultKind {
  kDivergentBarrier,  ///< threads of a block at two barriers, or at none
  kDeadlock,          ///< no thread can run, or streams wait for each other
  kBadCollective,     ///< a warp collective without all lanes of its mask
  kUninitialised,
  kOutOfBounds,  ///< also of freed memory
  kMisaligned,
  kRace,          ///< between barriers, between blocks, or with TMA and wgmma
  kAsyncCopy,     ///< cp.async or TMA: used before it was waited for, or never waited for
  kHostMemory,    ///< a kernel touches memory of the host
  kLaunchConfig,  ///< more than a GPU gives
  kStackOverflow,
  kMbarrier,
  kTma,
  kWgmma,
  kProxyFence,  ///< no fence between ordinary accesses and those of TMA or wgmma
  kStream,      ///< streams, events, copies and captures used against CUDA's rules
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
      shape,
      [](void* c) { std::apply(static_cast<Context*>(c)->kernel, static_cast<Context*>(c)->args); },
      &context, sizeof context);
}

// Streams are queues. kLazy: work runs only when something waits for it (cudaStreamSynchronize,
// cudaEventSynchronize, a blocking copy), and only what that something depends on through events: a
// forgotten cudaStreamWaitEvent reads poison. kRandom: like kLazy, but other streams' work is mixed
// in. kEager: at once, in program order.
enum class Streams { kEager, kLazy, kRandom };
void set_streams(Streams, uint64_t seed = 1);
void enqueue(cudaStream_t, std::function<void()>);

// Device memory with red zones, exact sizes, initialised bits; cudaMalloc ends here.
void* device_alloc(size_t bytes, const char* name = "");
void device_free(void*);
/// Of allocations that live.
size_t device_bytes();
void device_mark_initialised(const void*, size_t);
bool is_device_memory(const void*);
/// For a copy inside device memory: bytes nobody wrote stay such.
void device_copy_initialised(const void* to, const void* from, size_t);
void device_check_range(const void*, size_t, const char* what);

/// Faults where a vector access of so many bytes would be misaligned.
void check_alignment(const void*, size_t bytes);

}  // namespace trireme::simt
