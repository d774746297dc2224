#pragma once
// Codes of blocks of rows on a CPU: of a matrix that stands in memory (kernels/quantize), or of
// values that an op makes for them and stores nowhere else.

#include "kernels/common/parallel.h"
#include "kernels/common/transpose_bytes.h"
#include "kernels/quantize/quantize_values.h"

namespace trireme::TRIREME_ISA {

using Part = QuantizedDim::Part;

inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// f(part, first, last) for the indices of each part in [begin, end).
template <class F>
TRIREME_INLINE void for_each_part(const QuantizedDim& dim, std::int64_t begin, std::int64_t end,
                                  const F& f) {
  for (std::int64_t i = 0; i < dim.part_count; ++i) {
    const Part& part = dim.parts[i];
    const std::int64_t first = larger(part.begin, begin),
                       last = smaller(part.begin + part.size, end);
    if (first < last) f(part, first, last);
  }
}

TRIREME_INLINE std::int64_t block_of(const QuantizedDim& dim, const Part& part, std::int64_t i) {
  return part.first_block + (part.phase + i - part.begin) / dim.block;
}
/// The first index that is of a later block than i, or of another part.
TRIREME_INLINE std::int64_t block_end(const QuantizedDim& dim, const Part& part, std::int64_t i) {
  const std::int64_t in_block = (part.phase + i - part.begin) % dim.block;
  return smaller(part.begin + part.size, i + dim.block - in_block);
}

/// f(part, block, first, last) for each block's indices in [begin, end).
template <class F>
TRIREME_INLINE void for_each_block(const QuantizedDim& dim, std::int64_t begin, std::int64_t end,
                                   const F& f) {
  for_each_part(dim, begin, end, [&](const Part& part, std::int64_t first, std::int64_t last) {
    std::int64_t block = block_of(dim, part, first);
    for (std::int64_t i = first; i < last; ++block) {
      const std::int64_t stop = smaller(last, block_end(dim, part, i));
      f(part, block, i, stop);
      i = stop;
    }
  });
}

/// The first index of block `block`, or the dim's size where there is none.
inline std::int64_t begin_of_block(const QuantizedDim& dim, std::int64_t block) {
  for (std::int64_t i = 0; i < dim.part_count; ++i) {
    const Part& part = dim.parts[i];
    if (block == part.first_block) return part.begin;
    const std::int64_t begin = part.begin - part.phase + (block - part.first_block) * dim.block;
    if (begin < part.begin + part.size) return begin;
  }
  return dim.size;
}

/// f(first, last) for rows of x: whole blocks of rows to a thread. Not for rows.whole.
template <class F>
TRIREME_INLINE void parallel_row_blocks(const Exec& exec, const QuantizedDim& rows,
                                        std::int64_t columns, const F& f) {
  parallel_ranges(exec, rows.blocks, smaller(rows.block, rows.size) * columns,
                  [&](std::int64_t first, std::int64_t last) {
                    f(begin_of_block(rows, first), begin_of_block(rows, last));
                  });
}

/// Columns [begin, end) of x, whole blocks of its columns: element (r, c) is x[r stride + c].
template <class T>
struct Values {
  const T* x;
  std::int64_t stride, begin, end;
  [[nodiscard]] const T* row(std::int64_t r) const { return x + r * stride; }
};

/// amax, one for each column, of one more row.
template <class T>
TRIREME_INLINE void max_by_columns(std::int32_t* amax, const T* x, std::int64_t count) {
  float* most = reinterpret_cast<float*>(amax);
  for_each_vector(0, count, [&](std::int64_t c, auto lanes) {
    max_bits(F32::load(most + c, lanes), abs(F32::load(x + c, lanes))).store(most + c, lanes);
  });
}

/// Of rows [first, last) of x, into their blocks' rows of amax.
template <class T>
void max_of_rows(std::int32_t* amax, const Values<T>& x, const QuantizedDim& rows,
                 const QuantizedDim& columns, std::int64_t first, std::int64_t last) {
  for_each_block(
      rows, first, last, [&](const Part&, std::int64_t i, std::int64_t begin, std::int64_t end) {
        std::int32_t* most = amax + i * columns.blocks;
        for (std::int64_t r = begin; r < end; ++r) {
          const T* row = x.row(r);
          if (columns.block == 1) {
            max_by_columns(most + x.begin, row + x.begin, x.end - x.begin);
            continue;
          }
          for_each_block(columns, x.begin, x.end,
                         [&](const Part&, std::int64_t j, std::int64_t c0, std::int64_t c1) {
                           const std::int32_t found = max_of_run(row, c0, c1);
                           if (found > most[j]) most[j] = found;
                         });
        }
      });
}

/// Of blocks of rows [first, last) of x and of columns [begin, end), so many at a time that none
/// waits for another's division.
inline void scales_along(const QuantizeArgs& args, std::int64_t first, std::int64_t last,
                         std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kMost = 256;
  const std::int64_t count = end - begin, width = args.columns.blocks;
  const float largest = largest_of_f8(args.format);
  const std::int64_t at_once = kMost / count;
  for (std::int64_t i = first; i < last; i += larger(1, at_once)) {
    const std::int64_t at = i * width + begin, rows = smaller(at_once, last - i);
    float* const scales = args.scales == nullptr ? nullptr : args.scales + at;
    if (rows <= 1 || count == width) {
      scales_of_run(args.factors + at, scales, args.amax + at, larger(1, rows) * count, largest);
      continue;
    }
    std::int32_t amax[kMost];
    float of_factors[kMost], of_scales[kMost];
    const auto each = [&](const auto& f) {
      for (std::int64_t r = 0, k = 0; r < rows; ++r) {
        for (std::int64_t j = 0; j < count; ++j, ++k) f(r * width + j, k);
      }
    };
    each([&](std::int64_t from, std::int64_t k) { amax[k] = args.amax[at + from]; });
    scales_of_run(of_factors, of_scales, amax, rows * count, largest);
    each([&](std::int64_t to, std::int64_t k) {
      args.factors[at + to] = of_factors[k];
      if (scales != nullptr) scales[to] = of_scales[k];
    });
  }
}
inline void scales_of_blocks(const QuantizeArgs& args, std::int64_t first, std::int64_t last,
                             std::int64_t begin, std::int64_t end) {
  if (args.scales == nullptr || !args.transpose) return scales_along(args, first, last, begin, end);
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t at = i * args.columns.blocks;
    alignas(64) float scales[F32::kWidth];
    const float* most = reinterpret_cast<const float*>(args.amax + at);
    for_each_vector(begin, end, [&](std::int64_t j, auto lanes) {
      const Scale of =
          scale_of(F32::load(most + j, lanes), F32::broadcast(largest_of_f8(args.format)));
      of.factor.store(args.factors + at + j, lanes);
      of.scale.store(scales);
      for (std::int64_t k = 0; k < F32::kWidth && j + k < end; ++k)
        args.scales[(j + k) * args.rows.blocks + i] = scales[k];
    });
  }
}

