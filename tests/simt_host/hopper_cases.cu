// Hopper: mbarriers, TMA, wgmma and the fences between them.
#include "kernels/common/cuda.cuh"
#include "kernels/common/ptx.cuh"
#include "simt_host/cases.h"

namespace trireme::simt_cases {
namespace {

namespace ptx = cuda::ptx;
using cuda::TensorMap;
using simt::FaultKind;

struct Smem {
  alignas(1024) __nv_bfloat16 a[64][64];
  alignas(1024) __nv_bfloat16 b[64][64];
  uint64_t full, empty;
};

enum Fault {
  kNone,
  kReadBeforeWait,
  kAccumulatorsBeforeWait,
  kAccumulatorsWritten,
  kWgmmaBeforeWait,
  kRefilledWhileRead,
  kMissingProxyFence,
  kTooManyBytes,
  kTooFewBytes,
  kStoreNotWaited,
  kModifiedWithoutFence,
  kNoWgmmaFence,
  kNeverWaitedForWgmma,
  kNoInitFence,
  kNoBarrierAfterInit,
  kSecondInit,
  kOverwrittenMbarrier,
  kNoMbarrier,
  kWrongParity,
  kTooManyArrivals,
  kLeaveInFlight,
  kStoreNotCommitted,
  kHalfWarpgroup,
  kDifferentDescriptors,
  kMisalignedTile,
  kLoadBetween16Bytes,
  kStoreBetween16Bytes,
  kTooManyRegisters,
};

template <Fault kFault>
__global__ void __launch_bounds__(128) multiply(const __grid_constant__ TensorMap map,
                                                const __grid_constant__ TensorMap to, float* out) {
  Smem& s = cuda::smem<Smem>();
  const int lane = threadIdx.x % 32;
  if (kFault == kTooManyRegisters) ptx::increase_registers<256 + 8>();
  if (threadIdx.x == 0) {
    if (kFault != kNoMbarrier) ptx::mbarrier_init(&s.full, 1);
    if (kFault == kSecondInit) ptx::mbarrier_init(&s.full, 1);
    ptx::mbarrier_init(&s.empty,
                       kFault == kRefilledWhileRead || kFault == kTooManyArrivals ? 4 : 128);
    if (kFault != kNoInitFence) ptx::fence_mbarrier_init();
  }
  if (kFault != kNoBarrierAfterInit) __syncthreads();
  if (threadIdx.x == 0) {
    if (kFault == kOverwrittenMbarrier) s.full = 1;
    const int bytes = sizeof s.a + sizeof s.b;
    ptx::mbarrier_arrive_expect_tx(&s.full, bytes + (kFault == kTooManyBytes  ? 16
                                                     : kFault == kTooFewBytes ? -16
                                                                              : 0));
    ptx::tma_load_2d(kFault == kMisalignedTile ? &s.a[1] : &s.a[0], map, 0, 0, &s.full);
    ptx::tma_load_2d(s.b, map, kFault == kLoadBetween16Bytes ? 4 : 0, 0, &s.full);
  }
  // Not enough: the data may come later.
  if (kFault == kReadBeforeWait || kFault == kWgmmaBeforeWait) __syncthreads();
  if (kFault == kReadBeforeWait)
    out[threadIdx.x] = __bfloat162float(s.a[threadIdx.x % 64][0]);  // fault: read_before_wait
  if (kFault != kWgmmaBeforeWait)
    ptx::mbarrier_wait(&s.full, kFault == kWrongParity ? 1 : 0);  // fault: too_many_bytes

  float acc[32];
  const uint64_t a = ptx::wgmma_descriptor_sw128(s.a), b = ptx::wgmma_descriptor_sw128(s.b);
  if (kFault != kNoWgmmaFence) ptx::wgmma_fence();
  if (kFault == kHalfWarpgroup && threadIdx.x >= 64) return;
  const bool other = kFault == kDifferentDescriptors && threadIdx.x >= 64;
  ptx::wgmma_m64n64k16_bf16(acc, other ? b : a, b, false);  // fault: no_wgmma_fence
  ptx::wgmma_commit();
  if (kFault == kNeverWaitedForWgmma) return;
  if (kFault == kRefilledWhileRead) {
    if (lane == 0) ptx::mbarrier_arrive(&s.empty);
    if (threadIdx.x == 0) {
      ptx::mbarrier_wait(&s.empty, 0);
      ptx::mbarrier_arrive_expect_tx(&s.full, sizeof s.a);
      ptx::tma_load_2d(s.a, map, 0, 0, &s.full);  // fault: refilled_while_read
    }
  }
  if (kFault == kAccumulatorsBeforeWait) out[threadIdx.x] = acc[3];  // fault: accumulators_early
  if (kFault == kAccumulatorsWritten) acc[threadIdx.x % 2] = 0.0f;   // fault: accumulators_written
  ptx::wgmma_wait<0>(acc);
  if (kFault == kModifiedWithoutFence) {
    for (int i = 0; i < 32; ++i) acc[i] *= 2.0f;
    ptx::wgmma_m64n64k16_bf16(acc, a + 2, b + 2, true);  // fault: modified_without_fence
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(acc);
  }
  if (kFault == kTooManyArrivals && threadIdx.x < 64) {
    ptx::mbarrier_arrive(&s.empty);
    ptx::mbarrier_arrive_expect_tx(&s.empty, 16);
  }
  out[threadIdx.x] = acc[0];

  __syncthreads();
  if (threadIdx.x < 64) s.a[threadIdx.x][0] = __float2bfloat16(acc[0]);
  if (kFault != kMissingProxyFence) ptx::fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    const int column = kFault == kStoreBetween16Bytes ? -4 : 0;
    ptx::tma_store_2d(to, column, 0, s.a);  // fault: missing_proxy_fence
    if (kFault == kStoreNotCommitted) return;
    ptx::bulk_commit();
    if (kFault == kLeaveInFlight) return;
    if (kFault == kStoreNotWaited) s.a[0][0] = __float2bfloat16(1.0f);  // fault: store_not_waited
    ptx::bulk_wait<0>();
  }
}

TensorMap map_of(const __nv_bfloat16* p) {
  return cuda::encode_tiled<2>({.base = p, .dims = {64, 64}, .strides = {64}, .box = {64, 64}});
}

template <Fault kFault>
Case make(const char* name, FaultKind kind, FaultKind other) {
  return {name, kind,
          [](bool faulty, const Buffers& x) {
            cuda::launch(faulty ? multiply<kFault> : multiply<kNone>,
                         {.grid = 1, .block = 128, .smem_bytes = sizeof(Smem), .name = "multiply"},
                         map_of(x.a), map_of(x.to), x.out);
          },
          other};
}
template <Fault kFault>
Case make(const char* name, FaultKind kind) {
  return make<kFault>(name, kind, kind);
}

/// What cuTensorMapEncodeTiled refuses.
struct MapFault {
  int base = 0;
  uint64_t stride = 64;
  uint32_t rows = 64, columns = 64;
};
template <MapFault (*kFault)()>
Case refused(const char* name, FaultKind kind) {
  return {name, kind, [](bool faulty, const Buffers& x) {
            const MapFault f = faulty ? kFault() : MapFault{};
            cuda::encode_tiled<2>({.base = x.a + f.base,
                                   .dims = {64, 64},
                                   .strides = {f.stride},
                                   .box = {f.columns, f.rows}});
          }};
}
MapFault odd_base() { return {.base = 1}; }
MapFault odd_stride() { return {.stride = 63}; }
MapFault box_of_257() { return {.rows = 257}; }
MapFault wide_box() { return {.columns = 128}; }
MapFault large_tensor() { return {.stride = 128}; }

/// A warpgroup that gives registers back to two others: 168 for each of 384 threads.
template <int kGiven, int kTaken>
__global__ void __launch_bounds__(384) share_registers() {
  if (threadIdx.x < 128) {
    ptx::decrease_registers<kGiven>();
  } else {
    ptx::increase_registers<kTaken>();
  }
}
const Case kSharedRegisters = {
    "shared_registers", FaultKind::kLaunchConfig, [](bool faulty, const Buffers&) {
      cuda::launch(faulty ? share_registers<32, 240> : share_registers<40, 232>,
                   {.grid = 1, .block = 384, .name = "share_registers"});
    }};

const Case kCases[] = {
    make<kReadBeforeWait>("read_before_wait", FaultKind::kAsyncCopy, FaultKind::kUninitialised),
    make<kAccumulatorsBeforeWait>("accumulators_early", FaultKind::kWgmma),
    make<kAccumulatorsWritten>("accumulators_written", FaultKind::kWgmma),
    make<kWgmmaBeforeWait>("wgmma_before_wait", FaultKind::kAsyncCopy, FaultKind::kUninitialised),
    make<kRefilledWhileRead>("refilled_while_read", FaultKind::kRace),
    make<kMissingProxyFence>("missing_proxy_fence", FaultKind::kProxyFence),
    make<kTooManyBytes>("too_many_bytes", FaultKind::kDeadlock),
    make<kTooFewBytes>("too_few_bytes", FaultKind::kMbarrier),
    make<kStoreNotWaited>("store_not_waited", FaultKind::kRace),
    make<kModifiedWithoutFence>("modified_without_fence", FaultKind::kWgmma),
    make<kNoWgmmaFence>("no_wgmma_fence", FaultKind::kWgmma),
    make<kNeverWaitedForWgmma>("never_waited_for_wgmma", FaultKind::kWgmma),
    make<kNoInitFence>("no_init_fence", FaultKind::kProxyFence),
    make<kNoBarrierAfterInit>("no_barrier_after_init", FaultKind::kRace, FaultKind::kMbarrier),
    make<kSecondInit>("second_init", FaultKind::kMbarrier),
    make<kOverwrittenMbarrier>("overwritten_mbarrier", FaultKind::kMbarrier),
    make<kNoMbarrier>("no_mbarrier", FaultKind::kMbarrier),
    make<kWrongParity>("wrong_parity", FaultKind::kAsyncCopy, FaultKind::kUninitialised),
    make<kTooManyArrivals>("too_many_arrivals", FaultKind::kMbarrier),
    make<kLeaveInFlight>("leaves_with_store", FaultKind::kAsyncCopy),
    make<kStoreNotCommitted>("store_not_committed", FaultKind::kAsyncCopy),
    make<kHalfWarpgroup>("half_warpgroup", FaultKind::kDeadlock),
    make<kDifferentDescriptors>("different_descriptors", FaultKind::kWgmma),
    make<kMisalignedTile>("misaligned_tile", FaultKind::kMisaligned),
    make<kLoadBetween16Bytes>("load_between_16_bytes", FaultKind::kTma),
    make<kStoreBetween16Bytes>("store_between_16_bytes", FaultKind::kTma),
    make<kTooManyRegisters>("too_many_registers", FaultKind::kLaunchConfig),
    kSharedRegisters,
    refused<odd_base>("odd_base", FaultKind::kTma),
    refused<odd_stride>("odd_stride", FaultKind::kTma),
    refused<box_of_257>("box_of_257", FaultKind::kTma),
    refused<wide_box>("wide_box", FaultKind::kTma),
    refused<large_tensor>("large_tensor", FaultKind::kOutOfBounds),
};

}  // namespace

std::span<const Case> hopper_cases() { return kCases; }

}  // namespace trireme::simt_cases
