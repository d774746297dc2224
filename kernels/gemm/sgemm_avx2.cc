// A product of f32 matrices by one thread, for CPUs with AVX2 and without AVX-512.
//
// A tile of 6 x 16 of c stays in twelve registers; each step of K reads 16 values of b and
// broadcasts 6 of a: 8 loads for 12 fused multiply-adds, which is what these CPUs can start in the
// same time. All else keeps both operands coming (the loops of Goto and van de Geijn, ACM TOMS 34
// (2008), 12): a block of b, packed 16 columns at a time, lies in the outer caches; a block of a,
// packed 6 rows at a time, in the second; 16 columns of b in the first, while all rows of a pass.
#include "kernels/common/tile_product.h"
#include "kernels/gemm/gemm_table.h"

namespace trireme::avx2 {
namespace {

constexpr std::int64_t kRows = kRowsInRegisters, kColumns = kPanel;
// 24 KB for 16 columns of b, 9 KB for 6 rows of a, 216 KB for all of a.
constexpr std::int64_t kBlockK = 384, kBlockM = 24 * kRows, kBlockN = 64 * kColumns;
/// Between panels: whole cache lines that keep equal rows of panels out of one set of the caches,
/// and take what stores of 8 lanes write beyond 6 rows.
constexpr std::int64_t kGap = 16;

constexpr std::int64_t panel(std::int64_t width) { return kBlockK * width + kGap; }
static_assert(kBlockM / kRows * panel(kRows) + kBlockN / kColumns * panel(kColumns) <=
              kSgemmScratch);

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Cuts `total` into as few parts as blocks of `most` allow, all but the last equal and multiples
/// of `alignment`, which divides `most`.
std::int64_t even_part(std::int64_t total, std::int64_t most, std::int64_t alignment) {
  const std::int64_t parts = (total + most - 1) / most, part = (total + parts - 1) / parts;
  return (part + alignment - 1) / alignment * alignment;
}

/// x[i] becomes column i.
TRIREME_INLINE void transpose(F32 (&x)[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(x[i].v, x[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_ps(x[i].v, x[i + 1].v);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    x[i + 4].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

/// to[k Width + i] = from[i stride + k] for i < rows <= Width, 0 for the others. Also writes up to
/// 8 values after those of each k, so k ascends and panels follow each other.
template <std::int64_t Width>
TRIREME_INLINE void pack_rows(const float* from, std::int64_t stride, std::int64_t rows,
                              std::int64_t k_count, float* to) {
  for (std::int64_t k = 0; k < k_count; k += 8) {
    const std::int64_t steps = smaller(8, k_count - k);
    const Tail tail(steps);
#pragma GCC unroll 2
    for (int first = 0; first < Width; first += 8) {
      F32 x[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const float* row = from + (first + i) * stride + k;
        if (first + i >= Width || first + i >= rows) {
          x[i] = F32::zero();
        } else {
          x[i] = steps == 8 ? F32::load(row) : F32::load(row, tail);
        }
      }
      transpose(x);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        if (i < steps) x[i].store(to + (k + i) * Width + first);
      }
    }
  }
}

/// to[panel(Width) p + k Width + i] = from[k stride + p Width + i]: as it lies, 0 beyond `columns`.
template <std::int64_t Width>
TRIREME_INLINE void pack_columns(const float* from, std::int64_t stride, std::int64_t columns,
                                 std::int64_t k_count, float* to) {
  constexpr std::int64_t kRead = (Width + 7) / 8 * 8;  // at once
  const std::int64_t whole = columns < kRead ? 0 : (columns - kRead) / Width + 1;
  for (std::int64_t k = 0; k < k_count; ++k) {
    const float* row = from + k * stride;
    float* out = to + k * Width;
    for (std::int64_t p = 0; p * Width < columns; ++p, row += Width, out += panel(Width)) {
#pragma GCC unroll 2
      for (int i = 0; i < kRead; i += 8) {
        const F32 x =
            p < whole ? F32::load(row + i) : F32::load(row + i, Tail(columns - p * Width - i));
        x.store(out + i);
      }
    }
  }
}

/// Panels of `Width` rows or columns of op(a) or op(b), of which k_count values each lie in memory
/// beside each other (`along_k`) or `stride` apart.
template <std::int64_t Width>
void pack(const float* from, std::int64_t stride, bool along_k, std::int64_t count,
          std::int64_t k_count, float* to) {
  if (!along_k) return pack_columns<Width>(from, stride, count, k_count, to);
  for (std::int64_t p = 0; p < count; p += Width, to += panel(Width)) {
    if (count - p >= Width) {
      pack_rows<Width>(from + p * stride, stride, Width, k_count, to);
    } else {
      pack_rows<Width>(from + p * stride, stride, count - p, k_count, to);
    }
  }
}

/// c = a b, or c += a b, for columns fewer than the registers have: the tile is made beside c.
void multiply_edge(const Product& product, bool add) {
  alignas(64) float tile[kRows * kColumns];
  Product whole = product;
  whole.c = tile;
  whole.c_stride = kColumns;
  whole.columns = kColumns;
  multiply<OperandA::kColumns, Store::kSet>(whole);
  for (std::int64_t r = 0; r < product.rows; ++r) {
    float* c = product.c + r * product.c_stride;
    for_each_vector(0, product.columns, [&](std::int64_t j, auto lanes) {
      const F32 x = F32::load(tile + r * kColumns + j, lanes);
      (add ? F32::load(c + j, lanes) + x : x).store(c + j, lanes);
    });
  }
}

/// The part of c at `c`, by packed blocks of m_count rows and n_count columns.
void multiply_block(float* c, std::int64_t c_stride, bool add, std::int64_t m_count,
                    std::int64_t n_count, std::int64_t k_count, const float* a, const float* b) {
  Product tile{};
  tile.a_stride = kRows;
  tile.b_stride = kColumns;
  tile.c_stride = c_stride;
  tile.depth = k_count;
  for (std::int64_t j = 0; j < n_count; j += kColumns, b += panel(kColumns)) {
    tile.b = b;
    tile.columns = smaller(kColumns, n_count - j);
    tile.a = a;
    for (std::int64_t i = 0; i < m_count; i += kRows, tile.a += panel(kRows)) {
      tile.c = c + i * c_stride + j;
      tile.rows = smaller(kRows, m_count - i);
      for (std::int64_t r = 0; r < tile.rows; ++r) {  // both ends: c need not be aligned
        _mm_prefetch(tile.c + r * c_stride, _MM_HINT_T0);
        _mm_prefetch(tile.c + r * c_stride + tile.columns - 1, _MM_HINT_T0);
      }
      if (tile.columns < kColumns) {
        multiply_edge(tile, add);
      } else if (add) {
        multiply<OperandA::kColumns, Store::kAdd>(tile);
      } else {
        multiply<OperandA::kColumns, Store::kSet>(tile);
      }
    }
  }
}

}  // namespace

void sgemm(const SgemmArgs& args, float* scratch) {
  float *a_panels = scratch, *b_panels = scratch + kBlockM / kRows * panel(kRows);
  const auto& [m, n, k] = args.sizes;
  const std::int64_t part_m = even_part(m, kBlockM, kRows),
                     part_n = even_part(n, kBlockN, kColumns), part_k = even_part(k, kBlockK, 8);
  for (std::int64_t at_n = 0; at_n < n; at_n += part_n) {
    const std::int64_t n_count = smaller(part_n, n - at_n);
    for (std::int64_t at_k = 0; at_k < k; at_k += part_k) {
      const std::int64_t k_count = smaller(part_k, k - at_k);
      pack<kColumns>(
          args.b + (args.transpose_b ? at_n * args.b_stride + at_k : at_k * args.b_stride + at_n),
          args.b_stride, args.transpose_b, n_count, k_count, b_panels);
      for (std::int64_t at_m = 0; at_m < m; at_m += part_m) {
        const std::int64_t m_count = smaller(part_m, m - at_m);
        pack<kRows>(
            args.a + (args.transpose_a ? at_k * args.a_stride + at_m : at_m * args.a_stride + at_k),
            args.a_stride, !args.transpose_a, m_count, k_count, a_panels);
        multiply_block(args.c + at_m * args.c_stride + at_n, args.c_stride, args.add || at_k > 0,
                       m_count, n_count, k_count, a_panels, b_panels);
      }
    }
  }
}

}  // namespace trireme::avx2
