#include <algorithm>

#include "base/math.h"
#include "kernels/gemm/gemm_internal.h"

namespace trireme::gemm_internal {
namespace {

// At most 40 MiB of scratch beside the product's; large enough for f32 to run near full speed.
constexpr std::int64_t kBlockK = 4096, kBlockN = 1024, kBlockM = 512;

struct Range {
  std::int64_t begin, size;
};

Range block(std::int64_t begin, std::int64_t size, std::int64_t total) {
  return {begin, std::min(size, total - begin)};
}

/// Widens rows x columns of a stored bf16 matrix into a dense f32 panel.
void widen(Context& context, float* panel, ConstTensorView matrix, Range rows, Range columns) {
  const std::int64_t stride = matrix.shape[1];
  const BFloat16* source = matrix.as<BFloat16>() + rows.begin * stride + columns.begin;
  kernels(context).copy_panel({context.exec(), panel, source, rows.size, columns.size, columns.size,
                               stride, DType::kF32, DType::kBF16});
}

class Panels {
 public:
  Panels(Context& context, const Gemm& args, Sizes sizes)
      : context_(context), args_(args), s_(sizes) {
    const std::int64_t k = std::min(s_.k, kBlockK), n = std::min(s_.n, kBlockN),
                       m = std::min(s_.m, kBlockM);
    const std::int64_t a_size = round_up(m * k, 16), b_size = round_up(k * n, 16);
    const std::int64_t inner = product_scratch(context);
    product_scratch_ = reinterpret_cast<float*>(
        context.scratch(static_cast<std::size_t>(inner + a_size + b_size + m * n) * sizeof(float)));
    a_ = product_scratch_ + inner;
    b_ = a_ + a_size;
    c_ = b_ + b_size;
  }

  void run() {
    for (std::int64_t n = 0; n < s_.n; n += kBlockN) {
      for (std::int64_t m = 0; m < s_.m; m += kBlockM)
        multiply(block(m, kBlockM, s_.m), block(n, kBlockN, s_.n));
    }
  }

 private:
  void multiply(Range m, Range n) {
    const bool narrow = args_.c_MN.dtype == DType::kBF16;
    float* c = narrow ? c_ : args_.c_MN.as<float>() + m.begin * s_.n + n.begin;
    const std::int64_t c_stride = narrow ? n.size : s_.n;
    const bool add = args_.accumulate == Accumulate::kYes || args_.bias_N.given();
    if (args_.bias_N.given()) {
      kernels(context_).copy_panel({context_.exec(), c, args_.bias_N.as<BFloat16>() + n.begin,
                                    m.size, n.size, c_stride, 0, DType::kF32, DType::kBF16});
    }
    for (std::int64_t first = 0; first < s_.k; first += kBlockK) {
      const Range k = block(first, kBlockK, s_.k);
      // Where all of K is one block, b stays from one block of rows to the next.
      if (s_.k > kBlockK || m.begin == 0) widen_operand(b_, args_.b, args_.transpose_b, k, n);
      widen_operand(a_, args_.a, args_.transpose_a, m, k);
      const bool ta = args_.transpose_a == Transpose::kYes,
                 tb = args_.transpose_b == Transpose::kYes;
      const ProductArgs product = {
          {m.size, n.size, k.size}, DType::kF32,          DType::kF32, a_, b_, c,
          ta ? m.size : k.size,     tb ? k.size : n.size, c_stride,    ta, tb, add || first > 0};
      gemm_internal::multiply(context_, product, own_kernel(kernels(context_), product, false),
                              product_scratch_);
    }
    if (!narrow) return;
    kernels(context_).copy_panel({context_.exec(),
                                  args_.c_MN.as<BFloat16>() + m.begin * s_.n + n.begin, c_, m.size,
                                  n.size, s_.n, n.size, DType::kBF16, DType::kF32});
  }

  /// rows and columns are those of op(matrix).
  void widen_operand(float* panel, ConstTensorView matrix, Transpose transpose, Range rows,
                     Range columns) {
    if (transpose == Transpose::kYes) return widen(context_, panel, matrix, columns, rows);
    widen(context_, panel, matrix, rows, columns);
  }

  Context& context_;
  const Gemm& args_;
  Sizes s_;
  float *product_scratch_, *a_, *b_, *c_;
};

}  // namespace

void gemm_by_panels(Context& context, const Gemm& args, Sizes sizes) {
  Panels(context, args, sizes).run();
}

}  // namespace trireme::gemm_internal
