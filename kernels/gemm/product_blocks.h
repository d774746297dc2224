#pragma once
// A product by one thread, per instruction set: of f32 matrices, or of bf16 ones with f32 sums.
//
// A tile of c of 8 x 32 (AVX-512; with AVX2 6 x 16) stays in registers; each step of K (one k of
// f32, two of bf16) reads two vectors of b and broadcasts a step of each row of a: fewer loads than
// these CPUs can start beside the fused multiply-adds. All else keeps both operands coming (the
// loops of Goto and van de Geijn, ACM TOMS 34 (2008), 12): a block of b lies in the outer caches as
// panels of a tile's columns, one of which meets all rows of a block of a in the second cache.
//
// Rows of a are read where they stand, each a stream. What lies across K becomes panels while the
// first tile that needs it multiplies: b as it lies beside the first rows of a, columns of a beside
// the first columns of b. Packed before: b's rows, transposed, and in bf16 the columns of a.

#include "kernels/common/panels.h"
#include "kernels/common/tile_product.h"
#include "kernels/gemm/gemm_table.h"

namespace trireme::TRIREME_ISA::blocks {

constexpr std::int64_t kRows = kRowsInRegisters, kColumns = kPanel;
/// Steps of padding after each panel: a whole cache line keeps equal rows of panels out of one set
/// of the caches, and takes the vector that packing writes beyond the end.
constexpr std::int64_t kGap = 16;

/// At most as many rows, columns and steps of K are multiplied at once.
struct Sizes {
  std::int64_t m, n, steps;
};
/// Measured: a long K saves reading c again, where rows of a need no panels; with AVX2 a panel of b
/// (24 KB) stays in the first cache. 25 panels of K 1024 are 64 of K 384, gaps included: gate and
/// up of 1,024 columns then lie in one block, and SwiGLU finds both in the cache.
constexpr bool kWide = F32::kWidth == 16;
constexpr Sizes kRowsOfA =
    kWide ? Sizes{8 * kRows, 25 * kColumns, 1024} : Sizes{8 * kRows, 64 * kColumns, 384};
constexpr Sizes kColumnsOfA =
    kWide ? Sizes{24 * kRows, 24 * kColumns, 256} : Sizes{24 * kRows, 64 * kColumns, 384};

constexpr std::int64_t panel(std::int64_t width, std::int64_t steps) {
  return steps * width + kGap;
}
/// Panels of a: all of its columns, or its last rows, fewer than a tile has.
constexpr std::int64_t kPanelsOfA = kColumnsOfA.m / kRows * panel(kRows, kColumnsOfA.steps);
static_assert(panel(kRows, kRowsOfA.steps) <= kPanelsOfA);
constexpr std::int64_t panels_of_b(Sizes most) {
  return most.n / kColumns * panel(kColumns, most.steps);
}
constexpr std::int64_t kPanelsOfB = panels_of_b(kRowsOfA);
static_assert(panels_of_b(kColumnsOfA) <= kPanelsOfB);
constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Cuts `total` into the fewest parts up to `most`, but the last equal multiples of `alignment`.
constexpr std::int64_t even_part(std::int64_t total, std::int64_t most, std::int64_t alignment) {
  const std::int64_t parts = (total + most - 1) / most, part = (total + parts - 1) / parts;
  return (part + alignment - 1) / alignment * alignment;
}

/// A c of bf16 is rounded: no sums are added to it.
template <class C>
constexpr bool kTakesSums = false;
template <>
constexpr bool kTakesSums<float> = true;

/// The product of `count` at `at`, in rows, columns and k.
template <class T, class C>
struct Block {
  static constexpr std::int64_t kStep = StepOf<T>::kValues;
  /// A tile's columns of a are a quarter of a cache line. They become panels with those of three
  /// tiles more: rows of some lengths push each other out of the caches before the next tile comes.
  static constexpr bool kByLines = kStep == 2;
  static_assert(!kByLines || kRows * 2 == F32::kWidth);

  const ProductArgs& args;
  GemmSizes at, count;
  T *a_panels, *b_panels;