/// f(part, first column, last column, what gives the factors from a column on) for runs of a row.
template <class F>
TRIREME_INLINE void for_each_run(const QuantizedDim& columns, std::int64_t begin, std::int64_t end,
                                 const float* factors, const F& f) {
  if (columns.block == 1) {
    for_each_part(columns, begin, end, [&](const Part& part, std::int64_t c0, std::int64_t c1) {
      const float* of = factors + part.first_block - part.begin;
      f(part, c0, c1, [of](std::int64_t c, auto lanes) { return F32::load(of + c, lanes); });
    });
    return;
  }
  for_each_block(columns, begin, end,
                 [&](const Part& part, std::int64_t j, std::int64_t c0, std::int64_t c1) {
                   const F32 factor = F32::broadcast(factors[j]);
                   f(part, c0, c1, [factor](std::int64_t, auto) { return factor; });
                 });
}

/// A row's codes where no index is.
inline void clear_gaps(std::uint8_t* row, const QuantizedDim& columns) {
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < columns.part_count; ++i) {
    const Part& part = columns.parts[i];
    if (part.at > end) __builtin_memset(row + end, 0, static_cast<std::size_t>(part.at - end));
    end = part.at + part.size;
  }
  if (columns.width > end)
    __builtin_memset(row + end, 0, static_cast<std::size_t>(columns.width - end));
}

