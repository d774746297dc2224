// Shares a product among threads: each makes a tile of c alone, or all of c from its part of K.
#include <algorithm>

#include "base/math.h"
#include "kernels/gemm/gemm_internal.h"

namespace trireme::gemm_internal {
namespace {

/// The tiles that a kernel multiplies well.
struct TileRules {
  std::int64_t rows_alignment, columns_alignment;  ///< of where tiles begin
  std::int64_t rows_min, columns_min;
};
/// A cache line of c, half of one of a transposed `a`.
constexpr TileRules kLibrary = {8, 16, 96, 96};
TileRules rules_of(const CpuProduct* own) {
  if (own == nullptr) return kLibrary;
  return {own->tile_rows, own->tile_columns / 2, 4 * own->tile_rows, 3 * own->tile_columns};
}
/// Packing b for a few rows costs more than it saves.
constexpr std::int64_t kOwnRowsMin = 128;

/// Where K is divided: the most floats of sums that all threads but one keep apart.
constexpr std::int64_t kSumsMost = 1 << 19;
/// Bytes of earlier ops' results that a thread finds in its own caches.
constexpr std::int64_t kCached = 1 << 20;
/// The fewest tokens, and multiplications, that are worth a thread.
constexpr std::int64_t kTokensMin = 64, kTokenWorkMin = 1 << 18;

struct Grid {
  int rows = 1, columns = 1;
  [[nodiscard]] int tiles() const { return rows * columns; }
};

/// The grid of most tiles, one a thread, with the least reads a thread: (M / rows + N / columns) K.
/// A thread packs its own operands and mostly reads the rows that it wrote in the op before.
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

/// Where part `index` of `parts` begins in [0, total).
std::int64_t cut(std::int64_t total, int index, int parts, std::int64_t alignment) {
  return index == parts ? total : total * index / parts / alignment * alignment;
}

const void* element(const void* matrix, std::int64_t i, DType type) {
  return static_cast<const std::byte*>(matrix) + i * static_cast<std::int64_t>(size_of(type));
}
void* element(void* matrix, std::int64_t i, DType type) {
  return static_cast<std::byte*>(matrix) + i * static_cast<std::int64_t>(size_of(type));
}

ProductArgs tile_of(const ProductArgs& args, Grid grid, int tile, const TileRules& rules) {
  const int row = tile / grid.columns, column = tile % grid.columns;
  const auto row_at = [&](int i) { return cut(args.sizes.m, i, grid.rows, rules.rows_alignment); };
  const auto column_at = [&](int i) {
    return cut(args.sizes.n, i, grid.columns, rules.columns_alignment);
  };
  const std::int64_t m = row_at(row), n = column_at(column);
  ProductArgs part = args;
  part.sizes.m = row_at(row + 1) - m;
  part.sizes.n = column_at(column + 1) - n;
  part.a = element(args.a, args.transpose_a ? m : m * args.a_stride, args.type);
  part.b = element(args.b, args.transpose_b ? n * args.b_stride : n, args.type);
  part.c = element(args.c, m * args.c_stride + n, args.c_type);
  part.done.before += m;
  return part;
}

/// The tokens of a thread; the first adds to c what it must, the others write sums of their own.
ProductArgs tokens_of(const ProductArgs& args, int thread, int threads, float* sums) {
  const Slice tokens = even_slice(args.sizes.k, threads, thread);
  ProductArgs part = args;
  part.sizes.k = tokens.size;
  part.a = element(args.a, tokens.begin * args.a_stride, args.type);
  part.b = element(args.b, tokens.begin * args.b_stride, args.type);
  if (thread == 0) return part;
  part.c = sums + (thread - 1) * args.sizes.m * args.sizes.n;
  part.add = false;
  return part;
}

/// c += all sums, in part `part` of `parts` of its `count` elements.
void add_sums(const Context& context, float* c, const float* sums, std::int64_t count, int part,
              int parts) {
  const std::int64_t begin = cut(count, part, parts, 16), end = cut(count, part + 1, parts, 16);
  for (int i = 1; i < parts; ++i, sums += count) {
    kernels(context).add({{.threads = 1}, c + begin, sums + begin, end - begin, DType::kF32});
  }
}

/// By the calling thread, with the scratch of thread `thread`; false: oneDNN refuses.
bool multiply_alone(const ProductArgs& args, const CpuProduct* own, float* scratch, int thread) {
  if (own == nullptr) return sgemm_by_library(args);
  own->multiply(args, scratch + thread * own->scratch);
  return true;
}

bool by_tokens(const Context& context, const ProductArgs& args, const CpuProduct* own,
               float* scratch) {
  const int threads = context.threads();
  const std::int64_t count = args.sizes.m * args.sizes.n;
  float* sums = scratch + (product_scratch(context) - kSumsMost);
  auto* c = static_cast<float*>(args.c);
  bool done = true;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static) reduction(&& : done)
    for (int i = 0; i < threads; ++i)
      done = multiply_alone(tokens_of(args, i, threads, sums), own, scratch, i) && done;
#pragma omp for schedule(static)
    for (int i = 0; i < threads; ++i) add_sums(context, c, sums, count, i, threads);
  }
  return done;
}

