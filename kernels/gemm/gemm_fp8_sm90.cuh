#pragma once
// The fp8 main loop for Hopper. As that of bf16 (gemm_sm90.cuh) a producer thread brings tiles by
// TMA and two or three warpgroups multiply them; more warps of the producer's bring scales.
//
// wgmma adds fp8 products into an accumulator of few bits. So after each 128 of k its sums are
// taken out and added in f32, times the scales of that block: while one warpgroup does that the
// tensor cores work for the others. An element has the same bits in every tile, if blocks do not
// share its sum (gemm_split.h).

#include "kernels/gemm/gemm_fp8_tiles.h"
#include "kernels/gemm/gemm_maxima.cuh"
#include "kernels/gemm/gemm_sm90_stages.cuh"
#include "kernels/gemm/gemm_split.h"

namespace trireme::cuda {

using ptx::Fp8;
using Fp8Code = std::uint8_t;

/// A tile of a block: its first row, its columns, and the steps that the block takes.
struct Fp8TileAt {
  int row;
  ColumnTile columns;
  TilePiece piece;
};

/// How b is scaled, and with it the sums.
enum class Fp8Sums : std::uint8_t {
  kByTile,    ///< a tile's columns share a scale for each 128 of k
  kByColumn,  ///< each column has its own
  kAtEnd      ///< a tile's columns share one for all of k: sums stay in the tensor cores
};

/// kWarpgroups multiply, each kWaveCount times 64 rows one after another. A cluster's kBlocks
/// blocks compute tiles below each other and share b's, each bringing a part.
template <int kWarpgroups, int kWaveCount, int kRing, int kBlocks, Fp8Sums kKind>
struct Fp8Tile {
  static constexpr Fp8Sums kSums = kKind;
  static constexpr int kCluster = kBlocks, kConsumers = kWarpgroups, kWaves = kWaveCount;
  static constexpr int kM = 64 * kConsumers * kWaves, kN = ColumnTiles::kWidth, kK = 128;
  static constexpr int kStages = kRing, kThreads = 128 * (1 + kConsumers);
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 56,
                       kConsumerRegisters = kConsumers == 2 ? 232 : 152;
  static constexpr bool kScaled = kSums != Fp8Sums::kAtEnd, kSplits = false;
  /// Waves of the warpgroups take turns: those that began together would end together, and leave
  /// the tensor cores idle while all add.
  static constexpr bool kInTurn = kSums == Fp8Sums::kByColumn || kConsumers > 2;
  static constexpr int kScaleThreads = 32 * kConsumers;
  struct Smem {
    alignas(1024) Fp8Code a[kStages][kM * kK];  // rows of 128 bytes, 128-byte swizzle; so are all
    alignas(1024) Fp8Code b[kStages][kN * kK];
    alignas(1024) OutTiles out[kConsumers];
    alignas(16) float scales_a[kStages][kScaled ? kM : 1];
    alignas(16) float scales_b[kStages][kSums == Fp8Sums::kByColumn ? kN : 2];
    std::uint64_t full[kStages], empty[kStages];
  };
};
template <int kBlocks, Fp8Sums kSums>
using LargeFp8Tile = Fp8Tile<2, 2, kSums == Fp8Sums::kAtEnd ? 4 : 3, kBlocks, kSums>;
/// Three warpgroups, so that the products of two hide the third's scaling (kernels/README.md, "fp8
/// by wgmma").
using TripleFp8Tile = Fp8Tile<3, 1, 4, 2, Fp8Sums::kByTile>;
template <Fp8Sums kSums>
using NarrowFp8Tile = Fp8Tile<2, 1, 5, 1, kSums>;
/// Blocks share sums over k (gemm_split.h).
template <Fp8Sums kSums>
struct SplitFp8Tile : LargeFp8Tile<1, kSums> {
  static constexpr bool kSplits = true;
  struct Smem : LargeFp8Tile<1, kSums>::Smem {
    int block;                                 ///< of those that have begun, counted from 0
    Fp8TileAt tiles[SplitTiles::kPiecesMost];  ///< behind the last there are none: no steps
  };
};

struct Fp8Scales {
  const float* scales;
  int stride;
  ScaleColumns columns;
};

/// Maps of the operands and of the outputs that TMA stores; sizes of the result; blocks of k.
struct Fp8Product {
  TensorMap a, b, out[3];
  bool by_tma;
  int m, n, steps;
  Fp8Scales scales_a, scales_b;
  ScaleBlocks rows;
  ColumnTiles columns;
  SplitTiles split;
  int* turns =
      nullptr;  ///< of a split: how many blocks have begun; pieces of shared tiles that were added
};

/// The tiles that the clusters take in turn, each as high as all blocks of a cluster.
template <class T>
struct Fp8Tiles {
  static constexpr int kRows = T::kM * T::kCluster;
  const Fp8Product& p;
  int rows, columns, next, stride, rank = 0;

