#include "kernels/gemm/thread_product.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/gemm/gemm_internal.h"

namespace trireme {
namespace {

/// Of bf16 that is not multiplied as it lies: so much is widened, or kept as sums, at once. A panel
/// of b (768 KiB) stays in the outer caches; K is that of one or two parts of the f32 product.
constexpr std::int64_t kTileM = 120, kTileN = 256, kPartK = 768;
constexpr std::int64_t kTile = kTileM * kTileN, kPanelA = kTileM * kPartK,
                       kPanelB = kPartK * kTileN;

const void* element(const void* matrix, std::int64_t i, DType type) {
  return static_cast<const std::byte*>(matrix) + i * static_cast<std::int64_t>(size_of(type));
}
void* element(void* matrix, std::int64_t i, DType type) {
  return static_cast<std::byte*>(matrix) + i * static_cast<std::int64_t>(size_of(type));
}

struct Corner {
  std::int64_t m, n, k;
};
/// The product of `sizes` from `at` on.
ProductArgs part_of(const ProductArgs& all, Corner at, GemmSizes sizes) {
  ProductArgs part = all;
  part.sizes = sizes;
  part.a = element(all.a, all.transpose_a ? at.k * all.a_stride + at.m : at.m * all.a_stride + at.k,
                   all.type);
  part.b = element(all.b, all.transpose_b ? at.n * all.b_stride + at.k : at.k * all.b_stride + at.n,
                   all.type);
  part.c = element(all.c, at.m * all.c_stride + at.n, all.c_type);
  return part;
}

const CpuProduct* own_kernel(const GemmKernels& kernels, const ProductArgs& args) {
  return gemm_internal::own_kernel(kernels, args, false, gemm_internal::Rows::kAnyNumber);
}

}  // namespace

ThreadProduct::ThreadProduct(const Context& context, DType type)
    : kernels_(gemm_internal::kernels(context)),
      product_scratch_(
          round_up(std::max(kernels_.f32_product->scratch, kernels_.bf16_product->scratch), 16)) {
  scratch_ = product_scratch_ + (type == DType::kBF16 ? kTile + kPanelA + kPanelB : 0);
}

void ThreadProduct::multiply(const ProductArgs& args, float* scratch) const {
  if (const CpuProduct* own = own_kernel(kernels_, args)) return own->multiply(args, scratch);
  const auto& [m, n, k] = args.sizes;
  for (std::int64_t column = 0; column < n; column += kTileN) {
    for (std::int64_t row = 0; row < m; row += kTileM) {
      multiply_tile(part_of(args, {row, column, 0},
                            {std::min(kTileM, m - row), std::min(kTileN, n - column), k}),
                    scratch);
    }
  }
}

void ThreadProduct::multiply_tile(const ProductArgs& tile, float* scratch) const {
  const bool narrow = tile.c_type == DType::kBF16;
  ProductArgs sums = tile;
  if (narrow) {
    sums.c = scratch + product_scratch_;
    sums.c_type = DType::kF32;
    sums.c_stride = tile.sizes.n;
  }
  if (const CpuProduct* own = own_kernel(kernels_, sums)) {
    own->multiply(sums, scratch);
  } else {
    multiply_widened(sums, scratch);
  }
  if (!narrow) return;
  kernels_.copy_panel({{.threads = 1},
                       tile.c,
                       sums.c,
                       tile.sizes.m,
                       tile.sizes.n,
                       tile.c_stride,
                       sums.c_stride,
                       DType::kBF16,
                       DType::kF32});
}

void ThreadProduct::multiply_widened(const ProductArgs& tile, float* scratch) const {
  const auto& [m, n, k] = tile.sizes;
  float* const a = scratch + product_scratch_ + kTile;
  float* const b = a + kPanelA;
  const auto widen = [&](float* panel, const void* from, std::int64_t stride, std::int64_t rows,
                         std::int64_t columns) {
    kernels_.copy_panel(
        {{.threads = 1}, panel, from, rows, columns, columns, stride, DType::kF32, DType::kBF16});
  };
  for (std::int64_t first = 0; first < k; first += kPartK) {
    const std::int64_t depth = std::min(kPartK, k - first);
    ProductArgs part = part_of(tile, {0, 0, first}, {m, n, depth});
    const std::int64_t a_rows = tile.transpose_a ? depth : m, b_rows = tile.transpose_b ? n : depth;
    const std::int64_t a_columns = tile.transpose_a ? m : depth;
    const std::int64_t b_columns = tile.transpose_b ? depth : n;
    widen(a, part.a, tile.a_stride, a_rows, a_columns);
    widen(b, part.b, tile.b_stride, b_rows, b_columns);
    part.type = DType::kF32;
    part.a = a;
    part.b = b;
    part.a_stride = a_columns;
    part.b_stride = b_columns;
    part.add = tile.add || first > 0;
    kernels_.f32_product->multiply(part, scratch);
  }
}

void ThreadProduct::narrow(BFloat16* c, std::int64_t c_stride, const float* sums, std::int64_t m,
                           std::int64_t n) const {
  kernels_.copy_panel({{.threads = 1}, c, sums, m, n, c_stride, n, DType::kBF16, DType::kF32});
}

void ThreadProduct::add(float* c, std::int64_t c_stride, const float* sums, std::int64_t m,
                        std::int64_t n) const {
  for (std::int64_t row = 0; row < m; ++row)
    kernels_.add({{.threads = 1}, c + row * c_stride, sums + row * n, n, DType::kF32});
}

}  // namespace trireme
