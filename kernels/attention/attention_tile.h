#pragma once
// Tiles of attention in thread-local memory, for the files compiled per instruction set.

#include "kernels/attention/attention_table.h"
#include "kernels/common/panels.h"
#include "kernels/common/tile_product.h"

namespace trireme::TRIREME_ISA {

inline constexpr float kLog2E = 1.44269504F, kLn2 = 0.693147181F;
inline constexpr float kAttentionInfinity = __builtin_inff();

/// Queries or keys computed or left out together: one vector with AVX-512, two with AVX2.
inline constexpr std::int64_t kGroup = 16;
static_assert(kGroup % F32::kWidth == 0 && kPanel % kGroup == 0 && kAttentionBlock % kGroup == 0);

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

/// From row to row of D columns: an odd number of cache lines spreads columns over all sets.
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
/// A token's row of one head, of elements T.
template <class T, class Data>
TRIREME_INLINE T* row_of_head(const AttentionHeads<Data>& heads, std::int64_t token,
                              std::int64_t head, std::int64_t head_dim) {
  return static_cast<T*>(heads.data) + token * heads.stride + head * head_dim;
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

/// Rows of a head that are used soon. CPUs do not foresee steps of a whole token: copying such rows
/// from memory waited for each few of them, a sixth of the time.
struct RowsAhead {
  const void* first = nullptr;
  std::int64_t stride = 0, row_bytes = 0, count = 0;  ///< stride in bytes

  template <class T>
  static RowsAhead of(const T* first, std::int64_t stride, std::int64_t count,
                      std::int64_t head_dim) {
    constexpr std::int64_t kSize = sizeof(T);
    return {first, stride * kSize, head_dim * kSize, count};
  }
  TRIREME_INLINE void fetch(std::int64_t row) const {
    if (row >= count) return;
    const char* at = static_cast<const char*>(first) + row * stride;
    for (std::int64_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
  }
};

TRIREME_INLINE void clear_tile(float* tile, std::int64_t count) {
  __builtin_memset(tile, 0, static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace trireme::TRIREME_ISA
