#include "kernels/common/cuda.cuh"
#include "kernels/common/ptx.cuh"
#include "simt_host/hopper_units.h"

namespace trireme::simt_cases {
namespace {

namespace ptx = cuda::ptx;
using cuda::smem;
using cuda::TensorMap;
/// Along which side an operand is contiguous in shared memory.
enum class Major { kK, kMn };

struct BoxSmem {
  alignas(1024) Bf16 box[2 * 8 * 64];
  uint64_t full;
};
/// Loaded by TMA, doubled by ordinary code, stored at another place.
__global__ void double_box_kernel(const __grid_constant__ TensorMap from,
                                  const __grid_constant__ TensorMap to, int c0, int c1, int c2) {
  BoxSmem& s = smem<BoxSmem>();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.full, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(&s.full, sizeof s.box);
    ptx::tma_load_3d(s.box, from, c0, c1, c2, &s.full);
  }
  ptx::mbarrier_wait(&s.full, 0);
  for (int i = threadIdx.x; i < 2 * 8 * 64; i += blockDim.x) s.box[i] = s.box[i] + s.box[i];
  ptx::fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::tma_store_3d(to, c0, c1, c2, s.box);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

struct MatrixSmem {
  alignas(16) Bf16 rows[32][8];
};
__global__ void store_matrices_kernel(Bf16* out, const uint32_t* registers) {
  MatrixSmem& s = smem<MatrixSmem>();
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t r[4];
  for (int i = 0; i < 4; ++i) r[i] = registers[lane * 4 + i];
  ptx::stmatrix_x4(s.rows[lane], r);
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = s.rows[lane][i];
}

struct SumSmem {
  alignas(16) float row[64];
};
__global__ void add_in_bulk_kernel(float* to, const float* from) {
  SumSmem& s = smem<SumSmem>();
  s.row[threadIdx.x] = from[threadIdx.x];
  ptx::fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::bulk_add_f32(to, s.row, sizeof s.row);
  ptx::bulk_commit();
  ptx::bulk_wait<0>();
}

struct SumBoxSmem {
  alignas(1024) float box[8][32];
};
__global__ void add_box_kernel(const __grid_constant__ TensorMap to, const float* from, int c0,
                               int c1, int c2, int c3) {
  SumBoxSmem& s = smem<SumBoxSmem>();
  const int column = static_cast<int>(threadIdx.x);
  for (int row = 0; row < 8; ++row)
    s.box[row][(column / 4 ^ row) * 4 + column % 4] = from[row * 32 + column];
  ptx::fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::tma_add_4d(to, c0, c1, c2, c3, s.box[0]);
  ptx::bulk_commit();
  ptx::bulk_wait<0>();
}

/// kTranspose: A's and B's, or B's alone where A stands in registers.
template <int kN, int... kTranspose, class A>
__device__ __forceinline__ void wgmma(float (&acc)[kN / 2], const A& a, uint64_t b, bool add) {
  if constexpr (kN == 64) ptx::wgmma_m64n64k16_bf16<kTranspose...>(acc, a, b, add);
  if constexpr (kN == 96) ptx::wgmma_m64n96k16_bf16<kTranspose...>(acc, a, b, add);
  if constexpr (kN == 128) ptx::wgmma_m64n128k16_bf16<kTranspose...>(acc, a, b, add);
  if constexpr (kN == 192) ptx::wgmma_m64n192k16_bf16<kTranspose...>(acc, a, b, add);
  if constexpr (kN == 256) ptx::wgmma_m64n256k16_bf16<kTranspose...>(acc, a, b, add);
}

template <int kN>
__device__ __forceinline__ void store_tile(float* out, const float (&acc)[kN / 2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    out[row * kN + column] = acc[i];
  }
}

/// a: 64 x 64; b: kN x 64 K-major, or blocks of 64 x 64 each holding 64 of N.
template <int kN>
struct TileSmem {
  alignas(1024) Bf16 a[64][64];
  alignas(1024) Bf16 b[(kN + 63) / 64 * 64][64];
  uint64_t full;
};
template <int kN, Major kMajorB>
__device__ __forceinline__ void load_tiles(TileSmem<kN>& s, const TensorMap& map_a,
                                           const TensorMap& map_b) {
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.full, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(&s.full,
                                   sizeof s.a + (kMajorB == Major::kMn ? sizeof s.b : kN * 128));
    ptx::tma_load_2d(s.a, map_a, 0, 0, &s.full);
    if (kMajorB == Major::kK) {
      ptx::tma_load_2d(s.b, map_b, 0, 0, &s.full);
    } else {
      for (int n = 0; n < kN; n += 64) ptx::tma_load_2d(s.b[n], map_b, n, 0, &s.full);
    }
  }
  ptx::mbarrier_wait(&s.full, 0);
}

template <int kN>
__global__ void __launch_bounds__(128)
    a_from_registers(const __grid_constant__ TensorMap map_a,
                     const __grid_constant__ TensorMap map_b, float* out) {
  TileSmem<kN>& s = smem<TileSmem<kN>>();
  load_tiles<kN, Major::kK>(s, map_a, map_b);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t a[4][4];
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) {
    const int row = warp * 16 + lane % 16, chunk = kk * 2 + lane / 16;
    ptx::ldmatrix_x4(a[kk], &s.a[row][(chunk ^ (row & 7)) * 8]);
  }
  float acc[kN / 2];
  const uint64_t da = ptx::wgmma_descriptor_sw128(s.a), db = ptx::wgmma_descriptor_sw128(s.b);
  ptx::wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) wgmma<kN, 0, 0>(acc, da + 2 * kk, db + 2 * kk, kk > 0);
  ptx::wgmma_commit();
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) wgmma<kN, 0>(acc, a[kk], db + 2 * kk, true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(acc);
  store_tile<kN>(out, acc);
}

