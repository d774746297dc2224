#pragma once
// Every PTX instruction the kernels use, one function each: the device body here, the host's in
// simt_host/ptx.cc. No asm but here and in ptx_sm90.cuh. Shared memory is given by pointers.
#include "kernels/common/cuda.cuh"

namespace trireme::cuda::ptx {

#if TRIREME_DEVICE

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// d += a * b, one warp. a: 16x16 row major, b: 16x8 column major, bf16 pairs; d: 16x8 fp32.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8x8 matrices of 16 bits; lane l gives row l%8 of matrix l/8 (16-byte aligned).
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 aligned bytes to shared memory; the last 16 - source_bytes are zero, their source unread.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global,
                                            int source_bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(source_bytes)
               : "memory");
}
// Likewise 4 bytes.
__device__ __forceinline__ void cp_async_4(void* shared, const void* global, int source_bytes = 4) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(source_bytes)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kGroupsLeft>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#if __CUDA_ARCH__ >= 890
// fp8 codes of two values, `low` in bits 0 to 7: nearest even, the largest beyond it, 0x7f of a
// NaN. float8.cuh has the same in integer steps for older GPUs and the host.
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
__device__ __forceinline__ uint32_t e5m2_pair(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
#endif
// to[0] += low, to[1] += high, each atomically; `to` is 8-byte aligned.
__device__ __forceinline__ void atomic_add_pair(float* to, float low, float high) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
      "f"(low), "f"(high)
      : "memory");
#else
  atomicAdd(to, low);
  atomicAdd(to + 1, high);
#endif
}
// Barriers 1 to 15 among some warps (0 is __syncthreads).
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#else

void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                       simt::Loc = simt::Loc::current());
void ldmatrix_x4(uint32_t (&r)[4], const void* row, simt::Loc = simt::Loc::current());
void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, simt::Loc = simt::Loc::current());
inline void cp_async_16(void* shared, const void* global, int source_bytes = 16) {
  simt::async_issue(shared, global, 16, source_bytes);
}
inline void cp_async_4(void* shared, const void* global, int source_bytes = 4) {
  simt::async_issue(shared, global, 4, source_bytes);
}
inline void cp_async_commit() { simt::async_commit(); }
template <int kGroupsLeft>
void cp_async_wait() {
  simt::async_wait(kGroupsLeft);
}
inline float exp2_approx(float x) { return std::exp2(x); }
inline void atomic_add_pair(float* to, float low, float high,
                            simt::Loc loc = simt::Loc::current()) {
  simt::check_alignment(to, 2 * sizeof(float));
  atomicAdd(to, low, loc);
  atomicAdd(to + 1, high, loc);
}
inline void barrier_sync(int id, int threads, simt::Loc loc = simt::Loc::current()) {
  simt::named_barrier(id, threads, true, loc);
}
inline void barrier_arrive(int id, int threads, simt::Loc loc = simt::Loc::current()) {
  simt::named_barrier(id, threads, false, loc);
}

#endif

}  // namespace trireme::cuda::ptx

#include "kernels/common/ptx_sm90.cuh"
