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

class Panels {
 public:
  Panels(Context& context, const PanelProduct& product)
      : context_(context), args_(product), s_(product.sizes) {
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
    const bool add = args_.accumulate || args_.bias_N.given();
    if (args_.bias_N.given()) {
      kernels(context_).copy_panel({context_.exec(), c, args_.bias_N.as<BFloat16>() + n.begin,
                                    m.size, n.size, c_stride, 0, DType::kF32, DType::kBF16});
    }
    for (std::int64_t first = 0; first < s_.k; first += kBlockK) {
      const Range k = block(first, kBlockK, s_.k);
      // Where all of K is one block, b stays from one block of rows to the next.
      const bool ta = args_.transpose_a, tb = args_.transpose_b;
      if (s_.k > kBlockK || m.begin == 0)
        args_.widen_b(context_, args_.b, b_, tb ? panel(n, k) : panel(k, n));
      args_.widen_a(context_, args_.a, a_, ta ? panel(k, m) : panel(m, k));
      const ProductArgs product = {
          {m.size, n.size, k.size}, DType::kF32,          DType::kF32, a_, b_, c,
          ta ? m.size : k.size,     tb ? k.size : n.size, c_stride,    ta, tb, add || first > 0};
      const Rows rows = context_.batch_invariant() ? Rows::kAnyNumber : Rows::kEnough;
      gemm_internal::multiply(
          context_, product, own_kernel(kernels(context_), product, false, rows), product_scratch_);
    }
    if (!narrow) return;
    kernels(context_).copy_panel({context_.exec(),
                                  args_.c_MN.as<BFloat16>() + m.begin * s_.n + n.begin, c_, m.size,
                                  n.size, s_.n, n.size, DType::kBF16, DType::kF32});
  }

  static Panel panel(Range rows, Range columns) {
    return {rows.begin, rows.size, columns.begin, columns.size};
  }

  Context& context_;
  const PanelProduct& args_;
  Sizes s_;
  float *product_scratch_, *a_, *b_, *c_;
};

/// `state` is a view of the matrix.
void widen(Context& context, const void* state, float* panel, const Panel& of) {
  const auto& matrix = *static_cast<const ConstTensorView*>(state);
  const std::int64_t stride = matrix.shape[1];
  kernels(context).copy_panel({context.exec(), panel,
                               matrix.as<BFloat16>() + of.row * stride + of.column, of.rows,
                               of.columns, of.columns, stride, DType::kF32, DType::kBF16});
}

}  // namespace

void multiply_by_panels(Context& context, const PanelProduct& product) {
  Panels(context, product).run();
}

void gemm_by_panels(Context& context, const Gemm& args, Sizes sizes) {
  multiply_by_panels(
      context,
      {sizes, args.c_MN, args.transpose_a == Transpose::kYes, args.transpose_b == Transpose::kYes,
       args.accumulate == Accumulate::kYes, args.bias_N, widen, widen, &args.a, &args.b});
}

}  // namespace trireme::gemm_internal
