// Loads and stores: races, uninitialised bytes, bounds, alignment, foreign memory.
#include "kernels/common/cuda.cuh"
#include "kernels/common/vector.cuh"
#include "simt_host/cases.h"

namespace trireme::simt_cases {
namespace {

using cuda::smem;
using simt::FaultKind;

struct Smem {
  alignas(16) float x[64];
};

cuda::LaunchConfig config(const char* name, unsigned blocks = 1) {
  return {.grid = blocks, .block = 64, .smem_bytes = sizeof(Smem), .name = name};
}

// ---- races ----
template <bool kFaulty>
__global__ void missing_barrier(float* out, const float* in) {
  Smem& s = smem<Smem>();
  s.x[threadIdx.x] = 0.0f;
  __syncthreads();
  s.x[threadIdx.x] = in[threadIdx.x];  // fault: missing_barrier
  if (!kFaulty) __syncthreads();
  out[threadIdx.x] = s.x[63 - threadIdx.x];
}
template <bool kFaulty>
__global__ void write_under_readers(float* out, const float* in) {
  Smem& s = smem<Smem>();
  s.x[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  const float other = s.x[(threadIdx.x + 1) % 64];
  if (!kFaulty) __syncthreads();
  s.x[threadIdx.x] = other;  // fault: write_under_readers
  out[threadIdx.x] = other;
}
template <bool kFaulty>
__global__ void missing_syncwarp(float* out, const float* in) {
  Smem& s = smem<Smem>();
  s.x[threadIdx.x] = 0.0f;
  __syncthreads();
  s.x[threadIdx.x] = in[threadIdx.x];  // fault: missing_syncwarp
  if (!kFaulty) __syncwarp();
  out[threadIdx.x] = s.x[threadIdx.x ^ 1];
}
template <bool kFaulty>
__global__ void shuffle_orders_nothing(float* out, const float* in) {
  Smem& s = smem<Smem>();
  s.x[threadIdx.x] = in[threadIdx.x];
  const float other = __shfl_xor_sync(0xffffffffU, in[threadIdx.x], 1);
  if (!kFaulty) __syncwarp();
  out[threadIdx.x] = s.x[threadIdx.x ^ 1] + other;  // fault: shuffle_orders_nothing
}
template <bool kFaulty>
__global__ void between_blocks(float* out) {
  if (threadIdx.x == 0) out[kFaulty ? 0 : blockIdx.x] = 1.0f;  // fault: between_blocks
}
template <bool kFaulty>
__global__ void read_of_another_block(float* out, float* in) {
  if (threadIdx.x != 0) return;
  in[blockIdx.x] = 1.0f;
  out[blockIdx.x] = in[kFaulty ? 1 - blockIdx.x : blockIdx.x];
}
template <bool kFaulty>
__global__ void atomic_and_plain(float* out) {
  if (kFaulty && blockIdx.x == 1 && threadIdx.x == 0) {
    out[0] = 1.0f;
  } else {
    atomicAdd(out, 1.0f);
  }
}

// ---- bytes that nobody wrote ----
template <bool kFaulty>
__global__ void uninitialised_shared(float* out) {
  Smem& s = smem<Smem>();
  if (!kFaulty || threadIdx.x < 32) s.x[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = s.x[threadIdx.x];  // fault: uninitialised_shared
}
__global__ void copy(float* out, const float* in) {
  out[threadIdx.x] = in[threadIdx.x];  // fault: uninitialised_device
}
template <bool kFaulty>
__global__ void uninitialised_atomic(float* counters) {
  if (!kFaulty && threadIdx.x == 0) counters[0] = 0.0f;
  __syncthreads();
  atomicAdd(counters, 1.0f);  // fault: uninitialised_atomic
}
/// Shared memory does not live on into the next block.
template <bool kFaulty>
__global__ void left_by_another_block(float* out) {
  Smem& s = smem<Smem>();
  if (!kFaulty || blockIdx.x == 0) s.x[threadIdx.x] = 1.0f;
  if (threadIdx.x == 0) out[blockIdx.x] = s.x[0];
}

// ---- bounds ----
template <bool kFaulty>
__global__ void past_the_end(float* out) {
  out[Buffers::kFloats - 64 + threadIdx.x + (kFaulty ? 1 : 0)] = 1.0f;  // fault: past_the_end
}
template <bool kFaulty>
__global__ void before_the_beginning(float* out) {
  float* p = out + threadIdx.x;
  p[kFaulty ? -1 : 0] = 1.0f;  // fault: before_the_beginning
}
template <bool kFaulty>
__global__ void past_shared(float* out) {
  Smem& s = smem<Smem>();
  float* x = s.x;
  x[threadIdx.x + (kFaulty ? 1 : 0)] = 1.0f;  // fault: past_shared
  out[threadIdx.x] = 0.0f;
}
template <bool kFaulty>
__global__ void shared_not_given(float* out) {
  struct Larger {
    float x[kFaulty ? 65 : 64];
  };
  out[threadIdx.x] = 0.0f;
  smem<Larger>().x[threadIdx.x] = 0.0f;  // fault: shared_not_given
}

// ---- alignment ----
template <bool kFaulty>
__global__ void misaligned_load(float* out, const float* in) {
  const float* from = in + 4 * (threadIdx.x / 4) + (kFaulty ? 1 : 0);
  const auto v = cuda::load<4>(from);  // fault: misaligned_load
  out[threadIdx.x] = v.at[threadIdx.x % 4];
}
template <bool kFaulty>
__global__ void misaligned_store(float* out) {
  if (threadIdx.x == 0) cuda::store(out + (kFaulty ? 2 : 4), cuda::Vector<float, 4>{{1, 2, 3, 4}});
}
template <bool kFaulty>
__global__ void misaligned_int(float* out) {
  auto* bytes = reinterpret_cast<unsigned char*>(out);
  if (threadIdx.x == 0) *reinterpret_cast<int*>(bytes + (kFaulty ? 2 : 4)) = 1;
}

// ---- memory that a kernel may not touch ----
__global__ void fill(float* out) {
  out[threadIdx.x] = 1.0f;  // fault: host_memory
}
template <bool kFaulty>
__global__ void another_threads_local(float* out) {
  struct Shared {
    float* local;
  };
  float mine[2] = {1.0f, 2.0f};
  Shared& s = smem<Shared>();
  if (threadIdx.x == 0) s.local = mine;
  __syncthreads();
  if (threadIdx.x == (kFaulty ? 1 : 0)) out[0] = s.local[1];
  __syncthreads();
}

#define TRIREME_CASE(kind, kernel, blocks, ...)                                                    \
  Case {                                                                                           \
#kernel, FaultKind::kind, [](bool faulty, [[maybe_unused]] const Buffers& x) {                   \
      const auto run = faulty ? kernel<true> : kernel<false>; \
      cuda::launch(run, config(#kernel, blocks), __VA_ARGS__); \
    } \
  }

const Case kCases[] = {
    TRIREME_CASE(kRace, missing_barrier, 1, x.out, x.in),
    TRIREME_CASE(kRace, write_under_readers, 1, x.out, x.in),
    TRIREME_CASE(kRace, missing_syncwarp, 1, x.out, x.in),
    TRIREME_CASE(kRace, shuffle_orders_nothing, 1, x.out, x.in),
    TRIREME_CASE(kRace, between_blocks, 2, x.out),
    TRIREME_CASE(kRace, read_of_another_block, 2, x.out, x.in),
    TRIREME_CASE(kRace, atomic_and_plain, 2, x.out),
    TRIREME_CASE(kUninitialised, uninitialised_shared, 1, x.out),
    TRIREME_CASE(kUninitialised, uninitialised_atomic, 1, x.unset),
    TRIREME_CASE(kUninitialised, left_by_another_block, 2, x.out),
    TRIREME_CASE(kOutOfBounds, past_the_end, 1, x.out),
    TRIREME_CASE(kOutOfBounds, before_the_beginning, 1, x.out),
    TRIREME_CASE(kOutOfBounds, past_shared, 1, x.out),
    TRIREME_CASE(kOutOfBounds, shared_not_given, 1, x.out),
    TRIREME_CASE(kMisaligned, misaligned_load, 1, x.out, x.in),
    TRIREME_CASE(kMisaligned, misaligned_store, 1, x.out),
    TRIREME_CASE(kMisaligned, misaligned_int, 1, x.out),
    TRIREME_CASE(kOutOfBounds, another_threads_local, 1, x.out),
    {"uninitialised_device", FaultKind::kUninitialised,
     [](bool faulty, const Buffers& x) {
       cuda::launch(copy, config("copy"), x.out, faulty ? x.unset : x.in);
     }},
    {"freed_memory", FaultKind::kOutOfBounds,
     [](bool faulty, const Buffers& x) {
       cuda::launch(fill, config("fill"), faulty ? x.freed : x.out);
     }},
    {"host_memory", FaultKind::kHostMemory,
     [](bool faulty, const Buffers& x) {
       cuda::launch(fill, config("fill"), faulty ? x.host : x.out);
     }},
};

}  // namespace

std::span<const Case> memory_cases() { return kCases; }

}  // namespace trireme::simt_cases