  __device__ __forceinline__ Fp8Tiles(const typename T::Smem&, const Fp8Product& of)
      : p(of),
        rows((p.m + kRows - 1) / kRows),
        columns(p.columns.count()),
        next(static_cast<int>(blockIdx.x) / T::kCluster),
        stride(static_cast<int>(gridDim.x) / T::kCluster) {
    if constexpr (T::kCluster > 1) rank = ptx::cluster_rank();
  }
  __device__ __forceinline__ bool take(Fp8TileAt& at) {
    if (next >= rows * columns) return false;
    at = find({next, 0, p.steps, -1});
    next += stride;
    return true;
  }
  __device__ __forceinline__ Fp8TileAt find(const TilePiece& piece) const {
    const TileAt tile = tile_at(piece.tile, rows, columns);
    return {static_cast<int>(tile.row) * kRows + rank * T::kM,
            p.columns.at(static_cast<int>(tile.column)), piece};
  }
};

/// Those of a block that shares sums, which stand in shared memory.
template <class T>
struct SharedFp8Tiles {
  static constexpr int rank = 0;
  const typename T::Smem& s;
  int next = 0;

  __device__ __forceinline__ SharedFp8Tiles(const typename T::Smem& of, const Fp8Product&)
      : s(of) {}
  __device__ __forceinline__ bool take(Fp8TileAt& at) {
    at = s.tiles[next++];
    return at.piece.steps > 0;
  }
  /// What was taken last, which takes no registers in between.
  [[nodiscard]] __device__ __forceinline__ const Fp8TileAt& taken() const {
    return s.tiles[next - 1];
  }
};

template <class T>
using TilesOf = std::conditional_t<T::kSplits, SharedFp8Tiles<T>, Fp8Tiles<T>>;

/// All threads: the block's number, then its tiles, which others see behind the next barrier.
template <class T>
__device__ __forceinline__ void find_tiles(typename T::Smem& s, const Fp8Product& p) {
  static_assert(T::kCluster == 1);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) s.block = atomicAdd(p.turns, 1);
  __syncthreads();
  if (thread >= SplitTiles::kPiecesMost) return;
  TilePiece piece{};
  const bool exists = p.split.find(s.block, thread, piece);
  s.tiles[thread] = exists ? Fp8Tiles<T>(s, p).find(piece) : Fp8TileAt{};
}

// ---- the producers ----

/// This block's part of a tile of b, to all blocks of the cluster.
template <class T, class E>
__device__ __forceinline__ void bring_b(Fp8Code* tile, const TensorMap& map, int rank, int column,
                                        int k, std::uint64_t* full) {
  constexpr int kPart = T::kN / T::kCluster;
  constexpr auto kAll = static_cast<std::uint16_t>((1 << T::kCluster) - 1);
  tile += rank * kPart * T::kK;
  if constexpr (E::kDual) {  // eight columns of one product, the same of the other, and so on
    const int eights = column / 8 + rank * (kPart / 16);
    if constexpr (T::kCluster > 1) {
      ptx::tma_load_4d_multicast(tile, map, k, 0, 0, eights, full, kAll);
    } else {
      ptx::tma_load_4d(tile, map, k, 0, 0, eights, full);
    }
  } else if constexpr (T::kCluster > 1) {
    ptx::tma_load_2d_multicast(tile, map, k, column + rank * kPart, full, kAll);
  } else {
    ptx::tma_load_2d(tile, map, k, column, full);
  }
}

