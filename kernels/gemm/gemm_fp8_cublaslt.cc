// Products of fp8 operands by cuBLASLt. What follows a product is left to an op behind it
// (gemm_cublaslt.cc).
//
// Recipe `tensor`: cuBLASLt takes one scale for all of an operand, at a multiple of 16 bytes (an
// H200 refuses others, as what is not supported, when a product is asked for). Parts of rows are
// therefore a call each, into their rows or columns of c. Parts of K are a call each too, whose
// sums are added in f32; for a bf16 c they are so in the workspace, as many rows at a time as have
// room there, and rounded once.
//
// Recipe `block`: one call, on Hopper. Scales are those of 1 x 128 or of 128 x 128, in an order of
// the library's (gemm_cublaslt.h) that is not the one in which they are made and travel.
//
// Tensor cores since compute capability 8.9 have fp8; which GPU has which scales, and that K runs
// along both operands on all but 10.x and 11.0, says cuBLAS's documentation ("Narrow Precision Data
// Types Usage", cublasLtMatmul). A serves() that is true has asked the library itself.
#include <algorithm>

#include "base/math.h"
#include "kernels/elementwise/elementwise_table.h"
#include "kernels/gemm/gemm_cublaslt.h"
#include "kernels/gemm/gemm_quantized_gpu_table.h"

namespace trireme::cuda {
namespace {

using cublaslt::Product;
using cublaslt::Scales;

constexpr std::int64_t kAlignment = 16;  ///< of operands, scales and results, in bytes; of n
constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kFloatsOfPlace = kAlignment / std::int64_t{sizeof(float)};

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}
template <class T>
T* bytes_behind(T* pointer, std::int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<T*>(static_cast<Byte*>(pointer) + bytes);
}

/// A place as scales and sums will have, for a product that is only asked about: not read.
alignas(gpu_scratch::kProductAlignment) float place_asked_about[kFloatsOfPlace];

bool in_blocks(const GemmQuantizedGpuArgs& args) { return args.a.column_block != 0; }

// ---- operands with scales of blocks ----

/// Which of the library's orders the scales can be brought to; kOne: none.
Scales order_of(const ScalesGpu& of) {
  if (of.column_block != kBlock) return Scales::kOne;
  if (of.row_block == 1) return Scales::kOfRows;
  if (of.row_block != kBlock) return Scales::kOne;
  // A block of rows for each 128 of the whole operand.
  for (int i = 0; i < of.parts; ++i) {
    const bool whole =
        of.offsets[i] % kBlock == 0 && (of.sizes[i] % kBlock == 0 || i == of.parts - 1);
    if (!whole) return Scales::kOne;
  }
  return Scales::kOfSquares;
}

/// Of an operand of so many rows.
struct Ordered {
  Scales scales;
  std::int64_t rows, columns, to_row, to_column;

