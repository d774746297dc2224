#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/elementwise/elementwise_table.h"

namespace trireme::TRIREME_ISA {
namespace {

template <class To, class From>
void cast_elements(const CastArgs& args) {
  To* destination = static_cast<To*>(args.destination);
  const From* source = static_cast<const From*>(args.source);
  parallel_ranges(args.exec, args.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
      F32::load(source + i, lanes).store(destination + i, lanes);
    });
  });
}

/// Bytes, not numbers: a NaN keeps its payload.
void copy_bytes(const CastArgs& args) {
  char* destination = static_cast<char*>(args.destination);
  const char* source = static_cast<const char*>(args.source);
  const auto size = static_cast<std::int64_t>(size_of(args.source_type));
  parallel_ranges(args.exec, args.count * size, 1, [&](std::int64_t begin, std::int64_t end) {
    __builtin_memcpy(destination + begin, source + begin, static_cast<std::size_t>(end - begin));
  });
}

void cast(const CastArgs& args) {
  if (args.destination_type == args.source_type) return copy_bytes(args);
  if (args.destination_type == DType::kBF16) return cast_elements<BFloat16, float>(args);
  cast_elements<float, BFloat16>(args);
}

void put_rows(const CopyRowsArgs& args) {
  char* destination = static_cast<char*>(args.destination);
  const char* source = static_cast<const char*>(args.source);
  parallel_ranges(
      args.exec, static_cast<std::int64_t>(args.rows), static_cast<std::int64_t>(args.row_bytes),
      [&](std::int64_t begin, std::int64_t end) {
        for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end);
             ++row) {
          const std::size_t to = args.to == nullptr ? row : static_cast<std::size_t>(args.to[row]);
          __builtin_memcpy(destination + to * args.destination_stride,
                           source + row * args.source_stride, args.row_bytes);
        }
      });
}

void clear(const ClearArgs& args) {
  char* destination = static_cast<char*>(args.destination);
  parallel_ranges(args.exec, static_cast<std::int64_t>(args.bytes), 1,
                  [&](std::int64_t begin, std::int64_t end) {
                    __builtin_memset(destination + begin, 0, static_cast<std::size_t>(end - begin));
                  });
}

template <class Sum, class T>
void accumulate_elements(const AccumulateArgs& args) {
  Sum* destination = static_cast<Sum*>(args.destination);
  const T* source = static_cast<const T*>(args.source);
  parallel_ranges(args.exec, args.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
      (F32::load(destination + i, lanes) + F32::load(source + i, lanes))
          .store(destination + i, lanes);
    });
  });
}

void accumulate(const AccumulateArgs& args) {
  if (args.source_type == DType::kF32) return accumulate_elements<float, float>(args);
  if (args.destination_type == DType::kF32) return accumulate_elements<float, BFloat16>(args);
  accumulate_elements<BFloat16, BFloat16>(args);
}

template <class T>
void scale_elements(const ScaleArgs& args) {
  T* x = static_cast<T*>(args.x);
  const F32 factor = F32::broadcast(args.factor);
  parallel_ranges(args.exec, args.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
      (F32::load(x + i, lanes) * factor).store(x + i, lanes);
    });
  });
}

void scale(const ScaleArgs& args) {
  if (args.type == DType::kF32) return scale_elements<float>(args);
  scale_elements<BFloat16>(args);
}

/// Neighbours are added as a counter carries: held[l] is a sum of 2^l ranks where bit l of r is
/// set.
template <class T, class Lanes>
TRIREME_INLINE F32 sum_vector_of_ranks(const SumRanksArgs& args, std::int64_t i, Lanes lanes) {
  constexpr int kLevels = 32;
  F32 held[kLevels];
  for (std::int64_t r = 0;; ++r) {
    const T* part = static_cast<const T*>(args.own);
    if (r != args.rank)
      part = static_cast<const T*>(args.others) + (r < args.rank ? r : r - 1) * args.count;
    F32 sum = F32::load(part + i, lanes);
    const bool last = r == args.others_count;
    int level = 0;
    for (std::int64_t bits = r; last ? bits != 0 : bits % 2 != 0; bits /= 2, ++level)
      if (bits % 2 != 0) sum = held[level] + sum;
    if (last) return sum;
    held[level] = sum;
  }
}