template <int kN, Major kMajorA, Major kMajorB>
__global__ void __launch_bounds__(128) majors(const __grid_constant__ TensorMap map_a,
                                              const __grid_constant__ TensorMap map_b, float* out) {
  TileSmem<kN>& s = smem<TileSmem<kN>>();
  load_tiles<kN, kMajorB>(s, map_a, map_b);
  constexpr int kBlock = 64 * 128;  // 64 rows of k
  constexpr int kStepA = kMajorA == Major::kK ? 2 : 128, kStepB = kMajorB == Major::kK ? 2 : 128;
  const uint64_t a = kMajorA == Major::kK ? ptx::wgmma_descriptor_sw128(s.a)
                                          : ptx::wgmma_descriptor_sw128_mn(s.a, kBlock);
  const uint64_t b = kMajorB == Major::kK ? ptx::wgmma_descriptor_sw128(s.b)
                                          : ptx::wgmma_descriptor_sw128_mn(s.b, kBlock);
  float acc[kN / 2];
  ptx::wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < 4; ++kk)
    wgmma<kN, kMajorA == Major::kMn, kMajorB == Major::kMn>(acc, a + kStepA * kk, b + kStepB * kk,
                                                            kk > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(acc);
  store_tile<kN>(out, acc);
}

/// The map of a [rows, columns] matrix that is moved in boxes of box_rows x 64.
TensorMap matrix_map(const Bf16* p, uint64_t rows, uint64_t columns, uint32_t box_rows) {
  return cuda::encode_tiled<2>(
      {.base = p, .dims = {columns, rows}, .strides = {columns}, .box = {64, box_rows}});
}

template <int kN>
cuda::LaunchConfig config(const char* name) {
  return {.grid = 1, .block = 128, .smem_bytes = sizeof(TileSmem<kN>), .name = name};
}

template <int kN>
void run_from_registers(float* out, const Bf16* a, const Bf16* b) {
  cuda::launch(a_from_registers<kN>, config<kN>("a_from_registers"), matrix_map(a, 64, 64, 64),
               matrix_map(b, kN, 64, kN), out);
}

