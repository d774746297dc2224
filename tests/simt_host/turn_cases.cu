// Bulk reductions, and turns of blocks at what they add to.
#include "kernels/common/cuda.cuh"
#include "kernels/common/ptx.cuh"
#include "simt_host/cases.h"

namespace trireme::simt_cases {
namespace {

namespace ptx = cuda::ptx;
using simt::FaultKind;

constexpr int kRow = 64;

struct Smem {
  alignas(16) float row[2 * kRow];
  int turn;
};

enum Fault {
  kNone,
  kSumWithoutFence,
  kSumMisaligned,
  kSumNotWaitedFor,
  kSumStillRead,
  kTurnWithoutFence,
  kTurnEndsWithoutFence,
  kTurnEndsEarly,
  kTurnNotWaitedFor,
  kTurnNeverComes,
  kTurnHasPassed,
  kBoxWithoutFence,
  kBoxOfOtherNumbers,
  kBoxStillRead,
  kBoxWithoutTurnsFence,
  kStoredBoxWithoutTurnsFence,
  kStoredBoxEndsWithoutFence,
  kTurnOfOneThread,
  kTurnEndsBeforeOthers,
};

/// Each block adds a row to `to`, one after the other in the order in which they began.
template <Fault kFault>
__global__ void __launch_bounds__(kRow) add_in_turn(float* to, int* counts) {
  Smem& s = cuda::smem<Smem>();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) s.turn = atomicAdd(&counts[0], 1);
  __syncthreads();
  const int turn = kFault == kTurnHasPassed ? 0 : s.turn + (kFault == kTurnNeverComes ? 1 : 0);
  s.row[thread] = s.row[thread + kRow] = static_cast<float>(s.turn + 1);
  if (kFault != kSumWithoutFence) ptx::fence_proxy_async_shared();
  __syncthreads();
  if (thread != 0) return;
  if (kFault != kTurnNotWaitedFor) ptx::begin_turn(&counts[1], turn);  // fault: turn_never_comes
  if (kFault != kTurnWithoutFence) ptx::fence_proxy_async_global();
  ptx::bulk_add_f32(to, s.row + (kFault == kSumMisaligned ? 1 : 0), sizeof s.row / 2);
  ptx::bulk_commit();
  if (kFault == kSumNotWaitedFor) return;
  if (kFault == kSumStillRead) s.row[0] = 0;  // fault: sum_still_read
  if (kFault == kTurnEndsEarly) {
    ptx::bulk_wait_read<0>();
  } else {
    ptx::bulk_wait<0>();
  }
  if (kFault != kTurnEndsWithoutFence) ptx::fence_proxy_async_global();
  ptx::end_turn(&counts[1]);  // fault: turn_ends_early
}

struct BoxSmem {
  alignas(1024) float box[8 * 32];
};
/// Each block adds a box of ones to `to` in its turn.
template <Fault kFault>
__global__ void __launch_bounds__(256)
    add_boxes(const __grid_constant__ cuda::TensorMap to, int* counts) {
  BoxSmem& s = cuda::smem<BoxSmem>();
  s.box[threadIdx.x] = 1;
  if (kFault != kBoxWithoutFence) ptx::fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::begin_turn(&counts[1], atomicAdd(&counts[0], 1));
  if (kFault != kBoxWithoutTurnsFence && kFault != kStoredBoxWithoutTurnsFence)
    ptx::fence_proxy_async_global();
  if (kFault == kStoredBoxWithoutTurnsFence || kFault == kStoredBoxEndsWithoutFence) {
    ptx::tma_store_4d(to, 0, 0, 0, 0, s.box);
  } else {
    ptx::tma_add_4d(to, 0, 0, 0, 0, s.box);
  }
  ptx::bulk_commit();
  if (kFault == kBoxStillRead) s.box[0] = 0;  // fault: box_still_read
  ptx::bulk_wait<0>();
  if (kFault != kStoredBoxEndsWithoutFence) ptx::fence_proxy_async_global();
  ptx::end_turn(&counts[1]);
}

/// Each block adds to what those before it have left, each thread to an element.
template <Fault kFault>
__global__ void __launch_bounds__(kRow) hand_on(float* to, int* counts) {
  Smem& s = cuda::smem<Smem>();
  const bool elected = threadIdx.x == 0;
  if (elected) {
    s.turn = atomicAdd(&counts[0], 1);
    ptx::begin_turn(&counts[1], s.turn);
  }
  if (kFault != kTurnOfOneThread) __syncthreads();
  to[threadIdx.x] += 1;
  if (kFault != kTurnEndsBeforeOthers) __syncthreads();
  if (elected) ptx::end_turn(&counts[1]);
}

template <class Element>
cuda::TensorMap boxes_of(Element* to) {
  return cuda::encode_tiled<4, Element>({.base = to,
                                         .dims = {32, 1, 8, 1},
                                         .strides = {32, 32, 256},
                                         .box = {128 / sizeof(Element), 1, 8, 1}});
}
template <Fault kFault>
Case make_box(const char* name, FaultKind kind) {
  return {name, kind, [](bool faulty, const Buffers& x) {
            int* counts = reinterpret_cast<int*>(x.in);
            cudaMemsetAsync(counts, 0, 2 * sizeof *counts, nullptr);
            cuda::launch(faulty ? add_boxes<kFault> : add_boxes<kNone>,
                         {.grid = 2, .block = 256, .smem_bytes = sizeof(BoxSmem), .name = "add"},
                         faulty && kFault == kBoxOfOtherNumbers ? boxes_of(x.a) : boxes_of(x.out),
                         counts);
          }};
}

template <Fault kFault>
Case make(const char* name, FaultKind kind) {
  return {name, kind, [](bool faulty, const Buffers& x) {
            int* counts = reinterpret_cast<int*>(x.in);
            cudaMemsetAsync(counts, 0, 2 * sizeof *counts, nullptr);
            cuda::launch(faulty ? add_in_turn<kFault> : add_in_turn<kNone>,
                         {.grid = 2, .block = kRow, .smem_bytes = sizeof(Smem), .name = "add"},
                         x.out, counts);
          }};
}

template <Fault kFault>
Case make_row(const char* name) {
  return {name, FaultKind::kRace, [](bool faulty, const Buffers& x) {
            int* counts = reinterpret_cast<int*>(x.in);
            cudaMemsetAsync(counts, 0, 2 * sizeof *counts, nullptr);
            cuda::launch(faulty ? hand_on<kFault> : hand_on<kNone>,
                         {.grid = 3, .block = kRow, .smem_bytes = sizeof(Smem), .name = "add"},
                         x.out, counts);
          }};
}

const Case kCases[] = {
    make<kSumWithoutFence>("sum_without_fence", FaultKind::kProxyFence),
    make<kSumMisaligned>("sum_misaligned", FaultKind::kMisaligned),
    make<kSumNotWaitedFor>("sum_not_waited_for", FaultKind::kAsyncCopy),
    make<kSumStillRead>("sum_still_read", FaultKind::kRace),
    make<kTurnWithoutFence>("turn_without_fence", FaultKind::kProxyFence),
    make<kTurnEndsWithoutFence>("turn_ends_without_fence", FaultKind::kProxyFence),
    make<kTurnEndsEarly>("turn_ends_early", FaultKind::kAsyncCopy),
    make<kTurnNotWaitedFor>("turn_not_waited_for", FaultKind::kRace),
    make<kTurnNeverComes>("turn_never_comes", FaultKind::kDeadlock),
    make<kTurnHasPassed>("turn_has_passed", FaultKind::kDeadlock),
    make_box<kBoxWithoutFence>("box_without_fence", FaultKind::kProxyFence),
    make_box<kBoxOfOtherNumbers>("box_of_other_numbers", FaultKind::kTma),
    make_box<kBoxStillRead>("box_still_read", FaultKind::kRace),
    make_box<kBoxWithoutTurnsFence>("box_without_turns_fence", FaultKind::kProxyFence),
    make_box<kStoredBoxWithoutTurnsFence>("stored_box_without_turns_fence", FaultKind::kProxyFence),
    make_box<kStoredBoxEndsWithoutFence>("stored_box_ends_without_fence", FaultKind::kProxyFence),
    make_row<kTurnOfOneThread>("turn_of_one_thread"),
    make_row<kTurnEndsBeforeOthers>("turn_ends_before_others"),
};

}  // namespace

std::span<const Case> turn_cases() { return kCases; }

}  // namespace trireme::simt_cases
