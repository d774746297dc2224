// cp.async: bytes used before they are there, or never waited for.
#include "kernels/common/cuda.cuh"
#include "kernels/common/ptx.cuh"
#include "simt_host/cases.h"

namespace trireme::simt_cases {
namespace {

namespace ptx = cuda::ptx;
using simt::FaultKind;

struct Smem {
  alignas(16) float x[2][64];
};

enum Fault {
  kNone,
  kMissingWait,
  kWaitTooEarly,
  kNoBarrierAfterWait,
  kWriteUnderCopy,
  kNeverWaited,
  kNeverCommitted,
  kTooManySourceBytes,
  kMisalignedSource,
  kTargetNotShared,
  kSourcePastTheEnd,
};

template <Fault kFault>
__global__ void copies(float* out, const float* in) {
  Smem& s = cuda::smem<Smem>();
  const int i = threadIdx.x % 16 * 4;
  if (threadIdx.x < 16) {
    ptx::cp_async_16(&s.x[0][i], in + i);
    ptx::cp_async_commit();
    float* to = kFault == kTargetNotShared ? out + i : &s.x[1][i];
    const float* from = in + 64 + i + (kFault == kMisalignedSource ? 1 : 0);
    if (kFault == kSourcePastTheEnd) from = in + Buffers::kFloats - 60 + i;
    ptx::cp_async_16(to, from, kFault == kTooManySourceBytes ? 20 : 16);
    if (kFault != kNeverCommitted) ptx::cp_async_commit();
    if (kFault == kWriteUnderCopy) s.x[1][i] = 0.0f;  // fault: write_under_copy
    if (kFault == kWaitTooEarly) ptx::cp_async_wait<1>();
    if (kFault != kMissingWait && kFault != kWaitTooEarly && kFault != kNeverWaited)
      ptx::cp_async_wait<0>();
  }
  if (kFault != kNoBarrierAfterWait) __syncthreads();
  if (kFault == kNeverWaited || kFault == kNeverCommitted) return;
  out[threadIdx.x] = s.x[0][threadIdx.x];       // fault: missing_wait
  out[threadIdx.x + 64] = s.x[1][threadIdx.x];  // fault: wait_too_early
}

template <Fault kFault>
Case make(const char* name, FaultKind kind, FaultKind other) {
  return {name, kind,
          [](bool faulty, const Buffers& x) {
            cuda::launch(faulty ? copies<kFault> : copies<kNone>,
                         {.grid = 1, .block = 64, .smem_bytes = sizeof(Smem), .name = "copies"},
                         x.out, x.in);
          },
          other};
}
template <Fault kFault>
Case make(const char* name, FaultKind kind) {
  return make<kFault>(name, kind, kind);
}

const Case kCases[] = {
    make<kMissingWait>("missing_wait", FaultKind::kAsyncCopy),
    make<kWaitTooEarly>("wait_too_early", FaultKind::kAsyncCopy),
    make<kNoBarrierAfterWait>("no_barrier_after_wait", FaultKind::kRace, FaultKind::kUninitialised),
    make<kWriteUnderCopy>("write_under_copy", FaultKind::kAsyncCopy),
    make<kNeverWaited>("never_waited", FaultKind::kAsyncCopy),
    make<kNeverCommitted>("never_committed", FaultKind::kAsyncCopy),
    make<kTooManySourceBytes>("too_many_source_bytes", FaultKind::kAsyncCopy),
    make<kMisalignedSource>("misaligned_source", FaultKind::kMisaligned),
    make<kTargetNotShared>("target_not_shared", FaultKind::kOutOfBounds),
    make<kSourcePastTheEnd>("source_past_the_end", FaultKind::kOutOfBounds),
};

}  // namespace

std::span<const Case> async_cases() { return kCases; }

}  // namespace trireme::simt_cases
