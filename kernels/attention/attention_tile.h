#pragma once
// Tiles of attention in thread-local memory, for the files compiled per instruction set.

#include <xmmintrin.h>

#include "kernels/attention/attention_table.h"
#include "kernels/common/tile_product.h"

namespace trireme::TRIREME_ISA {

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

/// From row to row of a tile of D columns: an odd number of cache lines, so that a column of the
/// tile spreads over all sets of the first cache.
TRIREME_INLINE std::int64_t tile_stride(std::int64_t head_dim) {
  const std::int64_t lines = (head_dim + 15) / 16;
  return (lines % 2 == 0 ? lines + 1 : lines) * 16;
}
TRIREME_INLINE std::int64_t whole_vectors(std::int64_t columns) {
  return (columns + F32::kWidth - 1) / F32::kWidth * F32::kWidth;
}
/// What the path of few queries needs.
struct FewQueryTiles {
  float *q, *scores;
};
inline FewQueryTiles few_query_tiles(TileMemory& memory, const AttentionShape& shape) {
  return {memory.take(whole_vectors(shape.head_dim)), memory.take(shape.kv_tokens)};
}
/// Rows of a transposed panel: transposing goes by 4 x 4.
TRIREME_INLINE std::int64_t panel_depth(std::int64_t head_dim) { return (head_dim + 3) / 4 * 4; }

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
TRIREME_INLINE void transpose_panel(float* panel, const float* rows, std::int64_t stride,
                                    std::int64_t head_dim) {
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

}  // namespace trireme::TRIREME_ISA
