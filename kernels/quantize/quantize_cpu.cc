#include "kernels/quantize/quantize_blocks.h"

namespace trireme::TRIREME_ISA {
namespace {

/// A matrix that stands in memory.
template <class T>
Values<T> all_of(const void* x, const QuantizedDim& columns) {
  return {static_cast<const T*>(x), columns.size, 0, columns.size};
}

// ---- maxima ----

/// The rows of a block are shared out: each thread has an amax of its own, which are then merged.
template <class T>
void max_by_pieces(const AbsoluteMaxArgs& args, std::int32_t* amax, const Values<T>& x) {
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
  const Values<T> x = all_of<T>(args.x, args.columns);
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

// ---- codes ----

template <class F8, class T>
void quantize_of(const QuantizeArgs& args) {
  const QuantizedDim &rows = args.rows, &columns = args.columns;
  const Values<T> x = all_of<T>(args.x, columns);
  begin_quantize(args);
  if (rows.whole) {
    if (args.find_amax)
      absolute_max_of<T>({args.exec, args.amax, args.x, rows, columns, args.partial, args.x_type});
    scales_of_blocks(args, 0, rows.blocks, 0, columns.blocks);
    parallel_ranges(args.exec, rows.size, columns.size, [&](std::int64_t first, std::int64_t last) {
      encode_values<F8, T>(args, x, first, last);
    });
    return;
  }
  parallel_row_blocks(args.exec, rows, columns.size, [&](std::int64_t first, std::int64_t last) {
    quantize_rows<F8, T>(args, x, first, last);
  });
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
