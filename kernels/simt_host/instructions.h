#pragma once
// The PTX instructions of kernels/common/ptx.cuh on the host.

#include "kernels/simt_host/runtime.h"

namespace trireme::simt {

// Shadow accesses of plain code (PTX host bodies). thread: index in the block, -1 = caller.
void note_read(const void*, size_t, int thread = -1);
void note_write(void*, size_t, int thread = -1);
void note_atomic(void*, size_t, bool is_float, Loc);
void async_issue(void* dst, const void* src, int bytes, int source_bytes);
void async_commit();
void async_wait(int groups_left);

// ---- Hopper ----
void mbarrier_init(uint64_t* bar, int count);
void mbarrier_invalidate(uint64_t* bar);
void mbarrier_arrive(uint64_t* bar, int expect_tx_bytes);
/// At the same place in another block of the cluster.
void mbarrier_arrive_at(uint64_t* bar, int rank);
int cluster_rank();
void cluster_barrier(Loc);
// Blocks the fiber until that phase is complete: a hang is a reported deadlock.
void mbarrier_wait(uint64_t* bar, uint32_t parity, Loc);
void fence_mbarrier_init();
void fence_proxy_async();
void fence_proxy_async_global();
/// Turns of blocks by a count in device memory.
void begin_turn(const int* count, int turn, Loc);
void end_turn(int* count, Loc);
void tma_load(void* dst, const CUtensorMap* map, int rank, const int* coordinate, uint64_t* bar,
              Loc);
/// To the same place in each block of the cluster whose bit is set.
void tma_load_multicast(void* dst, const CUtensorMap* map, int rank, const int* coordinate,
                        uint64_t* bar, uint32_t blocks, Loc);
void tma_store(const CUtensorMap* map, const void* src, int rank, const int* coordinate, Loc);
/// Bulk reduction of a box of f32.
void tma_add(const CUtensorMap* map, const void* src, int rank, const int* coordinate, Loc);
/// Bulk reduction: to[i] += from[i], f32.
void bulk_add(float* to, const float* from, int bytes, Loc);
void tma_check_map(const CUtensorMap* map, const char* what);
void bulk_commit();
void bulk_wait(int groups_left, bool read_only, Loc);
/// With the 128-byte swizzle; leading_bytes: between blocks of 64 along M or N (16 if K-major).
uint64_t wgmma_descriptor(const void* tile, uint32_t leading_bytes);
void wgmma_fence();
enum class WgmmaFormat { kBf16, kE4m3, kE5m2 };
struct WgmmaShape {
  int n;
  bool a_mn_major, b_mn_major, accumulate;
  WgmmaFormat a = WgmmaFormat::kBf16, b = WgmmaFormat::kBf16;
  bool operator==(const WgmmaShape&) const = default;
};
/// a_registers: null where A stands in shared memory.
void wgmma_issue(float* d, const WgmmaShape&, const uint32_t* a_registers, uint64_t a, uint64_t b,
                 Loc);
void wgmma_commit();
void wgmma_wait(int groups_left, Loc);
void set_max_registers(int n, bool increase, Loc);
// Stands in for cuTensorMapEncodeTiled, rows swizzled in themselves: rank, dims (elements), strides
// (bytes, from dim 1), box.
void encode_tensor_map(CUtensorMap* out, int element_bytes, int rank, const void* base,
                       const uint64_t* dims, const uint64_t* strides, const uint32_t* box);

}  // namespace trireme::simt
