// Barriers and warp collectives that not everybody joins.
#include "kernels/common/cuda.cuh"
#include "kernels/common/ptx.cuh"
#include "simt_host/cases.h"

namespace trireme::simt_cases {
namespace {

namespace ptx = cuda::ptx;
using simt::FaultKind;
constexpr unsigned kAll = 0xffffffffU;

template <bool kFaulty>
__global__ void left_before_barrier(float* out) {
  if (kFaulty && threadIdx.x >= 40) return;
  __syncthreads();  // fault: left_before_barrier
  out[threadIdx.x] = 0.0f;
}
template <bool kFaulty>
__global__ void two_barriers(float* out) {
  if (kFaulty && threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();  // fault: two_barriers
  }
  out[threadIdx.x] = 0.0f;
}
template <bool kFaulty>
__global__ void named_barrier_counts(float* out) {
  if (threadIdx.x < 32) {
    ptx::barrier_sync(1, 64);
  } else {
    ptx::barrier_sync(1, kFaulty ? 32 : 64);
  }
  out[threadIdx.x] = 0.0f;
}
template <bool kFaulty>
__global__ void named_barrier_of_more_than_the_block(float* out) {
  ptx::barrier_sync(1, kFaulty ? 128 : 64);
  out[threadIdx.x] = 0.0f;
}
template <bool kFaulty>
__global__ void named_barrier_of_odd_count(float* out) {
  ptx::barrier_sync(1, kFaulty ? 40 : 64);
  out[threadIdx.x] = 0.0f;
}
template <bool kFaulty>
__global__ void arrival_without_sync(float* out) {
  if (threadIdx.x < 32) {
    ptx::barrier_arrive(2, 64);
  } else if (!kFaulty) {
    ptx::barrier_sync(2, 64);
  }
  out[threadIdx.x] = 0.0f;
}
template <bool kFaulty>
__global__ void deadlock(float* out) {
  if (!kFaulty || threadIdx.x < 32) ptx::barrier_sync(1, 64);  // fault: deadlock
  out[threadIdx.x] = 0.0f;
}
template <bool kFaulty>
__global__ void lane_missing(float* out) {
  float v = static_cast<float>(threadIdx.x);
  if (!kFaulty || threadIdx.x % 32 < 16) v = __shfl_xor_sync(kAll, v, 1);  // fault: lane_missing
  out[threadIdx.x] = v;
}
template <bool kFaulty>
__global__ void mask_lacks_caller(float* out) {
  out[threadIdx.x] = __shfl_sync(kFaulty ? 0xffffU : kAll, 1.0f, 0);  // fault: mask_lacks_caller
}
template <bool kFaulty>
__global__ void shuffle_from_outside(float* out) {
  float v = 1.0f;
  if (threadIdx.x % 32 < 16) v = __shfl_down_sync(0xffffU, v, kFaulty ? 16 : 1, kFaulty ? 32 : 16);
  out[threadIdx.x] = v;
}
template <bool kFaulty>
__global__ void overlapping_masks(float* out) {
  const unsigned mask = threadIdx.x % 32 < 16 ? 0xffffU : kFaulty ? kAll : 0xffff0000U;
  out[threadIdx.x] = static_cast<float>(__ballot_sync(mask, 1));  // fault: overlapping_masks
}
template <bool kFaulty>
__global__ void two_collectives(float* out) {
  float v = 1.0f;
  if (kFaulty && threadIdx.x % 2 == 0) {
    v = __shfl_xor_sync(kAll, v, 1);
  } else {
    v = __shfl_xor_sync(kAll, v, 1);  // fault: two_collectives
  }
  out[threadIdx.x] = v;
}
template <bool kFaulty>
__global__ void mma_of_half_a_warp(float* out) {
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  if (!kFaulty || threadIdx.x % 32 < 16) ptx::mma_m16n8k16_bf16(d, a, b);
  out[threadIdx.x] = d[0];
}

#define TRIREME_CASE(kind, kernel) TRIREME_CASE_OR(kind, kind, kernel)
#define TRIREME_CASE_OR(kind, other_kind, kernel)                           \
  Case {                                                                    \
#kernel, FaultKind::kind,                                                 \
        [](bool faulty, const Buffers& x) {                                   \
          cuda::launch(faulty ? kernel<true> : kernel<false>,                 \
                       {.grid = 1, .block = 64, .name = #kernel}, x.out);     \
        },                                                                    \
        FaultKind::other_kind \
  }

const Case kCases[] = {
    TRIREME_CASE(kDivergentBarrier, left_before_barrier),
    TRIREME_CASE(kDivergentBarrier, two_barriers),
    TRIREME_CASE_OR(kDivergentBarrier, kDeadlock, named_barrier_counts),
    TRIREME_CASE(kBadCollective, named_barrier_of_odd_count),
    TRIREME_CASE(kBadCollective, named_barrier_of_more_than_the_block),
    TRIREME_CASE(kDivergentBarrier, arrival_without_sync),
    TRIREME_CASE(kDeadlock, deadlock),
    TRIREME_CASE(kBadCollective, lane_missing),
    TRIREME_CASE(kBadCollective, mask_lacks_caller),
    TRIREME_CASE(kBadCollective, shuffle_from_outside),
    TRIREME_CASE(kBadCollective, overlapping_masks),
    TRIREME_CASE(kBadCollective, two_collectives),
    TRIREME_CASE(kBadCollective, mma_of_half_a_warp),
};

}  // namespace

std::span<const Case> barrier_cases() { return kCases; }

}  // namespace trireme::simt_cases