  [[nodiscard]] std::int64_t steps() const { return (count.k + kStep - 1) / kStep; }
  /// The last step lacks a value that packing puts as 0.
  [[nodiscard]] bool odd() const { return count.k % kStep != 0; }
  [[nodiscard]] T* a_panel(std::int64_t i) const {
    return a_panels + (args.transpose_a ? i / kRows * panel(kRows, steps()) * kStep : 0);
  }
  [[nodiscard]] T* b_panel(std::int64_t j) const {
    return b_panels + j / kColumns * panel(kColumns, steps()) * kStep;
  }
  /// Row i of a, or column where it is transposed; column j of b, or row.
  [[nodiscard]] const T* a(std::int64_t i) const {
    const T* all = static_cast<const T*>(args.a);
    return args.transpose_a ? all + at.k * args.a_stride + at.m + i
                            : all + (at.m + i) * args.a_stride + at.k;
  }
  [[nodiscard]] const T* b(std::int64_t j) const {
    const T* all = static_cast<const T*>(args.b);
    return args.transpose_b ? all + (at.n + j) * args.b_stride + at.k
                            : all + at.k * args.b_stride + at.n + j;
  }
  [[nodiscard]] C* c(std::int64_t i, std::int64_t j) const {
    return static_cast<C*>(args.c) + (at.m + i) * args.c_stride + at.n + j;
  }
  void pack_a(std::int64_t i, std::int64_t rows) const {
    if (args.transpose_a) {
      pack_columns<kRows>(a_panel(i), a(i), args.a_stride, rows, count.k);
    } else {
      pack_row_steps<kRows>(a_panel(i), a(i), args.a_stride, rows, count.k);
    }
  }
  void pack_line_of_a(std::int64_t i) const {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    if (i % kLine != 0) return;  // with the tiles before
    pack_columns_in_halves(a_panel(i), panel(kRows, steps()) * kStep, a(i), args.a_stride,
                           smaller(kLine, count.m - i), count.k);
  }
  void pack_b(std::int64_t j, std::int64_t columns) const {
    if (args.transpose_b) {
      pack_row_steps<kColumns>(b_panel(j), b(j), args.b_stride, columns, count.k);
    } else {
      pack_columns<kColumns>(b_panel(j), b(j), args.b_stride, columns, count.k);
    }
  }
};

/// Fewer rows or columns than a tile has: computed outside of c, then copied.
template <OperandA kA, class T, class C>
void multiply_edge(const Product<T, C>& product, bool add) {
  alignas(64) float tile[kRows * kColumns];
  Product<T, float> whole{};
  whole.a = product.a;
  whole.a_stride = product.a_stride;
  whole.b = product.b;
  whole.b_stride = product.b_stride;
  whole.c = tile;
  whole.c_stride = kColumns;
  whole.depth = product.depth;
  if (product.columns > F32::kWidth) {
    multiply_registers<kA, Store::kSet, kRows, 2>(whole, 0, 0);
  } else {
    multiply_registers<kA, Store::kSet, kRows, 1>(whole, 0, 0);
  }
  for (std::int64_t r = 0; r < product.rows; ++r) {
    C* c = product.c + r * product.c_stride;
    for_each_vector(0, product.columns, [&](std::int64_t j, auto lanes) {
      const F32 x = F32::load(tile + r * kColumns + j, lanes);
      (add ? F32::load(c + j, lanes) + x : x).store(c + j, lanes);
    });
  }
}

template <OperandA kA, Store kStore, class T, class C>
void multiply_tile(const Product<T, C>& tile, bool pack_a, bool pack_b) {
  if constexpr (kA == OperandA::kColumns && !Block<T, C>::kByLines) {
    if (pack_a && pack_b) return multiply_registers<kA, kStore, kRows, 2, Pack::kBoth>(tile, 0, 0);
    if (pack_a) return multiply_registers<kA, kStore, kRows, 2, Pack::kA>(tile, 0, 0);
  }
  if (pack_b) return multiply_registers<kA, kStore, kRows, 2, Pack::kB>(tile, 0, 0);
  multiply_registers<kA, kStore, kRows, 2>(tile, 0, 0);
}

template <OperandA kA, Store kStore, class T, class C>
void multiply_block(const Block<T, C>& x) {
  const ProductArgs& args = x.args;
  constexpr std::int64_t kStep = Block<T, C>::kStep;
  Product<T, C> tile{};
  tile.c_stride = args.c_stride;
  tile.depth = x.steps();
  const bool pack_b_before = args.transpose_b || x.odd() || x.count.m < kRows;
  for (std::int64_t j = 0; j < x.count.n; j += kColumns) {
    tile.columns = smaller(kColumns, x.count.n - j);
    tile.b_panel = x.b_panel(j);
    bool b_packed = x.at.m > 0;  // by the rows before
    if (!b_packed && (pack_b_before || tile.columns < kColumns)) {
      x.pack_b(j, tile.columns);
      b_packed = true;
    }
    for (std::int64_t i = 0; i < x.count.m; i += kRows) {
      tile.rows = smaller(kRows, x.count.m - i);
      tile.c = x.c(i, j);
      tile.a_panel = x.a_panel(i);
      const bool whole = tile.rows == kRows && tile.columns == kColumns;
      const bool by_panels = kA == OperandA::kColumns || tile.rows < kRows;
      bool a_packed = by_panels && j > 0;
      if constexpr (kA == OperandA::kColumns && Block<T, C>::kByLines) {
        if (!a_packed) x.pack_line_of_a(i);
        a_packed = true;
      }
      if (by_panels && !a_packed && !whole) {
        x.pack_a(i, tile.rows);
        a_packed = true;
      }
      tile.a = a_packed ? tile.a_panel : x.a(i);
      tile.a_stride = a_packed ? kRows * kStep : args.a_stride;
      tile.b = b_packed ? tile.b_panel : x.b(j);
      tile.b_stride = b_packed ? kColumns * kStep : args.b_stride;
      if (!whole) {
        constexpr bool kAdd = kStore == Store::kAdd;
        by_panels ? multiply_edge<OperandA::kColumns>(tile, kAdd) : multiply_edge<kA>(tile, kAdd);
        continue;
      }
      // Stores to lines that are not there yet cost products of a short K 10 %.
      for (std::int64_t r = 0; r < kRows; ++r) {  // both ends: c need not be aligned
        __builtin_prefetch(tile.c + r * args.c_stride, 1);
        __builtin_prefetch(tile.c + r * args.c_stride + kColumns - 1, 1);
      }
      multiply_tile<kA, kStore>(tile, by_panels && !a_packed, !b_packed);
      b_packed = true;
    }
  }
}

template <OperandA kA, class T, class C>
void multiply_block(const Block<T, C>& x) {
  if constexpr (kTakesSums<C>) {
    if (x.args.add || x.at.k > 0) return multiply_block<kA, Store::kAdd>(x);
  }
  multiply_block<kA, Store::kSet>(x);
}

/// Up to so many rows of a, b is read once as it lies, and no panel of it is kept.
constexpr std::int64_t kFewRows = 4;

/// Some vectors of columns of a few rows of c: each element the chain of the tiles above.
template <int kM, int kVectors, class T, class C>
struct FewRows {
  using Step = StepOf<T>;
  using Vector = typename Step::Vector;
  static constexpr std::int64_t kStep = Step::kValues, kWidth = F32::kWidth;

