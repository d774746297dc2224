// Host bodies of kernels/common/ptx.cuh. Not instrumented: accesses are noted by hand.
#include "kernels/common/ptx.cuh"

#include "kernels/simt_host/state.h"

namespace trireme::cuda::ptx {
namespace {

float bf16_to_float(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

struct MmaArgs {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

// Lane maps: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
void mma_fn(uint32_t mask, void* const* lanes) {
  if (mask != ~0u) simt::fault(simt::FaultKind::kBadCollective, "mma.sync needs the whole warp");
  float a[16][16], b[16][8], d[16][8];
  for (int l = 0; l < 32; ++l) {
    auto& x = *static_cast<MmaArgs*>(lanes[l]);
    int g = l >> 2, t = l & 3;
    for (int i = 0; i < 4; ++i) {
      int row = g + 8 * (i & 1), col = 2 * t + 8 * (i >> 1);
      a[row][col] = bf16_to_float(x.a[i] & 0xffff);
      a[row][col + 1] = bf16_to_float(x.a[i] >> 16);
    }
    for (int i = 0; i < 2; ++i) {
      int k = 2 * t + 8 * i;
      b[k][g] = bf16_to_float(x.b[i] & 0xffff);
      b[k + 1][g] = bf16_to_float(x.b[i] >> 16);
    }
    for (int i = 0; i < 4; ++i) d[g + 8 * (i >> 1)][2 * t + (i & 1)] = x.d[i];
  }
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 8; ++n) d[m][n] += a[m][k] * b[k][n];
  for (int l = 0; l < 32; ++l) {
    auto& x = *static_cast<MmaArgs*>(lanes[l]);
    int g = l >> 2, t = l & 3;
    for (int i = 0; i < 4; ++i) x.d[i] = d[g + 8 * (i >> 1)][2 * t + (i & 1)];
  }
}

struct LdmatrixArgs {
  const unsigned char* row;
  uint32_t* r;
  int thread;
};

template <bool kTrans>
void ldmatrix_fn(uint32_t mask, void* const* lanes) {
  if (mask != ~0u) simt::fault(simt::FaultKind::kBadCollective, "ldmatrix needs the whole warp");
  for (int m = 0; m < 4; ++m) {
    uint16_t tile[8][8];
    for (int row = 0; row < 8; ++row) {
      auto& x = *static_cast<LdmatrixArgs*>(lanes[8 * m + row]);
      if (reinterpret_cast<uintptr_t>(x.row) % 16)
        simt::fault(simt::FaultKind::kMisaligned, "ldmatrix row is not 16-byte aligned");
      simt::note_read(x.row, 16, x.thread);
      std::memcpy(tile[row], x.row, 16);
    }
    for (int l = 0; l < 32; ++l) {
      int i = l >> 2, j = 2 * (l & 3);
      uint32_t lo = kTrans ? tile[j][i] : tile[i][j], hi = kTrans ? tile[j + 1][i] : tile[i][j + 1];
      static_cast<LdmatrixArgs*>(lanes[l])->r[m] = lo | hi << 16;
    }
  }
}

struct StmatrixArgs {
  unsigned char* row;
  const uint32_t* r;
  int thread;
};

void stmatrix_fn(uint32_t mask, void* const* lanes) {
  if (mask != ~0u) simt::fault(simt::FaultKind::kBadCollective, "stmatrix needs the whole warp");
  for (int l = 0; l < 32; ++l) {
    auto& x = *static_cast<StmatrixArgs*>(lanes[l]);
    if (reinterpret_cast<uintptr_t>(x.row) % 16)
      simt::fault(simt::FaultKind::kMisaligned, "stmatrix row is not 16-byte aligned");
    simt::note_write(x.row, 16, x.thread);
    for (int pair = 0; pair < 4; ++pair)
      std::memcpy(x.row + 4 * pair,
                  static_cast<StmatrixArgs*>(lanes[4 * (l % 8) + pair])->r + l / 8, 4);
  }
}

}  // namespace

void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                       simt::Loc loc) {
  MmaArgs x{d, a, b};
  simt::warp_collective(~0u, mma_fn, &x, "mma.sync", loc);
}
void ldmatrix_x4(uint32_t (&r)[4], const void* row, simt::Loc loc) {
  LdmatrixArgs x{static_cast<const unsigned char*>(row), r, simt::t_worker->current->linear};
  simt::warp_collective(~0u, ldmatrix_fn<false>, &x, "ldmatrix", loc);
}
void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, simt::Loc loc) {
  LdmatrixArgs x{static_cast<const unsigned char*>(row), r, simt::t_worker->current->linear};
  simt::warp_collective(~0u, ldmatrix_fn<true>, &x, "ldmatrix.trans", loc);
}
void stmatrix_x4(void* row, const uint32_t (&r)[4], simt::Loc loc) {
  StmatrixArgs x{static_cast<unsigned char*>(row), r, simt::t_worker->current->linear};
  simt::warp_collective(~0u, stmatrix_fn, &x, "stmatrix", loc);
}

}  // namespace trireme::cuda::ptx