template <class T, class E>
__device__ __forceinline__ void bring_codes(typename T::Smem& s, const Fp8Product& p) {
  Ring<T::kStages> ring;
  TilesOf<T> tiles(s, p);
  for (Fp8TileAt at; tiles.take(at);) {
    const int end = at.piece.first + at.piece.steps;
    for (int step = at.piece.first; step < end; ++step, ring.advance()) {
      std::uint64_t* full = &s.full[ring.stage];
      ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, static_cast<int>(sizeof s.a[0] + sizeof s.b[0]));
      ptx::tma_load_2d(s.a[ring.stage], p.a, step * T::kK, at.row, full);
      bring_b<T, E>(s.b[ring.stage], p.b, tiles.rank, at.columns.begin, step * T::kK, full);
    }
  }
}

/// The stages' scales, by as many warps as there are consumers. Stages are filled kAhead before
/// their copies are waited for. `of` says where a tile's scales stand:
///   a, b         the operands' scales
///   row(i)       of row i of the tile, without the step; -1: there is none
///   column(i)    likewise of column i, where each has its own, if has_column(i)
///   all(i)       else of all columns; 1: of the second product's
///   step_a(i), step_b(i)  what step i adds
template <class T>
class ScaleCopies {
 public:
  __device__ __forceinline__ explicit ScaleCopies(typename T::Smem& s) : s_(s) {}

  template <class Scales>
  __device__ __forceinline__ void bring(const Scales& of, int steps) {
    int rows[T::kM / kThreads];
#pragma unroll
    for (int i = 0; i < T::kM / kThreads; ++i) rows[i] = of.row(i * kThreads + first());
    for (int step = 0; step < steps; ++step, ring_.advance()) {
      const int step_a = of.step_a(step), step_b = of.step_b(step);
      ptx::mbarrier_wait(&s_.empty[ring_.stage], ring_.parity ^ 1);
#pragma unroll
      for (int i = 0; i < T::kM / kThreads; ++i)
        copy(&s_.scales_a[ring_.stage][i * kThreads + first()], of.a, rows[i] + step_a,
             rows[i] >= 0);
      if constexpr (T::kSums == Fp8Sums::kByColumn) {
#pragma unroll
        for (int i = 0; i < T::kN / kThreads; ++i) {
          const int column = i * kThreads + first();
          copy(&s_.scales_b[ring_.stage][column], of.b, of.column(column) + step_b,
               of.has_column(column));
        }
      } else if (first() < 2) {
        copy(&s_.scales_b[ring_.stage][first()], of.b, of.all(first()) + step_b, true);
      }
      ptx::cp_async_commit();
      if (++under_way_ <= kAhead) continue;
      ptx::cp_async_wait<kAhead>();
      arrive();
    }
  }
  __device__ __forceinline__ void finish() {
    ptx::cp_async_wait<0>();
    while (under_way_ > 0) arrive();
  }

 private:
  static constexpr int kAhead = T::kStages / 2, kThreads = T::kScaleThreads;

  static __device__ __forceinline__ int first() { return static_cast<int>(threadIdx.x) - 32; }
  /// Nothing is read, and 0 written, where there is none.
  static __device__ __forceinline__ void copy(float* to, const float* scales, int at, bool exists) {
    ptx::cp_async_4(to, scales + (exists ? at : 0), exists ? 4 : 0);
  }
  __device__ __forceinline__ void arrive() {
    ptx::mbarrier_arrive(&s_.full[copied_.stage]);
    copied_.advance();
    --under_way_;
  }

  typename T::Smem& s_;
  Ring<T::kStages> ring_, copied_;
  int under_way_ = 0;
};

/// Of a tile of one product.
struct Fp8TileScales {
  const Fp8Product& p;
  const Fp8TileAt& at;
  const float *a = p.scales_a.scales, *b = p.scales_b.scales;

  __device__ __forceinline__ int row(int i) const {
    return at.row + i < p.m ? p.rows.block_of(at.row + i) * p.scales_a.stride : -1;
  }
  __device__ __forceinline__ bool has_column(int i) const {
    return at.columns.begin + i < at.columns.end;
  }
  __device__ __forceinline__ int column(int i) const {
    return (at.columns.block + i) * p.scales_b.stride;
  }
  __device__ __forceinline__ int all(int i) const {
    return (i == 0 ? at.columns.block : at.columns.second_block) * p.scales_b.stride;
  }
  __device__ __forceinline__ int step_a(int step) const {
    return p.scales_a.columns.of_block(at.piece.first + step);
  }
  __device__ __forceinline__ int step_b(int step) const {
    return p.scales_b.columns.of_block(at.piece.first + step);
  }
};