  const ProductArgs& args;
  std::int64_t column, columns;  ///< the last vector may lack columns

  /// Some steps of the columns of a transposed b, step after step.
  static constexpr std::int64_t kSteps = 8 * kWidth;
  struct Turned {
    alignas(64) float steps[kSteps][kVectors * kWidth];
  };
  /// A vector's columns after the other: more rows at once than a CPU foresees would wait for each.
  TRIREME_INLINE void turn(Turned& turned, std::int64_t begin, std::int64_t end) const {
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t left = columns - v * kWidth;
      const T* rows = static_cast<const T*>(args.b) + (column + v * kWidth) * args.b_stride;
      for (std::int64_t k = begin; k < end; k += kWidth * kStep) {
        F32 lines[kWidth];
        for (int j = 0; j < kWidth; ++j) {
          const T* row = rows + j * args.b_stride + k;
          __builtin_prefetch(row + kSteps * kStep);
          lines[j] = j < left ? Step::along(row, end - k) : F32::zero();
        }
        transpose(lines);
        float* to = turned.steps[(k - begin) / kStep] + v * kWidth;
        for (int i = 0; i < kWidth; ++i) lines[i].store(to + i * (kVectors * kWidth));
      }
    }
  }
  TRIREME_INLINE void add_step(F32 (&sums)[kM][kVectors], const Vector (&factor)[kVectors],
                               std::int64_t k) const {
    for (int i = 0; i < kM; ++i) {
      const Vector one = Step::broadcast(static_cast<const T*>(args.a) + i * args.a_stride + k);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = fma(one, factor[v], sums[i][v]);
    }
  }
  [[nodiscard]] TRIREME_INLINE Tail lanes(int v) const {
    const std::int64_t left = columns - v * kWidth;
    return Tail(left < 0 ? 0 : left);
  }