template <class T>
void sum_elements_of_ranks(const SumRanksArgs& args) {
  parallel_ranges(args.exec, args.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
      sum_vector_of_ranks<T>(args, i, lanes).store(static_cast<T*>(args.own) + i, lanes);
    });
  });
}

void sum_ranks(const SumRanksArgs& args) {
  if (args.type == DType::kF32) return sum_elements_of_ranks<float>(args);
  sum_elements_of_ranks<BFloat16>(args);
}

constexpr std::int64_t kTokensPerBlock = 64;

/// Sums kVectors whole vectors of columns, or one partial one, in registers. Blocks keep the error
/// near that of a sum of 64: a running f32 sum over thousands of tokens would lose more.
template <int kVectors, class T, class Lanes>
void sum_columns(const ColumnSumArgs& args, std::int64_t column, Lanes lanes) {
  const T* x = static_cast<const T*>(args.x) + column;
  F32 total[kVectors];
  for (int v = 0; v < kVectors; ++v)
    total[v] = F32::load(args.sum + column + v * F32::kWidth, lanes);
  for (std::int64_t first = 0; first < args.tokens; first += kTokensPerBlock) {
    const std::int64_t end =
        first + kTokensPerBlock < args.tokens ? first + kTokensPerBlock : args.tokens;
    F32 block[kVectors];
    for (int v = 0; v < kVectors; ++v) block[v] = F32::zero();
    for (std::int64_t t = first; t < end; ++t) {
      const T* row = x + t * args.columns;
      for (int v = 0; v < kVectors; ++v)
        block[v] = block[v] + F32::load(row + v * F32::kWidth, lanes);
    }
    for (int v = 0; v < kVectors; ++v) total[v] = total[v] + block[v];
  }
  for (int v = 0; v < kVectors; ++v) total[v].store(args.sum + column + v * F32::kWidth, lanes);
}

template <class T>
void column_sum_of(const ColumnSumArgs& args) {
  // Whole cache lines of columns to a thread, so that no two threads write one line.
  constexpr std::int64_t kColumnsPerUnit = 64;
  const std::int64_t units = (args.columns + kColumnsPerUnit - 1) / kColumnsPerUnit;
  parallel_ranges(
      args.exec, units, args.tokens * kColumnsPerUnit, [&](std::int64_t first, std::int64_t last) {
        std::int64_t column = first * kColumnsPerUnit;
        const std::int64_t end =
            last * kColumnsPerUnit < args.columns ? last * kColumnsPerUnit : args.columns;
        for (; column + 8 * F32::kWidth <= end; column += 8 * F32::kWidth)
          sum_columns<8, T>(args, column, Full{});
        for_each_vector(column, end,
                        [&](std::int64_t c, auto lanes) { sum_columns<1, T>(args, c, lanes); });
      });
}

void column_sum(const ColumnSumArgs& args) {
  if (args.x_type == DType::kF32) return column_sum_of<float>(args);
  column_sum_of<BFloat16>(args);
}

std::int64_t column_sum_scratch_floats(const ColumnSumArgs&) { return 0; }

void sum_in_order(const SumInOrderArgs& args) {
  double chains[kSumChains] = {};
  for (std::int64_t i = 0; i < args.count; ++i)
    chains[i % kSumChains] += static_cast<double>(args.x[i]);
  double sum = 0;
  for (const double chain : chains) sum += chain;
  *args.sum += sum;
}

}  // namespace

const ElementwiseKernels elementwise_cpu = {cast,        put_rows,   put_rows,
                                            clear,       accumulate, scale,
                                            sum_ranks,   column_sum, column_sum_scratch_floats,
                                            sum_in_order};

}  // namespace trireme::TRIREME_ISA
