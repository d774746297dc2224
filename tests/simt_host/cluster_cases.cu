// Clusters of Hopper: copies to all blocks, mbarriers of other blocks, leaving together.
#include "kernels/common/cuda.cuh"
#include "kernels/common/ptx.cuh"
#include "simt_host/cases.h"

namespace trireme::simt_cases {
namespace {

namespace ptx = cuda::ptx;
using cuda::TensorMap;
using simt::FaultKind;

constexpr int kThreads = 128;

struct Smem {
  alignas(1024) __nv_bfloat16 tile[64][64];
  uint64_t full, empty;
};

enum Fault { kNone, kNoClusterSync, kNoSuchBlock, kRefilledUnderPeer, kLeavesEarly };

/// Block 0 brings a tile to both, twice; the second time when both have read the first.
template <Fault kFault>
__global__ void __launch_bounds__(kThreads)
    share(const __grid_constant__ TensorMap map, float* out) {
  Smem& s = cuda::smem<Smem>();
  const int rank = ptx::cluster_rank();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.full, 1);
    ptx::mbarrier_init(&s.empty, kFault == kRefilledUnderPeer ? kThreads : 2 * kThreads);
    ptx::fence_mbarrier_init();
  }
  if (kFault == kNoClusterSync) {
    __syncthreads();
  } else {
    ptx::cluster_sync();
  }
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) {
      if (rank == 0 && round > 0) ptx::mbarrier_wait(&s.empty, 0);
      ptx::mbarrier_arrive_expect_tx(&s.full, sizeof s.tile);
      const uint16_t to = kFault == kNoSuchBlock ? 7 : 3;
      if (rank == 0)
        ptx::tma_load_2d_multicast(s.tile, map, 0, 0, &s.full, to);  // fault: no_such_block
    }
    ptx::mbarrier_wait(&s.full, round);
    out[rank * kThreads + threadIdx.x] = __bfloat162float(s.tile[threadIdx.x % 64][0]);
    if (kFault != kRefilledUnderPeer || rank == 0) ptx::mbarrier_arrive_at(&s.empty, 0);
  }
  if (rank == 0 && threadIdx.x == 0 && kFault != kRefilledUnderPeer) {
    ptx::mbarrier_wait(&s.empty, 1);
    ptx::mbarrier_arrive_at(&s.empty, 1);
  }
  if (kFault != kLeavesEarly) ptx::cluster_sync();
}

template <Fault kFault>
Case make(const char* name, FaultKind kind, FaultKind other) {
  return {name, kind,
          [](bool faulty, const Buffers& x) {
            const TensorMap map = cuda::encode_tiled<2>(
                {.base = x.a, .dims = {64, 64}, .strides = {64}, .box = {64, 64}});
            cuda::launch(faulty ? share<kFault> : share<kNone>,
                         {.grid = 2,
                          .block = kThreads,
                          .smem_bytes = sizeof(Smem),
                          .name = "share",
                          .cluster = 2},
                         map, x.out);
          },
          other};
}

const Case kCases[] = {
    make<kNoClusterSync>("no_cluster_sync", FaultKind::kRace, FaultKind::kMbarrier),
    make<kNoSuchBlock>("no_such_block", FaultKind::kOutOfBounds, FaultKind::kOutOfBounds),
    make<kRefilledUnderPeer>("refilled_under_peer", FaultKind::kAsyncCopy, FaultKind::kRace),
    make<kLeavesEarly>("leaves_cluster_early", FaultKind::kOutOfBounds, FaultKind::kOutOfBounds),
};

}  // namespace

std::span<const Case> cluster_cases() { return kCases; }

}  // namespace trireme::simt_cases