  /// The part [begin, end) of K.
  void run(std::int64_t begin, std::int64_t end) const {
    F32 sums[kM][kVectors];
    for (auto& row : sums)
      for (F32& sum : row) sum = F32::zero();
    Vector factor[kVectors];
    if (args.transpose_b) {
      Turned turned;
      for (std::int64_t k = begin; k < end; k += kSteps * kStep) {
        const std::int64_t last = smaller(k + kSteps * kStep, end);
        turn(turned, k, last);
        for (std::int64_t i = 0; k + i * kStep < last; ++i) {
          for (int v = 0; v < kVectors; ++v)
            factor[v] = Vector::load(reinterpret_cast<const T*>(turned.steps[i] + v * kWidth));
          add_step(sums, factor, k + i * kStep);
        }
      }
    } else {
      constexpr std::int64_t kAhead = 16;
      for (std::int64_t k = begin; k < end; k += kStep) {
        const T* row = static_cast<const T*>(args.b) + k * args.b_stride + column;
        for (int v = 0; v < kVectors; ++v) {
          Step::prefetch(row + kAhead * kStep * args.b_stride + v * kWidth, args.b_stride);
          factor[v] = Step::across(row + v * kWidth, args.b_stride, lanes(v), end - k);
        }
        add_step(sums, factor, k);
      }
    }
    for (int i = 0; i < kM; ++i) {
      C* c = static_cast<C*>(args.c) + i * args.c_stride + column;
      for (int v = 0; v < kVectors; ++v) {
        F32 value = sums[i][v];
        if constexpr (kTakesSums<C>) {
          if (args.add || begin > 0) value = F32::load(c + v * kWidth, lanes(v)) + value;
        }
        value.store(c + v * kWidth, lanes(v));
      }
    }
  }
};

template <int kM, class T, class C>
void multiply_few(const ProductArgs& args, std::int64_t part_k) {
  constexpr int kVectors = kWide ? 4 : 2;
  const auto& [m, n, k] = args.sizes;
  for (std::int64_t column = 0; column < n; column += kVectors * F32::kWidth) {
    const FewRows<kM, kVectors, T, C> rows{args, column,
                                           smaller(kVectors * F32::kWidth, n - column)};
    for (std::int64_t begin = 0; begin < k; begin += part_k)
      rows.run(begin, smaller(begin + part_k, k));
  }
  if (args.done.call != nullptr) args.done.call(args.done.state, args.done.before, m);
}

template <class T, class C>
void multiply_few(const ProductArgs& args, std::int64_t part_k) {
  switch (args.sizes.m) {
    case 1:
      return multiply_few<1, T, C>(args, part_k);
    case 2:
      return multiply_few<2, T, C>(args, part_k);
    case 3:
      return multiply_few<3, T, C>(args, part_k);
    default:
      return multiply_few<4, T, C>(args, part_k);
  }
}

/// As CpuProduct says.
template <class T, class C>
void multiply(const ProductArgs& args, float* scratch) {
  constexpr std::int64_t kStep = StepOf<T>::kValues;
  const Sizes most = args.transpose_a ? kColumnsOfA : kRowsOfA;
  const auto& [m, n, k] = args.sizes;
  const std::int64_t part_k = even_part(k, most.steps * kStep, F32::kWidth * kStep);
  if (m <= kFewRows && !args.transpose_a) return multiply_few<T, C>(args, part_k);
  // Rows of c come once where all of b has room.
  const std::int64_t most_n =
      args.transpose_a ? most.n : kPanelsOfB / panel(kColumns, part_k / kStep) * kColumns;
  const GemmSizes part = {even_part(m, most.m, kRows), even_part(n, most_n, kColumns), part_k};
  Block<T, C> block = {
      args, {}, {}, reinterpret_cast<T*>(scratch), reinterpret_cast<T*>(scratch + kPanelsOfA)};
  GemmSizes &at = block.at, &count = block.count;
  for (at.n = 0; at.n < n; at.n += part.n) {
    count.n = smaller(part.n, n - at.n);
    for (at.k = 0; at.k < k; at.k += part.k) {
      count.k = smaller(part.k, k - at.k);
      for (at.m = 0; at.m < m; at.m += part.m) {
        count.m = smaller(part.m, m - at.m);
        if constexpr (kTakesSums<C>) {
          args.transpose_a ? multiply_block<OperandA::kColumns>(block)
                           : multiply_block<OperandA::kRows>(block);
        } else {
          multiply_block<OperandA::kRows>(block);
        }
        const bool complete = at.n + count.n == n && at.k + count.k == k;
        if (complete && args.done.call != nullptr)
          args.done.call(args.done.state, args.done.before + at.m, count.m);
      }
    }
  }
}

template <class T>
constexpr CpuProduct kernel(void (*multiply)(const ProductArgs&, float*)) {
  return {multiply, kPanelsOfA + kPanelsOfB, kRows, kColumns, kRowsOfA.steps * StepOf<T>::kValues};
}

}  // namespace trireme::TRIREME_ISA::blocks