template <class F8, class T>
void encode_rows(const QuantizeArgs& args, const Values<T>& x, std::int64_t first,
                 std::int64_t last) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  for_each_block(
      rows, first, last, [&](const Part&, std::int64_t i, std::int64_t begin, std::int64_t end) {
        const float* factors = args.factors + i * columns.blocks;
        for (std::int64_t r = begin; r < end; ++r) {
          F8* codes = static_cast<F8*>(args.codes) + r * columns.width;
          const T* row = x.row(r);
          for_each_run(columns, x.begin, x.end, factors,
                       [&](const Part& part, std::int64_t c0, std::int64_t c1, const auto& factor) {
                         F8* to = codes + part.at - part.begin;
                         for_each_vector(c0, c1, [&](std::int64_t c, auto lanes) {
                           (F32::load(row + c, lanes) * factor(c, lanes)).store(to + c, lanes);
                         });
                       });
          if (x.begin == 0) clear_gaps(reinterpret_cast<std::uint8_t*>(codes), columns);
        }
      });
}

/// Tiles that go across: a cache line of each row of codes at a time, and columns enough that what
/// a row of x costs once is little.
constexpr std::int64_t kTileRows = 64, kTileColumns = 256;

/// Codes of a tile of x, then across.
template <class F8, class T>
void encode_columns(const QuantizeArgs& args, const Values<T>& x, std::int64_t first,
                    std::int64_t last) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  alignas(64) F8 tile[kTileRows * kTileColumns];
  for_each_part(rows, first, last, [&](const Part& part, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r0 = begin; r0 < end; r0 += kTileRows) {
      const std::int64_t r1 = smaller(r0 + kTileRows, end);
      for (std::int64_t c0 = x.begin; c0 < x.end; c0 += kTileColumns) {
        const std::int64_t c1 = smaller(c0 + kTileColumns, x.end);
        for (std::int64_t r = r0; r < r1; ++r) {
          F8* to = tile + (r - r0) * kTileColumns - c0;
          const T* row = x.row(r);
          for_each_run(
              columns, c0, c1, args.factors + block_of(rows, part, r) * columns.blocks,
              [&](const Part&, std::int64_t from, std::int64_t end_of, const auto& factor) {
                for_each_vector(from, end_of, [&](std::int64_t c, auto lanes) {
                  (F32::load(row + c, lanes) * factor(c, lanes)).store(to + c, lanes);
                });
              });
        }
        transpose_bytes(
            static_cast<std::uint8_t*>(args.codes) + c0 * rows.width + part.at + r0 - part.begin,
            rows.width, reinterpret_cast<const std::uint8_t*>(tile), kTileColumns, r1 - r0,
            c1 - c0);
      }
    }
  });
}

template <class F8, class T>
TRIREME_INLINE void encode_values(const QuantizeArgs& args, const Values<T>& x, std::int64_t first,
                                  std::int64_t last) {
  if (args.transpose) return encode_columns<F8, T>(args, x, first, last);
  encode_rows<F8, T>(args, x, first, last);
}

/// Of `count` rows of codes whose columns are `columns`.
inline void clear_all_gaps(const Exec& exec, void* codes, std::int64_t count,
                           const QuantizedDim& columns) {
  if (columns.width == columns.size) return;
  parallel_ranges(exec, count, columns.width - columns.size,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t r = first; r < last; ++r)
                      clear_gaps(static_cast<std::uint8_t*>(codes) + r * columns.width, columns);
                  });
}

/// Before the first of quantize_rows: what is of no index, and maxima that are to be found.
inline void begin_quantize(const QuantizeArgs& args) {
  if (args.transpose) clear_all_gaps(args.exec, args.codes, args.columns.size, args.rows);
  const auto bytes =
      static_cast<std::size_t>(args.rows.blocks * args.columns.blocks) * sizeof(std::int32_t);
  if (args.find_amax) __builtin_memset(args.amax, 0, bytes);
}

