#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

struct GemmSizes {
  std::int64_t m, n, k;
};

/// destination[r, c] = source[r, c], converted; a source stride of 0 repeats one row.
struct PanelArgs {
  Exec exec;
  void* destination;
  const void* source;
  std::int64_t rows, columns;
  std::int64_t destination_stride, source_stride;  ///< in elements
  DType destination_type, source_type;
};

/// destination += source, in f32, rounded once.
struct AddArgs {
  Exec exec;
  void* destination;
  const void* source;
  std::int64_t count;
  DType type;
};

/// Called with rows [first, first + count) of c by the thread that made them, when complete.
struct RowsDone {
  void (*call)(const void* state, std::int64_t first, std::int64_t count) = nullptr;
  const void* state = nullptr;
  std::int64_t before = 0;  ///< rows of the caller's c before this one
};

/// c = op(a) op(b), or c += op(a) op(b) in f32; op(a) [m, k], op(b) [k, n]; strides in elements.
struct ProductArgs {
  GemmSizes sizes;
  DType type, c_type;  ///< of a and b; of c
  const void* a;
  const void* b;
  void* c;
  std::int64_t a_stride, b_stride, c_stride;
  bool transpose_a, transpose_b, add;
  RowsDone done = {};
};
/// Products of one type by one thread; no `multiply`: none.
///
/// f32: all of them. bf16: c is f32, or bf16 where nothing is added, `a` is not transposed and K is
/// at most k_at_once (sums are rounded once); K is even unless `a` is transposed.
struct CpuProduct {
  /// scratch is aligned to 64 bytes. Parts of a sum depend on k and transpose_a alone.
  void (*multiply)(const ProductArgs&, float* scratch);
  std::int64_t scratch;                  ///< in floats
  std::int64_t tile_rows, tile_columns;  ///< multiplied at once
  std::int64_t k_at_once;                ///< of rows of a
};

/// c = a op(b) (+ bias, of a's type), where a row has the same bits alone and among others. `a` is
/// not transposed, nothing is added, c is of a's type or f32.
struct RowProductArgs {
  Exec exec;
  ProductArgs product;
  const void* bias;  ///< may be null
};

struct GemmKernels {
  void (*copy_panel)(const PanelArgs&);
  void (*add)(const AddArgs&);
  const CpuProduct* f32_product;
  const CpuProduct* bf16_product;
  void (*multiply_rows)(const RowProductArgs&);
};

TRIREME_CPU_TABLES(GemmKernels, gemm_cpu);

}  // namespace trireme