template <class T>
__device__ __forceinline__ void bring_scales(typename T::Smem& s, const Fp8Product& p) {
  ScaleCopies<T> copies(s);
  TilesOf<T> tiles(s, p);
  for (Fp8TileAt at; tiles.take(at);) copies.bring(Fp8TileScales{p, at}, at.piece.steps);
  copies.finish();
}

// ---- the consumers ----

/// The first of a wave's rows in a tile.
template <class T>
__device__ __forceinline__ int wave_row(int consumer, int wave) {
  return (consumer * T::kWaves + wave) * 64;
}
/// This thread's first row of a wave; it has another 8 below.
__device__ __forceinline__ int row_of_thread() {
  return static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
}

/// Of a stage whose scales all lanes have read.
template <class T>
__device__ __forceinline__ void release_scales(std::uint64_t* empty) {
  __syncwarp();
  release_stage<T>(empty);
}

/// 128 of k for 64 rows.
template <class T, Fp8 kA, Fp8 kB>
__device__ __forceinline__ void issue_wave(float (&sums)[64], typename T::Smem& s, int stage,
                                           int row, bool accumulate) {
  const std::uint64_t a = ptx::wgmma_descriptor_sw128(s.a[stage] + row * T::kK),
                      b = ptx::wgmma_descriptor_sw128(s.b[stage]);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    ptx::wgmma_m64n128k32<kA, kB>(sums, a + i * 2, b + i * 2, accumulate || i > 0);
}

/// Of a thread's two rows of a wave, times those of both halves of a dual tile.
struct WaveScales {
  float of[2][2];
  /// Eight columns of one product, the same of the other.
  template <bool kDual>
  __device__ __forceinline__ float at(int e) const {
    return of[e / 2 % 2][kDual ? e / 4 % 2 : 0];
  }
};

/// Of a wave's rows and, where these share one, of the columns.
template <class T, bool kDual>
__device__ __forceinline__ WaveScales read_rows(const typename T::Smem& s, int stage, int row) {
  constexpr bool kByColumn = T::kSums == Fp8Sums::kByColumn;
  const float of_b = kByColumn ? 1.0F : s.scales_b[stage][0];
  const float of_second = kDual ? s.scales_b[stage][1] : of_b;
  const float* of_rows = s.scales_a[stage] + row + row_of_thread();
  return {
      {{of_rows[0] * of_b, of_rows[0] * of_second}, {of_rows[8] * of_b, of_rows[8] * of_second}}};
}

/// Of a thread's columns, where each has its own: 16 pairs. Shared memory gives a lane one word a
/// cycle, and all warps want all 128; so pairs stay for the next wave, as many as registers hold.
template <class T>
struct LaneScales {
  static constexpr int kPairs = T::kSums == Fp8Sums::kByColumn ? 16 : 0;
  static constexpr int kKept = kPairs == 0 || T::kWaves == 1 ? kPairs : 12;
  const float* at;
  Vector<float, 2> kept[kKept == 0 ? 1 : kKept];

  __device__ __forceinline__ void read(const typename T::Smem& s, int stage) {
    at = s.scales_b[stage] + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] = load<2>(at + i * 8);
  }
  __device__ __forceinline__ Vector<float, 2> pair(int i) const {
    return i < kKept ? kept[i] : load<2>(at + i * 8);
  }
};

/// Element e of 64 rows: row 16 warp + lane / 4 + 8 (e / 2 % 2), column 8 (e / 4) + 2 (lane % 4) +
/// e % 2.
template <class T, bool kDual>
__device__ __forceinline__ void add_scaled(float (&sums)[64], const float (&products)[64],
                                           const WaveScales& rows, const LaneScales<T>& columns) {
#pragma unroll
  for (int e = 0; e < 64; e += 4) {
    Vector<float, 2> of_column;
    if constexpr (LaneScales<T>::kPairs > 0) of_column = columns.pair(e / 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float scale = rows.template at<kDual>(e + i);
      if constexpr (LaneScales<T>::kPairs > 0) scale *= of_column.at[i % 2];
      sums[e + i] = fmaf(scale, products[e + i], sums[e + i]);
    }
  }
}