bool by_tiles(const Context& context, const ProductArgs& args, const CpuProduct* own,
              float* scratch) {
  const int threads = context.threads();
  TileRules rules = rules_of(own);
  if (own != nullptr) rules.rows_min = std::min(rules.rows_min, args.sizes.m);
  if (args.done.call != nullptr) rules.columns_min = args.sizes.n;  // whole rows
  Grid grid = grid_for(threads, args.sizes, rules);
  if (own == nullptr && grid.tiles() != threads) grid = {};  // oneDNN can divide K too
  if (grid.tiles() == 1) return multiply_alone(args, own, scratch, 0);
  bool done = true;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(&& : done)
  for (int tile = 0; tile < grid.tiles(); ++tile)
    done = multiply_alone(tile_of(args, grid, tile, rules), own, scratch, tile) && done;
  return done;
}

}  // namespace

const CpuProduct* own_kernel(const GemmKernels& kernels, const ProductArgs& args,
                             bool library_has_tiles, Rows rows) {
  const bool any = rows == Rows::kAnyNumber;
  if (!any && args.sizes.m < kOwnRowsMin) return nullptr;
  if (args.type == DType::kF32) return kernels.f32_product;
  const CpuProduct* own = kernels.bf16_product;
  if (own->multiply == nullptr || (library_has_tiles && !any)) return nullptr;
  if (!args.transpose_a && args.sizes.k % 2 != 0) return nullptr;
  const bool sums = args.c_type == DType::kF32;
  return sums || (!args.add && !args.transpose_a && args.sizes.k <= own->k_at_once) ? own : nullptr;
}

bool cuts_tokens(int threads, const ProductArgs& args) {
  const auto& [m, n, k] = args.sizes;
  if (threads == 1 || !args.transpose_a || args.transpose_b || args.c_stride != n) return false;
  if (args.c_type != DType::kF32) return false;
  if (k < threads * kTokensMin || m * n * k < threads * kTokenWorkMin) return false;
  const auto bytes = static_cast<std::int64_t>(size_of(args.type));
  if ((m + n) * k * bytes > threads * kCached || (threads - 1) * m * n > kSumsMost) return false;
  const GemmKernels& finest = *gemm_cpu[static_cast<std::size_t>(Isa::kAvx2)];
  const Grid grid = grid_for(threads, args.sizes, rules_of(finest.f32_product));
  const std::int64_t read = (m / grid.rows + n / grid.columns) * k * bytes, sums = m * n * 4;
  return 2 * sums < read - read / threads;
}

std::int64_t product_scratch(const Context& context) {
  const int threads = context.threads();
  const GemmKernels& own = kernels(context);
  return threads * std::max(own.f32_product->scratch, own.bf16_product->scratch) +
         (threads > 1 ? kSumsMost : 0);
}

void multiply(Context& context, const ProductArgs& args, const CpuProduct* own, float* scratch) {
  if (own == nullptr) prepare_library(context.threads());
  const bool done = cuts_tokens(context.threads(), args) ? by_tokens(context, args, own, scratch)
                                                         : by_tiles(context, args, own, scratch);
  expect(done, "oneDNN refuses a product of [{}, {}] and [{}, {}]", args.sizes.m, args.sizes.k,
         args.sizes.k, args.sizes.n);
}

}  // namespace trireme::gemm_internal
