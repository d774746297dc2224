#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/common/transpose_bytes.h"
#include "kernels/quantize/quantize_table.h"
#include "kernels/quantize/quantize_values.h"

namespace trireme::TRIREME_ISA {
namespace {

using Part = QuantizedDim::Part;

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

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
std::int64_t begin_of_block(const QuantizedDim& dim, std::int64_t block) {
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

// ---- maxima ----

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
void max_of_rows(std::int32_t* amax, const T* x, const QuantizedDim& rows,
                 const QuantizedDim& columns, std::int64_t first, std::int64_t last) {
  for_each_block(
      rows, first, last, [&](const Part&, std::int64_t i, std::int64_t begin, std::int64_t end) {
        std::int32_t* most = amax + i * columns.blocks;
        for (std::int64_t r = begin; r < end; ++r) {
          const T* row = x + r * columns.size;
          if (columns.block == 1) {
            max_by_columns(most, row, columns.size);
            continue;
          }
          for_each_block(columns, 0, columns.size,
                         [&](const Part&, std::int64_t j, std::int64_t c0, std::int64_t c1) {
                           const std::int32_t found = max_of_run(row, c0, c1);
                           if (found > most[j]) most[j] = found;
                         });
        }
      });
}

/// The rows of a block are shared out: each thread has an amax of its own, which are then merged.
template <class T>
void max_by_pieces(const AbsoluteMaxArgs& args, std::int32_t* amax, const T* x) {
  const QuantizedDim& rows = args.rows;
  const std::int64_t count = rows.blocks * args.columns.blocks;
  const int pieces = piece_count(args.exec.threads, rows.size, args.columns.size);
  parallel_pieces(pieces, rows.size, [&](int piece, std::int64_t first, std::int64_t last) {
    std::int32_t* own = pieces == 1 ? amax : args.partial + piece * count;
    if (pieces > 1) __builtin_memset(own, 0, static_cast<std::size_t>(count) * sizeof *own);
    max_of_rows(own, x, rows, args.columns, first, last);
  });
  for (int piece = 0; pieces > 1 && piece < pieces; ++piece)
    max_by_columns(amax, reinterpret_cast<const float*>(args.partial + piece * count), count);
}

template <class T>
void absolute_max_of(const AbsoluteMaxArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  if (args.rows.whole) return max_by_pieces(args, args.amax, x);
  parallel_row_blocks(args.exec, args.rows, args.columns.size,
                      [&](std::int64_t first, std::int64_t last) {
                        max_of_rows(args.amax, x, args.rows, args.columns, first, last);
                      });
}

void absolute_max(const AbsoluteMaxArgs& args) {
  if (args.x_type == DType::kF32) return absolute_max_of<float>(args);
  absolute_max_of<BFloat16>(args);
}

// ---- scales ----

void scales(const ScalesArgs& args) {
  const float largest = largest_of_f8(args.format);
  parallel_ranges(args.exec, args.count, 4, [&](std::int64_t begin, std::int64_t end) {
    scales_of_run(args.factors == nullptr ? nullptr : args.factors + begin, args.scales + begin,
                  args.amax + begin, end - begin, largest);
  });
}

/// Of blocks of rows [first, last) of x.
void scales_of_blocks(const QuantizeArgs& args, std::int64_t first, std::int64_t last) {
  const std::int64_t count = args.columns.blocks;
  for (std::int64_t i = first; i < last; ++i) {
    float* factors = args.factors + i * count;
    const bool along = args.scales != nullptr && !args.transpose;
    scales_of_run(factors, along ? args.scales + i * count : nullptr, args.amax + i * count, count,
                  largest_of_f8(args.format));
    if (args.scales == nullptr || along) continue;
    alignas(64) float scales[F32::kWidth];
    const float* most = reinterpret_cast<const float*>(args.amax + i * count);
    for_each_vector(0, count, [&](std::int64_t j, auto lanes) {
      scale_of(F32::load(most + j, lanes), F32::broadcast(largest_of_f8(args.format)))
          .scale.store(scales);
      for (std::int64_t k = 0; k < F32::kWidth && j + k < count; ++k)
        args.scales[(j + k) * args.rows.blocks + i] = scales[k];
    });
  }
}

// ---- codes ----

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
void clear_gaps(std::uint8_t* row, const QuantizedDim& columns) {
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
void encode_rows(const QuantizeArgs& args, std::int64_t first, std::int64_t last) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  const T* x = static_cast<const T*>(args.x);
  for_each_block(
      rows, first, last, [&](const Part&, std::int64_t i, std::int64_t begin, std::int64_t end) {
        const float* factors = args.factors + i * columns.blocks;
        for (std::int64_t r = begin; r < end; ++r) {
          F8* codes = static_cast<F8*>(args.codes) + r * columns.width;
          const T* row = x + r * columns.size;
          for_each_run(columns, 0, columns.size, factors,
                       [&](const Part& part, std::int64_t c0, std::int64_t c1, const auto& factor) {
                         F8* to = codes + part.at - part.begin;
                         for_each_vector(c0, c1, [&](std::int64_t c, auto lanes) {
                           (F32::load(row + c, lanes) * factor(c, lanes)).store(to + c, lanes);
                         });
                       });
          clear_gaps(reinterpret_cast<std::uint8_t*>(codes), columns);
        }
      });
}

/// Tiles that go across: a cache line of each row of codes at a time, and columns enough that what
/// a row of x costs once is little.
constexpr std::int64_t kTileRows = 64, kTileColumns = 256;

/// Codes of a tile of x, then across.
template <class F8, class T>
void encode_columns(const QuantizeArgs& args, std::int64_t first, std::int64_t last) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  const T* x = static_cast<const T*>(args.x);
  alignas(64) F8 tile[kTileRows * kTileColumns];
  for_each_part(rows, first, last, [&](const Part& part, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r0 = begin; r0 < end; r0 += kTileRows) {
      const std::int64_t r1 = smaller(r0 + kTileRows, end);
      for (std::int64_t c0 = 0; c0 < columns.size; c0 += kTileColumns) {
        const std::int64_t c1 = smaller(c0 + kTileColumns, columns.size);
        for (std::int64_t r = r0; r < r1; ++r) {
          F8* to = tile + (r - r0) * kTileColumns - c0;
          const T* row = x + r * columns.size;
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

/// Of `count` rows of codes whose columns are `columns`.
void clear_all_gaps(const Exec& exec, void* codes, std::int64_t count,
                    const QuantizedDim& columns) {
  if (columns.width == columns.size) return;
  parallel_ranges(exec, count, columns.width - columns.size,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t r = first; r < last; ++r)
                      clear_gaps(static_cast<std::uint8_t*>(codes) + r * columns.width, columns);
                  });
}

template <class F8, class T>
void quantize_of(const QuantizeArgs& args) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  const std::int64_t amax_bytes =
      rows.blocks * columns.blocks * static_cast<std::int64_t>(sizeof(std::int32_t));
  const auto encode = [&](std::int64_t first, std::int64_t last) {
    if (args.transpose) return encode_columns<F8, T>(args, first, last);
    encode_rows<F8, T>(args, first, last);
  };
  if (args.transpose) clear_all_gaps(args.exec, args.codes, columns.size, rows);
  if (args.find_amax) __builtin_memset(args.amax, 0, static_cast<std::size_t>(amax_bytes));
  if (rows.whole) {
    if (args.find_amax)
      absolute_max_of<T>({args.exec, args.amax, args.x, rows, columns, args.partial, args.x_type});
    scales_of_blocks(args, 0, rows.blocks);
    parallel_ranges(args.exec, rows.size, columns.size, encode);
    return;
  }
  // A block of rows at a time: what its maxima read is in a cache when its codes are made.
  parallel_row_blocks(args.exec, rows, columns.size, [&](std::int64_t first, std::int64_t last) {
    for_each_block(
        rows, first, last, [&](const Part&, std::int64_t i, std::int64_t begin, std::int64_t end) {
          if (args.find_amax)
            max_of_rows(args.amax, static_cast<const T*>(args.x), rows, columns, begin, end);
          scales_of_blocks(args, i, i + 1);
          encode(begin, end);
        });
  });
}

/// call(F8()) for a format.
template <class F>
TRIREME_INLINE void for_format(DType format, const F& call) {
  if (format == DType::kF8E4M3) return call(F8E4M3());
  call(F8E5M2());
}

void quantize(const QuantizeArgs& args) {
  for_format(args.format, [&](auto f8) {
    if (args.x_type == DType::kF32) return quantize_of<decltype(f8), float>(args);
    quantize_of<decltype(f8), BFloat16>(args);
  });
}

void quantize_both(const QuantizeBothArgs& args) {
  quantize(args.along);
  quantize(args.across);
}

// ---- back, and in another order ----

template <class F8, class T>
void dequantize_of(const DequantizeArgs& args) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  parallel_ranges(args.exec, rows.size, columns.size, [&](std::int64_t first, std::int64_t last) {
    for_each_block(
        rows, first, last, [&](const Part&, std::int64_t i, std::int64_t begin, std::int64_t end) {
          const float* scales = args.scales + i * columns.blocks;
          for (std::int64_t r = begin; r < end; ++r) {
            const F8* codes = static_cast<const F8*>(args.codes) + r * columns.width;
            T* x = static_cast<T*>(args.x) + r * columns.size;
            for_each_run(
                columns, 0, columns.size, scales,
                [&](const Part& part, std::int64_t c0, std::int64_t c1, const auto& scale) {
                  const F8* from = codes + part.at - part.begin;
                  for_each_vector(c0, c1, [&](std::int64_t c, auto lanes) {
                    (F32::load(from + c, lanes) * scale(c, lanes)).store(x + c, lanes);
                  });
                });
          }
        });
  });
}

void dequantize(const DequantizeArgs& args) {
  for_format(args.format, [&](auto f8) {
    if (args.x_type == DType::kF32) return dequantize_of<decltype(f8), float>(args);
    dequantize_of<decltype(f8), BFloat16>(args);
  });
}

template <class F8>
void decode_panel_of(const DecodePanelArgs& args) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  const std::int64_t begin_at = args.first_column, end_at = begin_at + args.column_count;
  const auto row_of = [&](std::int64_t r, const float* scales) {
    const F8* codes = static_cast<const F8*>(args.codes) + r * columns.width;
    float* to = args.panel + (r - args.first_row) * args.column_count;
    __builtin_memset(to, 0, static_cast<std::size_t>(args.column_count) * sizeof(float));
    for (std::int64_t p = 0; p < columns.part_count; ++p) {
      const Part& part = columns.parts[p];
      const std::int64_t shift = part.at - part.begin;
      const std::int64_t c0 = larger(part.begin, begin_at - shift),
                         c1 = smaller(part.begin + part.size, end_at - shift);
      if (c0 >= c1) continue;
      for_each_run(columns, c0, c1, scales,
                   [&](const Part&, std::int64_t from, std::int64_t end, const auto& scale) {
                     for_each_vector(from, end, [&](std::int64_t c, auto lanes) {
                       (F32::load(codes + c + shift, lanes) * scale(c, lanes))
                           .store(to + c + shift - begin_at, lanes);
                     });
                   });
    }
  };
  parallel_ranges(
      args.exec, args.row_count, args.column_count, [&](std::int64_t first, std::int64_t last) {
        for_each_block(rows, args.first_row + first, args.first_row + last,
                       [&](const Part&, std::int64_t i, std::int64_t begin, std::int64_t end) {
                         for (std::int64_t r = begin; r < end; ++r)
                           row_of(r, args.scales + i * columns.blocks);
                       });
      });
}

void decode_panel(const DecodePanelArgs& args) {
  for_format(args.format, [&](auto f8) { decode_panel_of<decltype(f8)>(args); });
}

template <class F>
TRIREME_INLINE void for_each_tile(std::int64_t rows, std::int64_t columns, const F& f) {
  for (std::int64_t c = 0; c < columns; c += kTileColumns) {
    for (std::int64_t r = 0; r < rows; r += kTileRows) f(r, c);
  }
}

void copy_across(const ReorderArgs& args) {
  const std::int64_t width = args.columns.width;
  parallel_ranges(
      args.exec, args.columns.size, args.rows.size, [&](std::int64_t c0, std::int64_t c1) {
        for_each_part(
            args.columns, c0, c1, [&](const Part& part, std::int64_t first, std::int64_t last) {
              for (std::int64_t p = 0; p < args.along.part_count; ++p) {
                const Part& to = args.along.parts[p];
                for_each_tile(to.size, last - first, [&](std::int64_t r, std::int64_t c) {
                  transpose_bytes(
                      args.to + (first + c) * args.along.width + to.at + r, args.along.width,
                      args.from + (to.begin + r) * width + part.at + first + c - part.begin, width,
                      smaller(kTileRows, to.size - r), smaller(kTileColumns, last - first - c));
                });
              }
            });
        for (std::int64_t c = c0; c < c1; ++c)
          clear_gaps(args.to + c * args.along.width, args.along);
      });
  for (std::int64_t j = 0; j < args.columns.blocks; ++j) {
    for (std::int64_t i = 0; i < args.rows.blocks; ++i)
      args.to_scales[j * args.rows.blocks + i] = args.from_scales[i * args.columns.blocks + j];
  }
}

void reorder(const ReorderArgs& args) {
  if (args.transpose) return copy_across(args);
  parallel_ranges(args.exec, args.rows.size, args.columns.size,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t r = first; r < last; ++r) {
                      std::uint8_t* to = args.to + r * args.along.width;
                      const std::uint8_t* from = args.from + r * args.columns.width;
                      for (std::int64_t p = 0; p < args.columns.part_count; ++p) {
                        const Part& part = args.columns.parts[p];
                        __builtin_memcpy(to + args.along.parts[p].at, from + part.at,
                                         static_cast<std::size_t>(part.size));
                      }
                      clear_gaps(to, args.along);
                    }
                  });
  __builtin_memcpy(
      args.to_scales, args.from_scales,
      static_cast<std::size_t>(args.rows.blocks * args.columns.blocks) * sizeof(float));
}

void join_maxima(const JoinMaximaArgs& args) {
  parallel_ranges(args.exec, args.count, args.parts, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = 0; p < args.parts; ++p) {
      const std::int32_t* other = args.others + p * args.count;
      for (std::int64_t i = first; i < last; ++i)
        args.most[i] = args.most[i] < other[i] ? other[i] : args.most[i];
    }
  });
}

}  // namespace

const QuantizeKernels quantize_cpu = {absolute_max, scales,  quantize,    quantize_both,
                                      dequantize,   reorder, join_maxima, decode_panel};

}  // namespace trireme::TRIREME_ISA
