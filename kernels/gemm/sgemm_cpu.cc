// A product of f32 matrices by one thread.
//
// A tile of c of 8 x 32 (AVX-512; with AVX2 6 x 16) stays in registers; each step of K reads two
// vectors of b and broadcasts a value of each row of a: fewer loads than these CPUs can start
// beside the fused multiply-adds. All else keeps both operands coming (the loops of Goto and van de
// Geijn, ACM TOMS 34 (2008), 12): a block of b lies in the outer caches as panels of a tile's
// columns, one of which meets all rows of a block of a, which stays in the second cache.
//
// Rows of a are read where they stand: each is a stream of its own. What lies across K becomes
// panels while the first tile that needs it multiplies: b as it lies beside the first rows of a,
// columns of a beside the first columns of b. Only b's rows are packed before, by transposition.
#include "kernels/gemm/sgemm_cpu.h"

#include "kernels/common/panels.h"
#include "kernels/common/tile_product.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kRows = kRowsInRegisters, kColumns = kPanel;
/// Behind each panel: a whole cache line keeps equal rows of panels out of one set of the caches,
/// and takes the vector that packing writes beyond the end.
constexpr std::int64_t kGap = 16;

/// At most as many rows, columns and steps of K are multiplied at once.
struct BlockSizes {
  std::int64_t m, n, k;
};
/// Measured: a long K saves reading c again, where rows of a need no panels; with AVX2 a panel of b
/// (24 KB) stays in the first cache. 25 panels of K 1024 are 64 of K 384, gaps included: gate and
/// up of 1,024 columns then lie in one block, and SwiGLU finds both in the cache.
constexpr bool kWide = F32::kWidth == 16;
constexpr BlockSizes kRowsOfA =
    kWide ? BlockSizes{8 * kRows, 25 * kColumns, 1024} : BlockSizes{8 * kRows, 64 * kColumns, 384};
constexpr BlockSizes kColumnsOfA =
    kWide ? BlockSizes{24 * kRows, 24 * kColumns, 256} : BlockSizes{24 * kRows, 64 * kColumns, 384};

constexpr std::int64_t panel(std::int64_t width, std::int64_t k) { return k * width + kGap; }
/// Panels of a: all of its columns, or its last rows, fewer than a tile has.
constexpr std::int64_t kPanelsOfA = kColumnsOfA.m / kRows * panel(kRows, kColumnsOfA.k);
static_assert(panel(kRows, kRowsOfA.k) <= kPanelsOfA);
constexpr std::int64_t panels_of_b(BlockSizes most) {
  return most.n / kColumns * panel(kColumns, most.k);
}
constexpr std::int64_t kPanelsOfB = panels_of_b(kRowsOfA);
static_assert(panels_of_b(kColumnsOfA) <= kPanelsOfB);
constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Cuts `total` into as few parts as blocks of `most` allow, all but the last equal and multiples
/// of `alignment`, which divides `most`.
std::int64_t even_part(std::int64_t total, std::int64_t most, std::int64_t alignment) {
  const std::int64_t parts = (total + most - 1) / most, part = (total + parts - 1) / parts;
  return (part + alignment - 1) / alignment * alignment;
}

/// The product of `count` at `at`.
struct Block {
  const SgemmArgs& args;
  BlockSizes at, count;
  float *a_panels, *b_panels;

  [[nodiscard]] float* a_panel(std::int64_t i) const {
    return a_panels + (args.transpose_a ? i / kRows * panel(kRows, count.k) : 0);
  }
  [[nodiscard]] float* b_panel(std::int64_t j) const {
    return b_panels + j / kColumns * panel(kColumns, count.k);
  }
  /// Row i of a, or column where it is transposed; column j of b, or row.
  [[nodiscard]] const float* a(std::int64_t i) const {
    return args.transpose_a ? args.a + at.k * args.a_stride + at.m + i
                            : args.a + (at.m + i) * args.a_stride + at.k;
  }
  [[nodiscard]] const float* b(std::int64_t j) const {
    return args.transpose_b ? args.b + (at.n + j) * args.b_stride + at.k
                            : args.b + at.k * args.b_stride + at.n + j;
  }
  void pack_a(std::int64_t i, std::int64_t rows) const {
    if (args.transpose_a) {
      pack_columns<kRows>(a_panel(i), a(i), args.a_stride, rows, count.k);
    } else {
      pack_rows<kRows>(a_panel(i), a(i), args.a_stride, rows, count.k, 1.0F);
    }
  }
  void pack_b(std::int64_t j, std::int64_t columns) const {
    if (args.transpose_b) {
      pack_rows<kColumns>(b_panel(j), b(j), args.b_stride, columns, count.k, 1.0F);
    } else {
      pack_columns<kColumns>(b_panel(j), b(j), args.b_stride, columns, count.k);
    }
  }
};

