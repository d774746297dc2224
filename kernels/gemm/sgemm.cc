// Shares a product of f32 matrices among threads: each makes a tile of c alone.
#include <algorithm>

#include "base/math.h"
#include "kernels/gemm/gemm_internal.h"

namespace trireme::gemm_internal {
namespace {

/// What tiles suit a way to multiply.
struct TileRules {
  std::int64_t rows_alignment, columns_alignment;  ///< of where tiles begin
  std::int64_t rows_min, columns_min;
};
/// Multiples of the register tile; of any size: sgemm_avx2.cc cuts what it packs.
constexpr TileRules kOwn = {6, 16, 24, 48};
/// Multiples of every register tile of oneDNN's, and of a cache line.
constexpr TileRules kLibrary = {24, 48, 96, 96};
/// oneDNN packs a whole side of a product, 384 of K at a time: 3 MB a thread. Larger blocks were no
/// faster, and blocks of many sizes that come and go leave holes in the heap.
constexpr std::int64_t kLibraryMost = 2048;

/// Packing b for a few rows costs more than it saves.
constexpr std::int64_t kOwnRowsMin = 128;

bool by_own_kernel(const Context& context, const SgemmArgs& args) {
  return context.isa() == Isa::kAvx2 && args.sizes.m >= kOwnRowsMin;
}

struct Grid {
  int rows = 1, columns = 1;
  [[nodiscard]] int tiles() const { return rows * columns; }
};

/// The grid of most tiles, one a thread, in which a thread reads least: (M / rows + N / columns) K.
/// A thread then packs its own operands, without waiting for others, and mostly reads the rows that
/// it wrote in the op before.
Grid grid_for(int threads, Sizes s, const TileRules& rules) {
  Grid best;
  std::int64_t least = s.m + s.n;
  for (int rows = 1; rows <= threads && s.m / rows >= rules.rows_min; ++rows) {
    const auto columns =
        static_cast<int>(std::clamp<std::int64_t>(s.n / rules.columns_min, 1, threads / rows));
    const Grid grid{rows, columns};
    const std::int64_t read = s.m / rows + s.n / columns;
    if (grid.tiles() < best.tiles() || (grid.tiles() == best.tiles() && read > least)) continue;
    best = grid;
    least = read;
  }
  return best;
}

/// Small products are left to oneDNN's team, which can also cut K; tiles of the others are cut on
/// until none is too long.
Grid library_grid(int threads, Sizes s) {
  Grid grid = grid_for(threads, s, kLibrary);
  if (threads > 1 && (grid.tiles() != threads || s.n < kLibrary.columns_min)) return {};
  grid.rows *= static_cast<int>(ceil_div(s.m / grid.rows, kLibraryMost));
  grid.columns *= static_cast<int>(ceil_div(s.n / grid.columns, kLibraryMost));
  return grid;
}

/// Where part `index` of `parts` begins in [0, total).
std::int64_t cut(std::int64_t total, int index, int parts, std::int64_t alignment) {
  return index == parts ? total : total * index / parts / alignment * alignment;
}

SgemmArgs tile_of(const SgemmArgs& args, Grid grid, int tile, const TileRules& rules) {
  const int row = tile / grid.columns, column = tile % grid.columns;
  const auto row_at = [&](int i) { return cut(args.sizes.m, i, grid.rows, rules.rows_alignment); };
  const auto column_at = [&](int i) {
    return cut(args.sizes.n, i, grid.columns, rules.columns_alignment);
  };
  const std::int64_t m = row_at(row), n = column_at(column);
  SgemmArgs part = args;
  part.sizes.m = row_at(row + 1) - m;
  part.sizes.n = column_at(column + 1) - n;
  part.a += args.transpose_a ? m : m * args.a_stride;
  part.b += args.transpose_b ? n * args.b_stride : n;
  part.c += m * args.c_stride + n;
  return part;
}

}  // namespace

std::int64_t sgemm_scratch(const Context& context) {
  return context.isa() == Isa::kAvx2 ? context.threads() * kSgemmScratch : 0;
}

void sgemm(Context& context, const SgemmArgs& args, float* scratch) {
  const bool own = by_own_kernel(context, args);
  const int threads = context.threads();
  const Grid grid = own ? grid_for(threads, args.sizes, kOwn) : library_grid(threads, args.sizes);
  if (!own) prepare_library(threads);
  bool done = true;
  const auto multiply = [&](int tile) {
    const SgemmArgs part = tile_of(args, grid, tile, own ? kOwn : kLibrary);
    if (!own) return sgemm_by_library(part);
    avx2::sgemm(part, scratch + tile * kSgemmScratch);
    return true;
  };
  if (grid.tiles() == 1) {
    done = multiply(0);
  } else {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(&& : done)
    for (int tile = 0; tile < grid.tiles(); ++tile) done = multiply(tile) && done;
  }
  expect(done, "oneDNN refuses a product of [{}, {}] and [{}, {}]", args.sizes.m, args.sizes.k,
         args.sizes.k, args.sizes.n);
}

}  // namespace trireme::gemm_internal
