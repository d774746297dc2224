#include "kernels/adafactor/adafactor_grid.h"
#include "kernels/adafactor/adafactor_table.h"
#include "kernels/common/exact_sum.cuh"
#include "kernels/common/many_tensors.cuh"

namespace trireme::cuda {
namespace {

// A thread walks down a column of a tile. Sums are exact, so that atomics have no order.
constexpr int kThreads = kAdafactorTileColumns, kRows = kAdafactorTileRows;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ int thread_here() { return static_cast<int>(threadIdx.x); }

struct Tile {
  AdafactorTensorArgs tensor;
  std::int64_t row, column;  ///< the first row; this thread's column
  int rows;
  bool inside;

  __device__ __forceinline__ explicit Tile(const AdafactorArgs& args)
      : tensor(args.tensors[tensor_of_block(args.tensors, args.tensor_count, blockIdx.x)]) {
    const std::int64_t strips = (tensor.columns + kThreads - 1) / kThreads;
    const std::int64_t tile = blockIdx.x - tensor.first_block;
    row = tile / strips * kRows;
    column = tile % strips * kThreads + threadIdx.x;
    rows = static_cast<int>(min(std::int64_t{kRows}, tensor.rows - row));
    inside = column < tensor.columns;
  }
  __device__ __forceinline__ bool matrix() const { return tensor.variance == nullptr; }
  __device__ __forceinline__ std::int64_t at(int k) const {
    return (row + k) * tensor.columns + column;
  }
  /// 0 outside.
  __device__ __forceinline__ float gradient(int k) const {
    return inside ? tensor.gradient[at(k)] : 0.0F;
  }
};

/// x^2 on the grid of m.
__device__ __forceinline__ double on_grid(float x, double m) {
  return fma(static_cast<double>(x), static_cast<double>(x), m) - m;
}

__global__ void __launch_bounds__(kThreads) largest_kernel(AdafactorArgs args) {
  __shared__ unsigned of_rows[kRows];
  const Tile tile(args);
  if (!tile.matrix()) return;
  if (threadIdx.x < kRows) of_rows[threadIdx.x] = 0;
  __syncthreads();
  unsigned most = 0;
#pragma unroll 1
  for (int k = 0; k < tile.rows; ++k) {
    const unsigned bits = __builtin_bit_cast(unsigned, tile.gradient(k)) & 0x7fffffffU;
    most = max(most, bits);
    const unsigned of_warp = warp_max(bits);
    if (threadIdx.x % 32 == 0) atomicMax(&of_rows[k], of_warp);
  }
  __syncthreads();
  const int thread = thread_here();
  if (thread < tile.rows)
    atomicMax(&tile.tensor.row.largest[tile.row + thread], static_cast<int>(of_rows[thread]));
  if (tile.inside) atomicMax(&tile.tensor.column.largest[tile.column], static_cast<int>(most));
}

/// words += value(k), k < rows, of all threads of a block, at once or, where that would not be
/// exact, one by one.
template <class Value>
__device__ __forceinline__ void add_block(std::uint64_t* words, int rows, double bound,
                                          const Value& value) {
  __shared__ double partials[kWarps];
  double sum = 0;
#pragma unroll 4
  for (int k = 0; k < rows; ++k) sum += value(k);
  sum = block_sum<double, kThreads>(sum, partials);
  auto* to = reinterpret_cast<Word*>(words);
  if (sum < bound) {
    if (threadIdx.x == 0) add_exactly(to, sum);
    return;
  }
#pragma unroll 1
  for (int k = 0; k < rows; ++k) add_exactly(to, value(k));
}

__device__ __forceinline__ void add_lines(const Tile& tile) {
  __shared__ double rounders[kRows], parts[kRows][kWarps];
  const AdafactorLinesArgs &row = tile.tensor.row, &column = tile.tensor.column;
  const int thread = thread_here();
  if (thread < tile.rows)
    rounders[thread] = line_rounder(row.largest[tile.row + thread], row.terms);
  __syncthreads();
  const double m = tile.inside ? line_rounder(column.largest[tile.column], column.terms) : 0;
  double sum = 0;
#pragma unroll 1
  for (int k = 0; k < tile.rows; ++k) {
    const float x = tile.gradient(k);
    sum += on_grid(x, m);
    const double of_warp = warp_sum(tile.inside ? on_grid(x, rounders[k]) : 0);
    if (thread % 32 == 0) parts[k][thread / 32] = of_warp;
  }
  __syncthreads();
  if (thread < tile.rows) {
    double of_row = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) of_row += parts[thread][w];
    atomicAdd(&row.sums[tile.row + thread], of_row);
  }
  if (tile.inside) atomicAdd(&column.sums[tile.column], sum);
}

__global__ void __launch_bounds__(kThreads) sums_kernel(AdafactorArgs args) {
  const Tile tile(args);
  if (tile.matrix()) add_lines(tile);
  const double m = rounder_of(kWeightGrid);
  add_block(tile.tensor.words, tile.rows, exact_below(kWeightGrid),
            [&](int k) { return tile.inside ? on_grid(tile.tensor.parameter[tile.at(k)], m) : 0; });
}

// Operation for operation what the CPU does, so that both have the same bits.

__device__ __forceinline__ void lines_of(const AdafactorArgs& args, const AdafactorLinesArgs& lines,
                                         std::int64_t count) {
#pragma unroll 1
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const auto mean =
        static_cast<float>(args.square_scale * lines.sums[i] / static_cast<double>(lines.terms));
    const float before = lines.variance[i];
    const float variance = __fmaf_rn(args.share, __fadd_rn(mean, -before), before);
    lines.variance[i] = variance;
    lines.sums[i] = static_cast<double>(variance);
  }
}