/// Scales are read while the tensor cores work.
template <class T, Fp8 kA, Fp8 kB, bool kDual>
__device__ __forceinline__ void multiply_scaled(float (&sums)[T::kWaves][64], typename T::Smem& s,
                                                Ring<T::kStages>& ring, int consumer, int steps) {
#pragma unroll
  for (int wave = 0; wave < T::kWaves; ++wave) {
#pragma unroll
    for (int e = 0; e < 64; ++e) sums[wave][e] = 0.0F;
  }
  const Turns<T::kConsumers> turns{consumer};
  for (int step = 0; step < steps; ++step, ring.advance()) {
    ptx::mbarrier_wait(&s.full[ring.stage], ring.parity);
    LaneScales<T> columns;
    constexpr bool kAllRead = LaneScales<T>::kKept == LaneScales<T>::kPairs;
#pragma unroll
    for (int wave = 0; wave < T::kWaves; ++wave) {
      const int row = wave_row<T>(consumer, wave);
      float products[64];
      if constexpr (T::kInTurn) turns.begin();
      ptx::wgmma_fence();
      issue_wave<T, kA, kB>(products, s, ring.stage, row, false);
      ptx::wgmma_commit();
      if constexpr (T::kInTurn) turns.end();
      const WaveScales rows = read_rows<T, kDual>(s, ring.stage, row);
      if (wave == 0) columns.read(s, ring.stage);
      ptx::wgmma_wait<0>(products);
      const bool last = wave == T::kWaves - 1;
      if (last && kAllRead) release_scales<T>(&s.empty[ring.stage]);
      add_scaled<T, kDual>(sums[wave], products, rows, columns);
      if (last && !kAllRead) release_scales<T>(&s.empty[ring.stage]);
    }
  }
}

