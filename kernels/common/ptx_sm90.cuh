#pragma once
// The PTX instructions of Hopper (sm_90a), one function each: mbarriers, TMA, wgmma. The device
// body here, the host body in simt_host. Part of ptx.cuh, which includes it.
#include "kernels/common/cuda.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/tensor_map.cuh"

namespace trireme::cuda::ptx {

/// What an operand's codes mean to wgmma.
enum class Fp8 { kE4M3, kE5M2 };

#if TRIREME_DEVICE

__device__ __forceinline__ void mbarrier_init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count)
               : "memory");
}
__device__ __forceinline__ void mbarrier_invalidate(uint64_t* bar) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
}
// True once the phase of that parity is complete; may wait a while.
__device__ __forceinline__ bool mbarrier_try_wait(uint64_t* bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(shared_address(bar)), "r"(parity)
      : "memory");
  return done != 0;
}
// Shows this thread's mbarrier_init to the async proxy and the cluster; a block barrier follows.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Between this thread's ordinary accesses to shared memory and those of TMA or wgmma.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Likewise to global memory: between the beginning of a turn (ptx.cuh) and bulk copies in it, and
// between their completion and the turn's end.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Four 8x8 matrices of 16 bits, as ldmatrix_x4 gives them; lane l names row l%8 of matrix l/8.
__device__ __forceinline__ void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}
// Box at (c0, c1), c0 innermost, to shared memory, bytes counted on bar. One thread. Zeros outside.
__device__ __forceinline__ void tma_load_2d(void* shared, const TensorMap& map, int c0, int c1,
                                            uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3}], [%4];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(c0), "r"(c1), "r"(shared_address(bar))
      : "memory");
}
__device__ __forceinline__ void tma_load_3d(void* shared, const TensorMap& map, int c0, int c1,
                                            int c2, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4}], [%5];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(shared_address(bar))
      : "memory");
}
__device__ __forceinline__ void tma_load_4d(void* shared, const TensorMap& map, int c0, int c1,
                                            int c2, int c3, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4, %5}], [%6];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
      "r"(shared_address(bar))
      : "memory");
}

// ---- clusters ----
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
// Among all threads of the cluster, whose warps need not be together.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// On the mbarrier at the same place in another block of the cluster (or in this one).
__device__ __forceinline__ void mbarrier_arrive_at(uint64_t* bar, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(shared_address(bar)),
      "r"(rank)
      : "memory");
}
// To the same place in each block whose bit is set; each counts the bytes on its own mbarrier.
__device__ __forceinline__ void tma_load_2d_multicast(void* shared, const TensorMap& map, int c0,
                                                      int c1, uint64_t* bar, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
      "multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(c0), "r"(c1), "r"(shared_address(bar)), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void tma_load_3d_multicast(void* shared, const TensorMap& map, int c0,
                                                      int c1, int c2, uint64_t* bar,
                                                      uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
      "multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(shared_address(bar)),
      "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void tma_load_4d_multicast(void* shared, const TensorMap& map, int c0,
                                                      int c1, int c2, int c3, uint64_t* bar,
                                                      uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
      "multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
      "r"(shared_address(bar)), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void tma_store_2d(const TensorMap& map, int c0, int c1,
                                             const void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
          reinterpret_cast<uint64_t>(&map)),
      "r"(c0), "r"(c1), "r"(shared_address(shared))
      : "memory");
}
__device__ __forceinline__ void tma_store_3d(const TensorMap& map, int c0, int c1, int c2,
                                             const void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
          reinterpret_cast<uint64_t>(&map)),
      "r"(c0), "r"(c1), "r"(c2), "r"(shared_address(shared))
      : "memory");
}
__device__ __forceinline__ void tma_store_4d(const TensorMap& map, int c0, int c1, int c2, int c3,
                                             const void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::
          "l"(reinterpret_cast<uint64_t>(&map)),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(shared))
      : "memory");
}
// The box at (c0, ..) += a box of f32 in shared memory, each element atomically and in no order;
// what lies outside of the tensor is left out. One thread, which waits for it as for a store.
__device__ __forceinline__ void tma_add_2d(const TensorMap& map, int c0, int c1,
                                           const float* shared) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], "
      "[%3];" ::"l"(reinterpret_cast<uint64_t>(&map)),
      "r"(c0), "r"(c1), "r"(shared_address(shared))
      : "memory");
}
__device__ __forceinline__ void tma_add_4d(const TensorMap& map, int c0, int c1, int c2, int c3,
                                           const float* shared) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3, "
      "%4}], [%5];" ::"l"(reinterpret_cast<uint64_t>(&map)),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(shared))
      : "memory");
}
// to[i] += from[i], each atomically and in no order; bytes, to and from: multiples of 16. One
// thread, which waits for it as for a store of TMA.
__device__ __forceinline__ void bulk_add_f32(float* to, const float* from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int kGroupsLeft>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}
template <int kGroupsLeft>  // shared memory may be written again; global memory is not yet visible
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroupsLeft) : "memory");
}