__global__ void __launch_bounds__(kThreads) lines_kernel(AdafactorArgs args) {
  const AdafactorTensorArgs tensor = args.tensors[blockIdx.x];
  if (tensor.variance != nullptr) return;
  lines_of(args, tensor.row, tensor.rows);
  lines_of(args, tensor.column, tensor.columns);
}

/// u of row k of a tile; inside it.
__device__ __forceinline__ float step_of(const Tile& tile, int k, float of_column, float scale) {
  const AdafactorTensorArgs& tensor = tile.tensor;
  const float of_row = tile.matrix() ? tensor.row.variance[tile.row + k] / tensor.scalars[0] : 1.0F;
  const float product = __fmul_rn(of_row, of_column), least = kAdafactorEps * kAdafactorEps;
  const float v = product < least ? least : product;
  return __fmul_rn(tile.gradient(k), scale) / sqrtf(v);
}

__device__ __forceinline__ const float* column_variances(const Tile& tile) {
  return tile.matrix() ? tile.tensor.column.variance : tile.tensor.variance;
}

__global__ void __launch_bounds__(kThreads) squares_kernel(AdafactorArgs args) {
  const Tile tile(args);
  if (!tile.matrix() && tile.inside) {
    float& variance = tile.tensor.variance[tile.column];
    const float g = __fmul_rn(tile.gradient(0), args.gradient_scale);
    variance = __fmaf_rn(args.share, __fadd_rn(__fmul_rn(g, g), -variance), variance);
  }
  const float of_column = tile.inside ? column_variances(tile)[tile.column] : 0;
  const double m = rounder_of(kStepGrid);
  add_block(tile.tensor.words, tile.rows, exact_below(kStepGrid), [&](int k) {
    return tile.inside ? on_grid(step_of(tile, k, of_column, args.gradient_scale), m) : 0;
  });
}

__global__ void __launch_bounds__(kThreads) update_kernel(AdafactorArgs args) {
  const Tile tile(args);
  if (!tile.inside) return;
  const AdafactorTensorArgs& tensor = tile.tensor;
  const float of_column = column_variances(tile)[tile.column];
  const float keep = tensor.scalars[1], step = tensor.scalars[2];
#pragma unroll 4
  for (int k = 0; k < tile.rows; ++k) {
    const std::int64_t at = tile.at(k);
    const float u = step_of(tile, k, of_column, args.gradient_scale);
    const float p = __fmaf_rn(-step, u, __fmul_rn(tensor.parameter[at], keep));
    tensor.parameter[at] = p;
    if (tensor.copy != nullptr) reinterpret_cast<bf16*>(tensor.copy)[at] = from_float<bf16>(p);
  }
}

void launch_tiles(const AdafactorArgs& args, void (*kernel)(AdafactorArgs), const char* name) {
  launch(kernel,
         {.grid = static_cast<unsigned>(args.block_count),
          .block = kThreads,
          .stream = stream_of(args.exec),
          .name = name},
         args);
}

void largest(const AdafactorArgs& args) { launch_tiles(args, largest_kernel, "adafactor_largest"); }
void sums(const AdafactorArgs& args) { launch_tiles(args, sums_kernel, "adafactor_sums"); }
void lines(const AdafactorArgs& args) {
  launch(lines_kernel,
         {.grid = static_cast<unsigned>(args.tensor_count),
          .block = kThreads,
          .stream = stream_of(args.exec),
          .name = "adafactor_lines"},
         args);
}
void squares(const AdafactorArgs& args) { launch_tiles(args, squares_kernel, "adafactor_squares"); }
void update(const AdafactorArgs& args) { launch_tiles(args, update_kernel, "adafactor_update"); }

}  // namespace

const AdafactorGpuKernels adafactor_cuda = {largest, sums, lines, squares, update};

}  // namespace trireme::cuda