/// Fewer rows or columns than a tile has: it is made beside c.
template <OperandA kA>
void multiply_edge(const Product& product, bool add) {
  alignas(64) float tile[kRows * kColumns];
  Product whole = product;
  whole.c = tile;
  whole.c_stride = kColumns;
  if (product.columns > F32::kWidth) {
    multiply_registers<kA, Store::kSet, kRows, 2>(whole, 0, 0);
  } else {
    multiply_registers<kA, Store::kSet, kRows, 1>(whole, 0, 0);
  }
  for (std::int64_t r = 0; r < product.rows; ++r) {
    float* c = product.c + r * product.c_stride;
    for_each_vector(0, product.columns, [&](std::int64_t j, auto lanes) {
      const F32 x = F32::load(tile + r * kColumns + j, lanes);
      (add ? F32::load(c + j, lanes) + x : x).store(c + j, lanes);
    });
  }
}

template <OperandA kA, Store kStore>
void multiply_tile(const Product& tile, bool pack_a, bool pack_b) {
  if constexpr (kA == OperandA::kColumns) {
    if (pack_a && pack_b) return multiply_registers<kA, kStore, kRows, 2, Pack::kBoth>(tile, 0, 0);
    if (pack_a) return multiply_registers<kA, kStore, kRows, 2, Pack::kA>(tile, 0, 0);
  }
  if (pack_b) return multiply_registers<kA, kStore, kRows, 2, Pack::kB>(tile, 0, 0);
  multiply_registers<kA, kStore, kRows, 2>(tile, 0, 0);
}

template <OperandA kA, Store kStore>
void multiply_block(const Block& x) {
  const SgemmArgs& args = x.args;
  Product tile{};
  tile.c_stride = args.c_stride;
  tile.depth = x.count.k;
  for (std::int64_t j = 0; j < x.count.n; j += kColumns) {
    tile.columns = smaller(kColumns, x.count.n - j);
    tile.b_panel = x.b_panel(j);
    bool b_packed = x.at.m > 0;  // by the rows before
    if (!b_packed && (args.transpose_b || tile.columns < kColumns || x.count.m < kRows)) {
      x.pack_b(j, tile.columns);
      b_packed = true;
    }
    for (std::int64_t i = 0; i < x.count.m; i += kRows) {
      tile.rows = smaller(kRows, x.count.m - i);
      tile.c = args.c + (x.at.m + i) * args.c_stride + x.at.n + j;
      tile.a_panel = x.a_panel(i);
      const bool whole = tile.rows == kRows && tile.columns == kColumns;
      const bool by_panels = kA == OperandA::kColumns || tile.rows < kRows;
      bool a_packed = by_panels && j > 0;
      if (by_panels && !a_packed && !whole) {
        x.pack_a(i, tile.rows);
        a_packed = true;
      }
      tile.a = a_packed ? tile.a_panel : x.a(i);
      tile.a_stride = a_packed ? kRows : args.a_stride;
      tile.b = b_packed ? tile.b_panel : x.b(j);
      tile.b_stride = b_packed ? kColumns : args.b_stride;
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

template <OperandA kA>
void multiply_block(const Block& x) {
  if (x.args.add || x.at.k > 0) return multiply_block<kA, Store::kAdd>(x);
  multiply_block<kA, Store::kSet>(x);
}

}  // namespace

std::int64_t sgemm_scratch() { return kPanelsOfA + kPanelsOfB; }

void sgemm(const SgemmArgs& args, float* scratch) {
  BlockSizes most = args.transpose_a ? kColumnsOfA : kRowsOfA;
  const auto& [m, n, k] = args.sizes;
  const std::int64_t part_k = even_part(k, most.k, F32::kWidth);
  // Rows of a come once where all of b has room.
  if (!args.transpose_a) most.n = kPanelsOfB / panel(kColumns, part_k) * kColumns;
  const BlockSizes part = {even_part(m, most.m, kRows), even_part(n, most.n, kColumns), part_k};
  Block block = {args, {}, {}, scratch, scratch + kPanelsOfA};
  BlockSizes &at = block.at, &count = block.count;
  for (at.n = 0; at.n < n; at.n += part.n) {
    count.n = smaller(part.n, n - at.n);
    for (at.k = 0; at.k < k; at.k += part.k) {
      count.k = smaller(part.k, k - at.k);
      for (at.m = 0; at.m < m; at.m += part.m) {
        count.m = smaller(part.m, m - at.m);
        if (args.transpose_a) {
          multiply_block<OperandA::kColumns>(block);
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

}  // namespace trireme::TRIREME_ISA
