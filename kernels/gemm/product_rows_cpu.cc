// Products whose rows have the bits that they have alone: a sum runs over K in one order whatever
// the number of rows. Made for few rows (tokens of a batch that is generated), where time is that
// of reading b: once, as it lies.

#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/gemm/product_cpu.h"

namespace trireme::TRIREME_ISA {
namespace {

/// Sums of so many rows and columns (vectors of columns, where b is not transposed) stay in
/// registers beside what they read.
constexpr int kRows = F32::kWidth == 16 ? 6 : 3;
constexpr int kColumns = F32::kWidth == 16 ? 4 : 3;
/// Columns of a thread's work at once: whole lines of c.
constexpr std::int64_t kUnit = 64;

TRIREME_INLINE float value_of(const float* p) { return *p; }
TRIREME_INLINE float value_of(const BFloat16* p) { return to_float(*p); }

template <class T, class C>
struct RowProduct {
  const ProductArgs& args;
  const T* bias;  // or null

  [[nodiscard]] const T* a(std::int64_t row) const {
    return static_cast<const T*>(args.a) + row * args.a_stride;
  }
  [[nodiscard]] C* c(std::int64_t row, std::int64_t column) const {
    return static_cast<C*>(args.c) + row * args.c_stride + column;
  }

  /// b [N, K]: lanes run along K.
  template <int kM, int kN>
  void dots(std::int64_t row, std::int64_t column) const {
    const T* x = a(row);
    const T* b = static_cast<const T*>(args.b) + column * args.b_stride;
    F32 sums[kM][kN];
    for (auto& of_row : sums)
      for (F32& sum : of_row) sum = F32::zero();
    for_each_vector(0, args.sizes.k, [&](std::int64_t k, auto lanes) {
      F32 rows[kM];
      for (int i = 0; i < kM; ++i) rows[i] = F32::load(x + i * args.a_stride + k, lanes);
      for (int j = 0; j < kN; ++j) {
        const F32 weight = F32::load(b + j * args.b_stride + k, lanes);
        for (int i = 0; i < kM; ++i) sums[i][j] = fma(rows[i], weight, sums[i][j]);
      }
    });
    for (int i = 0; i < kM; ++i) {
      for (int j = 0; j < kN; ++j) {
        float sum = reduce_add(sums[i][j]);
        if (bias != nullptr) sum += value_of(bias + column + j);
        F32::broadcast(sum).store(c(row + i, column + j), Tail(1));
      }
    }
  }

  /// b [K, N]: lanes run along N.
  template <int kM, int kN, class Lanes>
  TRIREME_INLINE void columns(std::int64_t row, std::int64_t column, Lanes lanes) const {
    constexpr std::int64_t kAhead = 16;  // rows of b, each elsewhere in memory
    const T* x = a(row);
    const T* b = static_cast<const T*>(args.b) + column;
    F32 sums[kM][kN];
    for (auto& of_row : sums)
      for (F32& sum : of_row) sum = F32::zero();
    for (std::int64_t k = 0; k < args.sizes.k; ++k, b += args.b_stride) {
      F32 weights[kN];
      for (int j = 0; j < kN; ++j) {
        __builtin_prefetch(b + kAhead * args.b_stride + j * F32::kWidth);
        weights[j] = F32::load(b + j * F32::kWidth, lanes);
      }
      for (int i = 0; i < kM; ++i) {
        const F32 value = F32::broadcast(value_of(x + i * args.a_stride + k));
        for (int j = 0; j < kN; ++j) sums[i][j] = fma(value, weights[j], sums[i][j]);
      }
    }
    for (int j = 0; j < kN; ++j) {
      const std::int64_t at = column + j * F32::kWidth;
      for (int i = 0; i < kM; ++i) {
        const F32 sum = bias == nullptr ? sums[i][j] : sums[i][j] + F32::load(bias + at, lanes);
        sum.store(c(row + i, at), lanes);
      }
    }
  }

  template <int kM>
  void part(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    std::int64_t column = begin;
    if (args.transpose_b) {
      for (; column + kColumns <= end; column += kColumns) dots<kM, kColumns>(row, column);
      for (; column < end; ++column) dots<kM, 1>(row, column);
      return;
    }
    constexpr std::int64_t kWide = kColumns * F32::kWidth;
    for (; column + kWide <= end; column += kWide) columns<kM, kColumns>(row, column, Full{});
    for_each_vector(column, end,
                    [&](std::int64_t at, auto lanes) { columns<kM, 1>(row, at, lanes); });
  }
  /// The last rows, fewer than kRows.
  template <int kM = kRows - 1>
  void rest(std::int64_t row, std::int64_t count, std::int64_t begin, std::int64_t end) const {
    if constexpr (kM > 0) {
      if (count == kM) return part<kM>(row, begin, end);
      rest<kM - 1>(row, count, begin, end);
    }
  }

  void run(const Exec& exec) const {
    const auto& [m, n, k] = args.sizes;
    parallel_ranges(exec, (n + kUnit - 1) / kUnit, kUnit * (k + 1) * m,
                    [&](std::int64_t first, std::int64_t last) {
                      for (std::int64_t unit = first; unit < last; ++unit) {
                        const std::int64_t begin = unit * kUnit,
                                           end = begin + kUnit < n ? begin + kUnit : n;
                        std::int64_t row = 0;
                        for (; row + kRows <= m; row += kRows) part<kRows>(row, begin, end);
                        if (row < m) rest(row, m - row, begin, end);
                      }
                    });
  }
};

template <class T, class C>
void multiply(const RowProductArgs& args) {
  RowProduct<T, C>{args.product, static_cast<const T*>(args.bias)}.run(args.exec);
}

}  // namespace

void multiply_rows(const RowProductArgs& args) {
  if (args.product.type == DType::kF32) return multiply<float, float>(args);
  if (args.product.c_type == DType::kF32) return multiply<BFloat16, float>(args);
  multiply<BFloat16, BFloat16>(args);
}

}  // namespace trireme::TRIREME_ISA
