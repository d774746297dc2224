#pragma once
// What the tables of cuBLASLt share: its products, whatever the type of their operands. Only files
// named *_cublaslt*.cc and *_cublaslt*.cu include it.

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/gpu_scratch.h"

namespace trireme::cuda::cublaslt {

constexpr std::size_t kWorkspaceBytes = gpu_scratch::kProductWorkspaceBytes;

/// Which codes of an fp8 operand share a scale: all; 128 along K of one row; 128 along K of 128
/// rows. The library has the latter two on Hopper alone, not both operands in squares.
enum class Scales : std::uint8_t { kOne, kOfRows, kOfSquares };

/// c = the product of what op(a) and op(b) stand for (+ bias on each row), or c += that; op(a)
/// [m, k], op(b) [k, n].
struct Product {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  const void *a, *b;
  void* c;
  const void* bias;  ///< of c's type, or null
  DType type_a, type_b, type_c;
  /// Elements from one row of the stored matrix to the next; 0: it is dense.
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  /// On the device, at multiples of 16 bytes, of fp8 operands; null: there is none. In squares a
  /// row of scales begins every round_up(k / 128, 4); of rows those of one block of K, for all
  /// rows, stand side by side.
  const float *scale_a = nullptr, *scale_b = nullptr;
  Scales scales_a = Scales::kOne, scales_b = Scales::kOne;
  /// Of fp8 operands: sums of all of K stay in a tensor core's accumulator.
  bool fast_sums = false;
};

/// Whether the library is here and has a kernel for it: sizes, types, layout, alignment.
bool serves(const Product& product);
/// By that kernel.
void multiply(const Exec& exec, const Product& product, void* workspace);

/// to[row to_row + column to_column] = from[row, column]: scales in another order.
struct OrderScalesArgs {
  Exec exec;
  float* to;
  const float* from;
  std::int64_t rows, columns, to_row, to_column;
};
void order_scales(const OrderScalesArgs& args);

/// As GemmGpuKernels has them.
const char* missing();
std::int64_t version();

}  // namespace trireme::cuda::cublaslt
