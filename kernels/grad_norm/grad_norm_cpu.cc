#include "kernels/common/simd.h"
#include "kernels/grad_norm/grad_norm_table.h"

namespace trireme::TRIREME_ISA {
namespace {

// The tree is the same for all instruction sets: lane l of 16 adds squares of elements l, l + 16,
// ..., then lanes fold in halves. Squares of f32 are exact in f64: only additions round.
constexpr int kLanes = 16;
constexpr int kVectors = kLanes / F64::kWidth;

struct Lanes {
  F64 sums[kVectors];

  TRIREME_INLINE void add(const float* x) {
    for (int v = 0; v < kVectors; ++v) {
      const F64 value = F64::load(x + v * F64::kWidth);
      sums[v] = fma(value, value, sums[v]);
    }
  }
  TRIREME_INLINE double folded() {
    for (int half = kVectors / 2; half > 0; half /= 2) {
      for (int v = 0; v < half; ++v) sums[v] = sums[v] + sums[v + half];
    }
    double lanes[F64::kWidth];
    sums[0].store(lanes);
    for (int half = F64::kWidth / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    return lanes[0];
  }
};

double squares_of(const float* x, std::int64_t count) {
  Lanes lanes;
  for (int v = 0; v < kVectors; ++v) lanes.sums[v] = F64::zero();
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) lanes.add(x + i);
  if (i < count) {
    float rest[kLanes] = {};  // adding 0 changes nothing
    __builtin_memcpy(rest, x + i, static_cast<std::size_t>(count - i) * sizeof(float));
    lanes.add(rest);
  }
  return lanes.folded();
}

void row_squares(double* squares, const float* gradient, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) squares[r] = squares_of(gradient + r * columns, columns);
}

}  // namespace

const GradNormKernels grad_norm_cpu = {row_squares};

}  // namespace trireme::TRIREME_ISA