/// Rows [first, last), whole blocks of rows. Some blocks at a time: what their maxima read is in a
/// cache when their codes are made.
template <class F8, class T>
void quantize_rows(const QuantizeArgs& args, const Values<T>& x, std::int64_t first,
                   std::int64_t last) {
  constexpr std::int64_t kValues = 1 << 14;
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  std::int64_t begin_block = columns.blocks, end_block = 0;
  for_each_part(columns, x.begin, x.end, [&](const Part& part, std::int64_t c0, std::int64_t c1) {
    begin_block = smaller(begin_block, block_of(columns, part, c0));
    end_block = larger(end_block, block_of(columns, part, c1 - 1) + 1);
  });
  for_each_part(rows, first, last, [&](const Part& part, std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t block = block_of(rows, part, begin);
      std::int64_t stop = block_end(rows, part, begin), stop_block = block + 1;
      while (stop < end && (stop - begin) * (x.end - x.begin) < kValues) {
        stop = block_end(rows, part, stop);
        ++stop_block;
      }
      if (args.find_amax) max_of_rows(args.amax, x, rows, columns, begin, stop);
      scales_of_blocks(args, block, stop_block, begin_block, end_block);
      encode_values<F8, T>(args, x, begin, stop);
      begin = stop;
    }
  });
}

/// call(F8()) for a format.
template <class F>
TRIREME_INLINE void for_format(DType format, const F& call) {
  if (format == DType::kF8E4M3) return call(F8E4M3());
  call(F8E5M2());
}

// ---- of values that are made where they are read ----

/// Rows and columns of a panel of such values: whole blocks of 128 of both dims.
constexpr std::int64_t kPanelSide = 128, kPanelColumns = 2 * kTileColumns;
template <class T>
using PanelMemory = T[kPanelSide * kPanelColumns];

/// f(first, last) for columns of panels, which lie in one part.
template <class F>
TRIREME_INLINE void for_each_panel(const QuantizedDim& columns, const F& f) {
  for (std::int64_t i = 0; i < columns.part_count; ++i) {
    const Part& part = columns.parts[i];
    const std::int64_t end = part.begin + part.size;
    for (std::int64_t c = part.begin; c < end;) {
      const std::int64_t in_block = (part.lead + c - part.begin) % kPanelSide;
      const std::int64_t stop = smaller(end, c + kPanelColumns - in_block);
      f(c, stop);
      c = stop;
    }
  }
}

/// Those of rows from `first` and columns [begin, end), in such memory.
template <class T>
TRIREME_INLINE Values<T> values_of_panel(const T* memory, std::int64_t first, std::int64_t begin,
                                         std::int64_t end) {
  return {memory - first * kPanelColumns - begin, kPanelColumns, begin, end};
}

/// Both orders of the codes of values that `make(memory, first row, last row, first column, last
/// column)` writes, rounded to T as they would be stored: row by row of kPanelColumns, whose first
/// value is that of the first row and column. `across` has blocks of 128 rows.
template <class T, class Make>
void quantize_made(const QuantizeBothArgs& args, const Make& make) {
  const QuantizedDim &rows = args.across.rows, &columns = args.across.columns;
  begin_quantize(args.along);
  begin_quantize(args.across);
  for_format(args.along.format, [&](auto f8) {
    using F8 = decltype(f8);
    parallel_row_blocks(
        args.along.exec, rows, columns.size, [&](std::int64_t first, std::int64_t last) {
          alignas(64) PanelMemory<T> memory;
          for_each_block(rows, first, last,
                         [&](const Part&, std::int64_t, std::int64_t begin, std::int64_t end) {
                           for_each_panel(columns, [&](std::int64_t c0, std::int64_t c1) {
                             make(memory, begin, end, c0, c1);
                             const Values<T> x = values_of_panel(memory, begin, c0, c1);
                             quantize_rows<F8, T>(args.along, x, begin, end);
                             quantize_rows<F8, T>(args.across, x, begin, end);
                           });
                         });
        });
  });
}

}  // namespace trireme::TRIREME_ISA