// Operands of wgmma in shared memory as TMA writes them with the 128-byte swizzle, 1024-byte
// aligned. K-major: rows of 64 bf16 or 128 codes along k; + 2 for each 32 bytes of a row.
__device__ __forceinline__ uint64_t wgmma_descriptor_sw128(const void* tile) {
  return uint64_t((shared_address(tile) & 0x3ffff) >> 4) | uint64_t(1) << 16 |
         uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
// M- or N-major: a row for each k, of 64 bf16 along M or N; what is wider stands in blocks of 64,
// block_bytes apart (128 bytes times the rows of a block). + 128 for each 16 rows of k.
__device__ __forceinline__ uint64_t wgmma_descriptor_sw128_mn(const void* tile, int block_bytes) {
  return uint64_t((shared_address(tile) & 0x3ffff) >> 4) | uint64_t(block_bytes >> 4) << 16 |
         uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// The accumulators are operands so that no use of them moves above the wait.
template <int kGroupsLeft, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&d)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kGroupsLeft, int kWaves, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&d)[kWaves][kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
#pragma unroll
  for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[wave][i])::"memory");
  }
}
template <int kRegisters>
__device__ __forceinline__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#include "kernels/common/ptx_wgmma.cuh"

#else

inline void mbarrier_init(uint64_t* bar, int count) { simt::mbarrier_init(bar, count); }
inline void mbarrier_invalidate(uint64_t* bar) { simt::mbarrier_invalidate(bar); }
inline void mbarrier_arrive(uint64_t* bar) { simt::mbarrier_arrive(bar, 0); }
inline void mbarrier_arrive_expect_tx(uint64_t* bar, int bytes) {
  simt::mbarrier_arrive(bar, bytes);
}
inline bool mbarrier_try_wait(uint64_t* bar, uint32_t parity,
                              simt::Loc loc = simt::Loc::current()) {
  simt::mbarrier_wait(bar, parity, loc);
  return true;
}
inline void fence_mbarrier_init() { simt::fence_mbarrier_init(); }
inline void fence_proxy_async_shared() { simt::fence_proxy_async(); }
inline void fence_proxy_async_global() { simt::fence_proxy_async_global(); }
void stmatrix_x4(void* row, const uint32_t (&r)[4], simt::Loc = simt::Loc::current());
inline void prefetch_tensor_map(const TensorMap& map) {
  simt::tma_check_map(&map, "prefetch.tensormap");
}
inline void tma_load_2d(void* shared, const TensorMap& map, int c0, int c1, uint64_t* bar,
                        simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1};
  simt::tma_load(shared, &map, 2, c, bar, loc);
}
inline void tma_load_3d(void* shared, const TensorMap& map, int c0, int c1, int c2, uint64_t* bar,
                        simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1, c2};
  simt::tma_load(shared, &map, 3, c, bar, loc);
}
inline void tma_load_4d(void* shared, const TensorMap& map, int c0, int c1, int c2, int c3,
                        uint64_t* bar, simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1, c2, c3};
  simt::tma_load(shared, &map, 4, c, bar, loc);
}
inline int cluster_rank() { return simt::cluster_rank(); }
inline void cluster_sync(simt::Loc loc = simt::Loc::current()) { simt::cluster_barrier(loc); }
inline void mbarrier_arrive_at(uint64_t* bar, int rank) { simt::mbarrier_arrive_at(bar, rank); }
inline void tma_load_2d_multicast(void* shared, const TensorMap& map, int c0, int c1, uint64_t* bar,
                                  uint16_t blocks, simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1};
  simt::tma_load_multicast(shared, &map, 2, c, bar, blocks, loc);
}
inline void tma_load_3d_multicast(void* shared, const TensorMap& map, int c0, int c1, int c2,
                                  uint64_t* bar, uint16_t blocks,
                                  simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1, c2};
  simt::tma_load_multicast(shared, &map, 3, c, bar, blocks, loc);
}
inline void tma_load_4d_multicast(void* shared, const TensorMap& map, int c0, int c1, int c2,
                                  int c3, uint64_t* bar, uint16_t blocks,
                                  simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1, c2, c3};
  simt::tma_load_multicast(shared, &map, 4, c, bar, blocks, loc);
}
inline void tma_store_2d(const TensorMap& map, int c0, int c1, const void* shared,
                         simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1};
  simt::tma_store(&map, shared, 2, c, loc);
}
inline void tma_store_3d(const TensorMap& map, int c0, int c1, int c2, const void* shared,
                         simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1, c2};
  simt::tma_store(&map, shared, 3, c, loc);
}
inline void tma_store_4d(const TensorMap& map, int c0, int c1, int c2, int c3, const void* shared,
                         simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1, c2, c3};
  simt::tma_store(&map, shared, 4, c, loc);
}
inline void tma_add_2d(const TensorMap& map, int c0, int c1, const float* shared,
                       simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1};
  simt::tma_add(&map, shared, 2, c, loc);
}
inline void tma_add_4d(const TensorMap& map, int c0, int c1, int c2, int c3, const float* shared,
                       simt::Loc loc = simt::Loc::current()) {
  const int c[] = {c0, c1, c2, c3};
  simt::tma_add(&map, shared, 4, c, loc);
}
inline void bulk_add_f32(float* to, const float* from, int bytes,
                         simt::Loc loc = simt::Loc::current()) {
  simt::bulk_add(to, from, bytes, loc);
}
inline void bulk_commit() { simt::bulk_commit(); }
template <int kGroupsLeft>
void bulk_wait(simt::Loc loc = simt::Loc::current()) {
  simt::bulk_wait(kGroupsLeft, false, loc);
}
template <int kGroupsLeft>
void bulk_wait_read(simt::Loc loc = simt::Loc::current()) {
  simt::bulk_wait(kGroupsLeft, true, loc);
}
inline uint64_t wgmma_descriptor_sw128(const void* tile) {
  return simt::wgmma_descriptor(tile, 16);
}
inline uint64_t wgmma_descriptor_sw128_mn(const void* tile, int block_bytes) {
  return simt::wgmma_descriptor(tile, block_bytes);
}
inline void wgmma_fence() { simt::wgmma_fence(); }
inline void wgmma_commit() { simt::wgmma_commit(); }
template <int kGroupsLeft, int kCount>
void wgmma_wait(float (&)[kCount], simt::Loc loc = simt::Loc::current()) {
  simt::wgmma_wait(kGroupsLeft, loc);
}
template <int kGroupsLeft, int kWaves, int kCount>
void wgmma_wait(float (&)[kWaves][kCount], simt::Loc loc = simt::Loc::current()) {
  simt::wgmma_wait(kGroupsLeft, loc);
}
#define TRIREME_WGMMA(N)                                                                           \
  template <int kTransposeA = 0, int kTransposeB = 0>                                              \
  void wgmma_m64n##N##k16_bf16(float(&d)[N / 2], uint64_t a, uint64_t b, bool accumulate,          \
                               simt::Loc loc = simt::Loc::current()) {                             \
    simt::wgmma_issue(d, {N, kTransposeA != 0, kTransposeB != 0, accumulate}, nullptr, a, b, loc); \
  }                                                                                                \
  template <int kTransposeB = 0>                                                                   \
  void wgmma_m64n##N##k16_bf16(float(&d)[N / 2], const uint32_t(&a)[4], uint64_t b,                \
                               bool accumulate, simt::Loc loc = simt::Loc::current()) {            \
    simt::wgmma_issue(d, {N, false, kTransposeB != 0, accumulate}, a, 0, b, loc);                  \
  }
