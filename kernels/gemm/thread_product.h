#pragma once
// Products by the calling thread alone, for ops that share many of them out among threads.

#include <cstdint>

#include "device/context.h"
#include "kernels/gemm/gemm_table.h"

namespace trireme {

/// Of operands of one type, f32 or bf16, on a CPU. An element's bits depend on its row of op(a),
/// its column of op(b), the types and which operand is transposed: not on M, N, or what is beside
/// it.
class ThreadProduct {
 public:
  ThreadProduct(const Context& context, DType type);
  /// Memory that one call uses, in floats; it is aligned to 64 bytes.
  [[nodiscard]] std::int64_t scratch() const { return scratch_; }
  /// As ProductArgs says, K > 0, without `done`. c is f32, or bf16 where nothing is added.
  void multiply(const ProductArgs& args, float* scratch) const;
  /// c [m, n] = sums, whose rows are dense, rounded.
  void narrow(BFloat16* c, std::int64_t c_stride, const float* sums, std::int64_t m,
              std::int64_t n) const;
  /// c [m, n] += such sums.
  void add(float* c, std::int64_t c_stride, const float* sums, std::int64_t m,
           std::int64_t n) const;

 private:
  void multiply_tile(const ProductArgs& tile, float* scratch) const;
  void multiply_widened(const ProductArgs& tile, float* scratch) const;

  const GemmKernels& kernels_;
  std::int64_t scratch_, product_scratch_;
};

}  // namespace trireme
