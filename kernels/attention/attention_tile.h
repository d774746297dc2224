#pragma once
// Tiles of attention in thread-local memory and their products, for the files compiled per instruction set.
//
// A product is C[m, n] (+)= sum_k A[m, k] B[k, n]: n runs along vector lanes, A is broadcast element by element, a few
// rows by two vectors of C stay in registers over all of k. Each element of C is one chain of fma over ascending k, so
// its bits do not depend on the rows and columns around it.

#include <xmmintrin.h>

#include "kernels/attention/attention_table.h"
#include "kernels/common/simd.h"

namespace trireme::TRIREME_ISA {

inline constexpr std::int64_t kPanel = 2 * F32::kWidth;            // columns of C in registers
inline constexpr int kRowsInRegisters = F32::kWidth == 16 ? 8 : 6;  // 16 accumulators of 32, 12 of 16
inline constexpr float kLog2E = 1.44269504F, kLn2 = 0.693147181F;
inline constexpr float kAttentionInfinity = __builtin_inff();

/// Hands out parts of a scratch area, aligned to 64 bytes. With no memory it only counts.
class TileMemory {
 public:
  explicit TileMemory(std::byte* memory) : memory_(memory) {}
  float* take(std::int64_t count) {
    float* part = memory_ == nullptr ? nullptr : reinterpret_cast<float*>(memory_ + bytes_);
    bytes_ += (count * 4 + 63) / 64 * 64;
    return part;
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::int64_t bytes_ = 0;
};

/// From row to row of a tile of D columns: an odd number of cache lines, so that a column of the tile spreads over all
/// sets of the first cache.
TRIREME_INLINE std::int64_t tile_stride(std::int64_t head_dim) {
  const std::int64_t lines = (head_dim + 15) / 16;
  return (lines % 2 == 0 ? lines + 1 : lines) * 16;
}
TRIREME_INLINE std::int64_t whole_vectors(std::int64_t columns) {
  return (columns + F32::kWidth - 1) / F32::kWidth * F32::kWidth;
}
/// Rows of a transposed panel: transposing goes by 4 x 4.
TRIREME_INLINE std::int64_t panel_depth(std::int64_t head_dim) { return (head_dim + 3) / 4 * 4; }

/// 2^x; 0 below -126.5, exactly 1 for 0, NaN for NaN; x < 127. Within 1.1 ulp: a polynomial of degree 6, minimax of
/// the relative error (1.6e-8) with p(0) = 1.
TRIREME_INLINE F32 exp2(F32 x) {
  x = max(F32::broadcast(-127.0F), x);
  const F32 n = round(x), f = x - n;
  F32 p = F32::broadcast(0x1.41fbbcp-13F);
  p = fma(p, f, F32::broadcast(0x1.5f3e54p-10F));
  p = fma(p, f, F32::broadcast(0x1.3b2d4cp-7F));
  p = fma(p, f, F32::broadcast(0x1.c6aee8p-5F));
  p = fma(p, f, F32::broadcast(0x1.ebfbdcp-3F));
  p = fma(p, f, F32::broadcast(0x1.62e430p-1F));
  p = fma(p, f, F32::broadcast(1.0F));
  return p * pow2(n);
}

/// Rows of D elements, widened, times `factor`; columns up to a whole vector are 0.
struct RowCopy {
  float* to;
  std::int64_t to_stride;
  std::int64_t from_stride, rows, head_dim;
  float factor;
};
template <class T>
TRIREME_INLINE void copy_rows(const RowCopy& copy, const T* from) {
  const F32 factor = F32::broadcast(copy.factor);
  for (std::int64_t r = 0; r < copy.rows; ++r) {
    const T* source = from + r * copy.from_stride;
    float* row = copy.to + r * copy.to_stride;
    for_each_vector(0, copy.head_dim, [&](std::int64_t d, auto lanes) {
      (F32::load(source + d, lanes) * factor).store(row + d);
    });
  }
}

/// panel[d][lane] = rows[lane][d] for kPanel rows.
TRIREME_INLINE void transpose_panel(float* panel, const float* rows, std::int64_t stride, std::int64_t head_dim) {
  for (std::int64_t lane = 0; lane < kPanel; lane += 4) {
    const float* source = rows + lane * stride;
    for (std::int64_t d = 0; d < head_dim; d += 4) {
      __m128 a = _mm_loadu_ps(source + d), b = _mm_loadu_ps(source + stride + d);
      __m128 c = _mm_loadu_ps(source + 2 * stride + d), e = _mm_loadu_ps(source + 3 * stride + d);
      _MM_TRANSPOSE4_PS(a, b, c, e);
      float* to = panel + d * kPanel + lane;
      _mm_storeu_ps(to, a);
      _mm_storeu_ps(to + kPanel, b);
      _mm_storeu_ps(to + 2 * kPanel, c);
      _mm_storeu_ps(to + 3 * kPanel, e);
    }
  }
}

TRIREME_INLINE void clear_tile(float* tile, std::int64_t count) {
  __builtin_memset(tile, 0, static_cast<std::size_t>(count) * sizeof(float));
}

/// How A lies: element (m, k) at a[m * stride + k], or at a[k * stride + m].
enum class OperandA : std::uint8_t { kRows, kColumns };
/// C = AB, C += AB, or row m: C = C row_scale[m] + AB.
enum class Store : std::uint8_t { kSet, kAdd, kScaleAndAdd };

struct Product {
  const float* a;
  std::int64_t a_stride;
  const float* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t rows, columns, depth;  ///< columns: a multiple of the vector width
  const float* row_scale;             ///< of kScaleAndAdd
};

template <OperandA kA, Store kStore, int kRows, int kVectors>
void multiply_registers(const Product& x, std::int64_t row, std::int64_t column) {
  F32 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = F32::zero();
  }
  const std::int64_t a_stride = x.a_stride, b_stride = x.b_stride;
  const float* a = x.a + (kA == OperandA::kRows ? row * a_stride : row);
  const float* b = x.b + column;
  for (std::int64_t k = 0; k < x.depth; ++k) {
    F32 factor[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) factor[v] = F32::load(b + v * F32::kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 one = F32::broadcast(a[kA == OperandA::kRows ? r * a_stride : r]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(one, factor[v], sum[r][v]);
    }
    a += kA == OperandA::kRows ? 1 : a_stride;
    b += b_stride;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float* c = x.c + (row + r) * x.c_stride + column;
    const F32 scale = F32::broadcast(kStore == Store::kScaleAndAdd ? x.row_scale[row + r] : 1.0F);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      F32 value = sum[r][v];
      if constexpr (kStore == Store::kAdd) value = F32::load(c + v * F32::kWidth) + value;
      if constexpr (kStore == Store::kScaleAndAdd) value = fma(F32::load(c + v * F32::kWidth), scale, value);
      value.store(c + v * F32::kWidth);
    }
  }
}

template <OperandA kA, Store kStore, int kVectors>
TRIREME_INLINE void multiply_rest(const Product& x, std::int64_t row, std::int64_t column) {
  switch (x.rows - row) {
    case 1: return multiply_registers<kA, kStore, 1, kVectors>(x, row, column);
    case 2: return multiply_registers<kA, kStore, 2, kVectors>(x, row, column);
    case 3: return multiply_registers<kA, kStore, 3, kVectors>(x, row, column);
    case 4: return multiply_registers<kA, kStore, 4, kVectors>(x, row, column);
    case 5: return multiply_registers<kA, kStore, 5, kVectors>(x, row, column);
    case 6: return multiply_registers<kA, kStore, 6, kVectors>(x, row, column);
    case 7: return multiply_registers<kA, kStore, 7, kVectors>(x, row, column);
    default: return;
  }
}

template <OperandA kA, Store kStore, int kVectors>
TRIREME_INLINE void multiply_columns(const Product& x, std::int64_t column) {
  std::int64_t row = 0;
  for (; row + kRowsInRegisters <= x.rows; row += kRowsInRegisters) {
    multiply_registers<kA, kStore, kRowsInRegisters, kVectors>(x, row, column);
  }
  multiply_rest<kA, kStore, kVectors>(x, row, column);
}

template <OperandA kA, Store kStore>
void multiply(const Product& x) {
  std::int64_t column = 0;
  for (; column + kPanel <= x.columns; column += kPanel) multiply_columns<kA, kStore, 2>(x, column);
  if (column < x.columns) multiply_columns<kA, kStore, 1>(x, column);
}

/// Keys [low, high) of a block.
struct KeySpan {
  std::int64_t low, high;
  [[nodiscard]] bool empty() const { return low >= high; }
};

/// The keys of a block that a query at `position` sees, `first_key` being the first it may.
TRIREME_INLINE KeySpan visible_keys(const AttentionKeyBlock& block, std::int64_t position, std::int64_t first_key) {
  const std::int64_t low = first_key - block.position, high = position - block.position + 1;
  const KeySpan span = {low < 0 ? 0 : low, high > block.count ? block.count : high};
  return span.empty() ? KeySpan{0, 0} : span;
}

/// What some queries see of a block, together.
struct BlockView {
  KeySpan hull = {0, 0};
  bool whole = true;  ///< each query sees each key
};

/// Also writes each query's bounds, as the numbers that lanes are compared with.
TRIREME_INLINE BlockView view_block(const AttentionVisibility& visibility, const AttentionKeyBlock& block,
                                    std::int64_t sequence_row, std::int64_t query, std::int64_t count, float* low,
                                    float* high) {
  BlockView view;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t* first_key = visibility.first_key;
    const KeySpan span = visible_keys(block, visibility.q_position[query + i],
                                      first_key == nullptr ? 0 : first_key[sequence_row + query + i]);
    low[i] = static_cast<float>(span.low);
    high[i] = static_cast<float>(span.high);
    view.whole = view.whole && span.low == 0 && span.high == block.count;
    if (span.empty()) continue;
    const bool first = view.hull.empty();
    if (first || span.low < view.hull.low) view.hull.low = span.low;
    if (first || span.high > view.hull.high) view.hull.high = span.high;
  }
  return view;
}

}  // namespace trireme::TRIREME_ISA