template <int kN, Major kMajorA>
void run_majors(float* out, const Bf16* a, const Bf16* b, bool b_mn_major) {
  const TensorMap map_a = matrix_map(a, 64, 64, 64);
  if (b_mn_major) {
    cuda::launch(majors<kN, kMajorA, Major::kMn>, config<kN>("majors"), map_a,
                 matrix_map(b, 64, kN, 64), out);
  } else {
    cuda::launch(majors<kN, kMajorA, Major::kK>, config<kN>("majors"), map_a,
                 matrix_map(b, kN, 64, kN), out);
  }
}
template <int kN>
void run_majors(float* out, const Bf16* a, const Bf16* b, bool a_mn_major, bool b_mn_major) {
  if (a_mn_major) {
    run_majors<kN, Major::kMn>(out, a, b, b_mn_major);
  } else {
    run_majors<kN, Major::kK>(out, a, b, b_mn_major);
  }
}

}  // namespace

void double_box(Bf16* to, const Bf16* from, std::array<int, 3> d, std::array<int, 3> c) {
  const auto map = [&](const Bf16* p) {
    return cuda::encode_tiled<3>({.base = p,
                                  .dims = {uint64_t(d[0]), uint64_t(d[1]), uint64_t(d[2])},
                                  .strides = {uint64_t(d[0]), uint64_t(d[0]) * uint64_t(d[1])},
                                  .box = {64, 8, 2}});
  };
  cuda::launch(double_box_kernel,
               {.grid = 1, .block = 64, .smem_bytes = sizeof(BoxSmem), .name = "double_box"},
               map(from), map(to), c[0], c[1], c[2]);
}

void store_matrices(Bf16* out, const uint32_t* registers) {
  cuda::launch(store_matrices_kernel,
               {.grid = 1, .block = 32, .smem_bytes = sizeof(MatrixSmem), .name = "store_matrices"},
               out, registers);
}

void add_in_bulk(float* to, const float* from, int blocks) {
  cuda::launch(add_in_bulk_kernel,
               {.grid = static_cast<unsigned>(blocks),
                .block = 64,
                .smem_bytes = sizeof(SumSmem),
                .name = "add_in_bulk"},
               to, from);
}

void add_box(float* to, const float* from, std::array<int, 4> d, std::array<int, 4> c, int blocks) {
  const auto size = [&](int dims) {
    std::uint64_t n = 1;
    for (int i = 0; i < dims; ++i) n *= static_cast<std::uint64_t>(d[std::size_t(i)]);
    return n;
  };
  cuda::launch(add_box_kernel,
               {.grid = static_cast<unsigned>(blocks),
                .block = 32,
                .smem_bytes = sizeof(SumBoxSmem),
                .name = "add_box"},
               cuda::encode_tiled<4, float>(
                   {.base = to,
                    .dims = {uint64_t(d[0]), uint64_t(d[1]), uint64_t(d[2]), uint64_t(d[3])},
                    .strides = {size(1), size(2), size(3)},
                    .box = {32, 1, 8, 1}}),
               from, c[0], c[1], c[2], c[3]);
}

void multiply_a_from_registers(float* out, const Bf16* a, const Bf16* b, int n) {
  n == 64 ? run_from_registers<64>(out, a, b) : run_from_registers<128>(out, a, b);
}

void multiply_majors(float* out, const Bf16* a, const Bf16* b, int n, bool a_mn_major,
                     bool b_mn_major) {
  switch (n) {
    case 64:
      return run_majors<64>(out, a, b, a_mn_major, b_mn_major);
    case 96:
      return run_majors<96>(out, a, b, a_mn_major, b_mn_major);
    case 128:
      return run_majors<128>(out, a, b, a_mn_major, b_mn_major);
    case 192:
      return run_majors<192>(out, a, b, a_mn_major, b_mn_major);
    default:
      return run_majors<256>(out, a, b, a_mn_major, b_mn_major);
  }
}

}  // namespace trireme::simt_cases