template <class T, Fp8 kA, Fp8 kB>
__device__ __forceinline__ void multiply_plain(float (&sums)[T::kWaves][64], typename T::Smem& s,
                                               Ring<T::kStages>& ring, int consumer, int steps) {
  std::uint64_t* release = nullptr;  // the stage whose wgmmas were committed one step ago
  for (int step = 0; step < steps; ++step, ring.advance()) {
    ptx::mbarrier_wait(&s.full[ring.stage], ring.parity);
    ptx::wgmma_fence();
#pragma unroll
    for (int wave = 0; wave < T::kWaves; ++wave) {
      issue_wave<T, kA, kB>(sums[wave], s, ring.stage, wave_row<T>(consumer, wave), step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>(sums);
    if (release != nullptr) release_stage<T>(release);
    release = &s.empty[ring.stage];
  }
  ptx::wgmma_wait<0>(sums);
  release_stage<T>(release);
}

/// What multiply_plain left out.
template <class T, bool kDual>
__device__ __forceinline__ void scale_sums(float (&sums)[T::kWaves][64], const Fp8Product& p,
                                           const Fp8TileAt& at, int consumer) {
  const float of_b = p.scales_b.scales[at.columns.block * p.scales_b.stride],
              of_second = p.scales_b.scales[at.columns.second_block * p.scales_b.stride];
#pragma unroll
  for (int wave = 0; wave < T::kWaves; ++wave) {
    WaveScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row + wave_row<T>(consumer, wave) + row_of_thread() + half * 8;
      const float of_row =
          p.scales_a.scales[p.rows.block_of(min(row, p.m - 1)) * p.scales_a.stride];
      scales.of[half][0] = of_row * of_b;
      scales.of[half][1] = of_row * of_second;
    }
#pragma unroll
    for (int e = 0; e < 64; ++e) sums[wave][e] *= scales.template at<kDual>(e);
  }
}

/// Columns of the result that a tile makes.
template <class E>
inline constexpr int kFp8Columns = E::kDual ? ColumnTiles::kWidth / 2 : ColumnTiles::kWidth;

/// A warpgroup's turn to add its part of a shared tile's piece to the result, and to end it once
/// that is there. None where the piece is the whole tile.
template <class T>
class PieceTurn {
 public:
  __device__ __forceinline__ PieceTurn(const Fp8Product& p, const TilePiece& piece, int consumer)
      : count_(p.turns + 1 + (piece.tile - p.split.whole) * T::kConsumers + consumer),
        before_(piece.before),
        consumer_(consumer) {}

  __device__ __forceinline__ void begin() const {
    if (before_ < 0) return;
    if (elected()) {
      ptx::begin_turn(count_, before_);
      ptx::fence_proxy_async_global();
    }
    ptx::barrier_sync(1 + consumer_, kWarpgroup);
  }
  __device__ __forceinline__ void end() const {
    if (before_ < 0) return;
    ptx::barrier_sync(1 + consumer_, kWarpgroup);  // what other threads stored themselves
    if (!elected()) return;
    ptx::bulk_wait<0>();
    ptx::fence_proxy_async_global();
    ptx::end_turn(count_);
  }

 private:
  static __device__ __forceinline__ bool elected() { return threadIdx.x % kWarpgroup == 0; }
  int* count_;
  int before_, consumer_;
};

/// What follows a warpgroup's sums of a tile.
template <class T, class E>
__device__ __forceinline__ void leave_tile(const float (&sums)[T::kWaves][64], typename T::Smem& s,
                                           const Fp8Product& p, const E& epilogue,
                                           const DirectSink<typename E::Out>& direct,
                                           const Fp8TileAt& at, int consumer, int& buffer) {
#pragma unroll
  for (int wave = 0; wave < T::kWaves; ++wave) {
    const TileOrigin origin{at.row + wave_row<T>(consumer, wave), at.columns.begin};
    if (origin.row >= p.m) continue;
    finish_sums<kFp8Columns<E>>({s.out[consumer], p.out, consumer, buffer}, p.by_tma, epilogue,
                                {direct.outputs, at.columns.end, direct.pairs}, sums[wave], origin,
                                {p.m, at.columns.end});
  }
}

template <class T, Fp8 kA, Fp8 kB, class E>
__global__ void __launch_bounds__(T::kThreads, 1)
    gemm_fp8_sm90_kernel(const __grid_constant__ Fp8Product p, const E epilogue,
                         const DirectSink<typename E::Out> direct) {
  auto& s = smem<typename T::Smem>();
  const int group = warpgroup();
  if constexpr (T::kSplits) find_tiles<T>(s, p);
  begin_ring<T>(s, T::kScaled ? 1 + T::kScaleThreads : 1);

  if (group == 0) {
    ptx::decrease_registers<T::kProducerRegisters>();
    if (threadIdx.x == 0) {
      ptx::prefetch_tensor_map(p.a);
      ptx::prefetch_tensor_map(p.b);
      bring_codes<T, E>(s, p);
    } else if (T::kScaled && threadIdx.x >= 32 && threadIdx.x < 32 + T::kScaleThreads) {
      bring_scales<T>(s, p);
    }
    leave_cluster<T>();
    return;
  }

  ptx::increase_registers<T::kConsumerRegisters>();
  const int consumer = group - 1;
  Ring<T::kStages> ring;
  int buffer = 0;
  const OwnMaxima<E> own{epilogue};
  const Turns<T::kConsumers> turns{consumer};
  if constexpr (T::kInTurn) turns.open();
  TilesOf<T> tiles(s, p);
  for (Fp8TileAt at; tiles.take(at);) {
    float sums[T::kWaves][64];
    if constexpr (T::kScaled) {
      multiply_scaled<T, kA, kB, E::kDual>(sums, s, ring, consumer, at.piece.steps);
    } else {
      multiply_plain<T, kA, kB>(sums, s, ring, consumer, at.piece.steps);
      scale_sums<T, E::kDual>(sums, p, at, consumer);
    }
    if constexpr (T::kSplits) {
      const Fp8TileAt& taken = tiles.taken();
      const PieceTurn<T> turn(p, taken.piece, consumer);
      E adding = epilogue;
      if (taken.piece.before > 0) adding.accumulated = direct.outputs.at[0];
      turn.begin();
      leave_tile<T>(sums, s, p, adding, direct, taken, consumer, buffer);
      turn.end();
    } else {
      leave_tile<T>(sums, s, p, own.epilogue, direct, at, consumer, buffer);
    }
  }
  own.leave();
  if constexpr (T::kInTurn) turns.close();
  if (threadIdx.x % 128 == 0) ptx::bulk_wait<0>();
  leave_cluster<T>();
}

}  // namespace trireme::cuda