TRIREME_WGMMA(64)
TRIREME_WGMMA(80)
TRIREME_WGMMA(96)
TRIREME_WGMMA(128)
TRIREME_WGMMA(192)
TRIREME_WGMMA(256)
#undef TRIREME_WGMMA
inline simt::WgmmaFormat format_of(Fp8 format) {
  return format == Fp8::kE4M3 ? simt::WgmmaFormat::kE4m3 : simt::WgmmaFormat::kE5m2;
}
template <Fp8 kA, Fp8 kB>
void wgmma_m64n128k32(float (&d)[64], uint64_t a, uint64_t b, bool accumulate,
                      simt::Loc loc = simt::Loc::current()) {
  simt::wgmma_issue(d, {128, false, false, accumulate, format_of(kA), format_of(kB)}, nullptr, a, b,
                    loc);
}
template <int kRegisters>
void increase_registers(simt::Loc loc = simt::Loc::current()) {
  simt::set_max_registers(kRegisters, true, loc);
}
template <int kRegisters>
void decrease_registers(simt::Loc loc = simt::Loc::current()) {
  simt::set_max_registers(kRegisters, false, loc);
}

#endif

// Waits for the phase of that parity; a fresh barrier has completed one of parity 1.
#if TRIREME_DEVICE
__device__ __forceinline__ void mbarrier_wait(uint64_t* bar, uint32_t parity) {
  while (!mbarrier_try_wait(bar, parity)) {
  }
}
#else
inline void mbarrier_wait(uint64_t* bar, uint32_t parity, simt::Loc loc = simt::Loc::current()) {
  simt::mbarrier_wait(bar, parity, loc);
}
#endif

}  // namespace trireme::cuda::ptx