  Ordered(const ScalesGpu& of, std::int64_t rows_)
      : scales(order_of(of)),
        rows(scales == Scales::kOfRows ? rows_ : ceil_div(rows_, kBlock)),
        columns(of.columns),
        to_row(scales == Scales::kOfRows ? 1 : round_up(columns, kFloatsOfPlace)),
        to_column(scales == Scales::kOfRows ? rows : 1) {}
  [[nodiscard]] std::int64_t floats() const {
    return scales == Scales::kOfRows ? rows * columns : rows * to_row;
  }
  [[nodiscard]] bool stands(const float* at) const {
    return scales == Scales::kOfSquares && to_row == columns && aligned(at);
  }
  /// Where they stand in order, at `room` if they did not.
  const float* order(const Exec& exec, const float* from, float* room) const {
    if (stands(from)) return from;
    cublaslt::order_scales({exec, room, from, rows, columns, to_row, to_column});
    return room;
  }
};

bool has_room(const Ordered& a, const Ordered& b) {
  const std::int64_t floats = a.floats() + b.floats();
  return floats * std::int64_t{sizeof(float)} <= gpu_scratch::kFp8ProductBytes;
}

Product whole_product(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& all = args.product;
  return {.m = all.m,
          .n = all.n,
          .k = all.k,
          .transpose_a = false,
          .transpose_b = true,
          .accumulate = all.accumulate,
          .a = all.a,
          .b = all.b,
          .c = all.c,
          .bias = all.bias,
          .type_a = args.format_a,
          .type_b = args.format_b,
          .type_c = all.c_type,
          .scale_a = place_asked_about,
          .scale_b = place_asked_about,
          .fast_sums = !args.precise_sums};
}

Product product_of_blocks(const GemmQuantizedGpuArgs& args) {
  Product product = whole_product(args);
  product.scales_a = order_of(args.a);
  product.scales_b = order_of(args.b);
  return product;
}

bool serves_blocks(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& all = args.product;
  const Ordered a(args.a, all.m), b(args.b, all.n);
  const auto squares = [](const Ordered& of) { return of.scales == Scales::kOfSquares; };
  if (a.scales == Scales::kOne || b.scales == Scales::kOne || (squares(a) && squares(b)))
    return false;
  const bool fits = args.precise_sums && all.m % kFloatsOfPlace == 0 &&
                    a.columns == all.k / kBlock && b.columns == all.k / kBlock && has_room(a, b);
  return fits && cublaslt::serves(product_of_blocks(args));
}

void multiply_blocks(const GemmQuantizedGpuArgs& args, float* room) {
  const GemmGpuArgs& all = args.product;
  const Ordered a(args.a, all.m), b(args.b, all.n);
  Product product = product_of_blocks(args);
  product.scale_a = a.order(all.exec, args.a.scales, room);
  product.scale_b = b.order(all.exec, args.b.scales, room + a.floats());
  cublaslt::multiply(all.exec, product, all.workspace);
}

// ---- operands with one scale for a part ----

/// Scales, each at a place of its own.
constexpr std::int64_t kScalesFloats = ScalesGpu::kPartsMax * ScalesGpu::kPartsMax * kFloatsOfPlace;

bool has_parts(const ScalesGpu& of) { return of.parts * of.columns > 1 || !aligned(of.scales); }

/// The places of an operand's scales, brought there if they were not.
struct Places {
  const float* at;
  std::int64_t columns;
  Places(const Exec& exec, const ScalesGpu& of, float* room) : at(of.scales), columns(of.columns) {
    if (!has_parts(of)) return;
    cublaslt::order_scales(
        {exec, room, of.scales, of.parts, columns, columns * kFloatsOfPlace, kFloatsOfPlace});
    at = room;
  }
  [[nodiscard]] const float* of(int part, int k_part) const {
    return at + (part * columns + k_part) * kFloatsOfPlace;
  }
};

/// One call's parts and where they begin.
struct Part {
  int index;
  std::int64_t begin, size;
};
template <class F>
bool all_parts(const ScalesGpu& of, const F& f) {
  Part part{0, 0, 0};
  for (; part.index < of.parts; ++part.index) {
    part.size = of.sizes[part.index];
    if (!f(part)) return false;
    part.begin += part.size;
  }
  return true;
}
template <class F>
bool all_k_parts(const GemmQuantizedGpuArgs& args, const F& f) {
  Part part{0, 0, 0};
  for (; part.index < args.k_parts; ++part.index) {
    part.size = args.k_ends[part.index] * kBlock - part.begin;
    if (!f(part)) return false;
    part.begin += part.size;
  }
  return true;
}

/// Rows of c, and where their sums are added: in c or, f32, at `sums`.
struct Rows {
  Part a, b;
  float* sums;
};
Product product_of_parts(const GemmQuantizedGpuArgs& args, const Rows& rows, const Part& k) {
  const GemmGpuArgs& all = args.product;
  const auto place =
      (rows.a.begin * all.n + rows.b.begin) * static_cast<std::int64_t>(size_of(all.c_type));
  Product product = whole_product(args);
  product.m = rows.a.size;
  product.n = rows.b.size;
  product.k = k.size;
  product.a = bytes_behind(all.a, rows.a.begin * all.k + k.begin);
  product.b = bytes_behind(all.b, rows.b.begin * all.k + k.begin);
  product.stride_a = product.stride_b = all.k;
  product.stride_c = all.n;
  product.c = bytes_behind(all.c, place);
  if (rows.sums != nullptr) product.c = rows.sums, product.type_c = DType::kF32;
  product.accumulate = all.accumulate || k.index > 0;
  if (all.bias != nullptr)
    product.bias = bytes_behind(all.bias, rows.b.begin * std::int64_t{sizeof(std::uint16_t)});
  return product;
}

bool rounds_sums(const GemmQuantizedGpuArgs& args) {
  return args.k_parts > 1 && args.product.c_type == DType::kBF16;
}
std::int64_t rows_with_room(const GemmQuantizedGpuArgs& args) {
  const std::int64_t floats = gpu_scratch::kFp8ProductBytes / std::int64_t{sizeof(float)};
  return (floats - 2 * kScalesFloats) / args.product.n;
}

/// All rows of c that are made at once, one after the other: f(rows) says whether to go on.
template <class F>
bool all_rows(const GemmQuantizedGpuArgs& args, float* sums, const F& f) {
  return all_parts(args.a, [&](const Part& a) {
    return all_parts(args.b, [&](const Part& b) {
      if (!rounds_sums(args)) return f(Rows{a, b, nullptr});
      const std::int64_t most = rows_with_room(args);
      for (std::int64_t first = 0; first < a.size; first += most) {
        const Part some{a.index, a.begin + first, std::min(most, a.size - first)};
        if (!f(Rows{some, b, sums})) return false;
      }
      return true;
    });
  });
}

bool serves_parts(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& all = args.product;
  for (const ScalesGpu* of : {&args.a, &args.b}) {
    if (of->row_block != 0 || of->column_block != 0 || of->columns != args.k_parts) return false;
  }
  if (args.k_parts > 1 && all.bias != nullptr) return false;
  // Rows of sums are rounded all in one.
  if (rounds_sums(args) && (args.b.parts != 1 || rows_with_room(args) == 0)) return false;
  return all_rows(args, place_asked_about, [&](const Rows& rows) {
    return rows.b.size % kAlignment == 0 && all_k_parts(args, [&](const Part& k) {
             return cublaslt::serves(product_of_parts(args, rows, k));
           });
  });
}

void multiply_parts(const GemmQuantizedGpuArgs& args, float* room) {
  const GemmGpuArgs& all = args.product;
  const Places a(all.exec, args.a, room), b(all.exec, args.b, room + kScalesFloats);
  all_rows(args, room + 2 * kScalesFloats, [&](const Rows& rows) {
    all_k_parts(args, [&](const Part& k) {
      Product product = product_of_parts(args, rows, k);
      product.scale_a = a.of(rows.a.index, k.index);
      product.scale_b = b.of(rows.b.index, k.index);
      cublaslt::multiply(all.exec, product, all.workspace);
      return true;
    });
    if (rows.sums != nullptr) {
      const auto c = rows.a.begin * all.n * std::int64_t{size_of(DType::kBF16)};
      elementwise_cuda.cast({all.exec, bytes_behind(all.c, c), rows.sums, rows.a.size * all.n,
                             DType::kBF16, DType::kF32});
    }
    return true;
  });
}

// ---- the table ----

bool serves(const GemmQuantizedGpuArgs& args) {
  const GemmGpuArgs& all = args.product;
  if (all.epilogue != GemmEpilogue::kNone) return false;
  if (all.bias != nullptr && all.c_type != DType::kBF16) return false;
  const bool fits = aligned(all.a) && aligned(all.b) && aligned(all.c) && aligned(all.bias) &&
                    all.n % kAlignment == 0;
  return fits && (in_blocks(args) ? serves_blocks(args) : serves_parts(args));
}

void multiply(const GemmQuantizedGpuArgs& args) {
  auto* const room =
      static_cast<float*>(bytes_behind(args.product.workspace, cublaslt::kWorkspaceBytes));
  if (in_blocks(args)) return multiply_blocks(args, room);
  multiply_parts(args, room);
}

}  // namespace

const GemmQuantizedGpuKernels gemm_fp8_cublaslt = {
    serves, multiply, cublaslt::kWorkspaceBytes + gpu_scratch::kFp8ProductBytes};

}  // namespace trireme::cuda
