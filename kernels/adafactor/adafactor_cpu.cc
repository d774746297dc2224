#include "kernels/adafactor/adafactor_grid.h"
#include "kernels/adafactor/adafactor_table.h"
#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kColumns = 256;  // that a thread walks down together

TRIREME_INLINE const float* gradient_row(const AdafactorTensorArgs& tensor, std::int64_t r) {
  return tensor.gradient + (tensor.slots == nullptr ? r : tensor.slots[r]) * tensor.columns;
}

TRIREME_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// body(tensor) for those with lines.
template <class Body>
void for_each_matrix(const AdafactorArgs& args, const Body& body) {
  for (std::int64_t t = 0; t < args.tensor_count; ++t) {
    if (args.tensors[t].variance == nullptr) body(args.tensors[t]);
  }
}

/// body(begin, end) for rows of a matrix.
template <class Body>
void for_rows(const AdafactorArgs& args, const AdafactorTensorArgs& tensor, const Body& body) {
  parallel_ranges(args.exec, tensor.rows, tensor.columns, body);
}

/// body(begin, end) for columns, at most kColumns.
template <class Body>
void for_columns(const AdafactorArgs& args, const AdafactorTensorArgs& tensor, const Body& body) {
  const std::int64_t strips = (tensor.columns + kColumns - 1) / kColumns;
  parallel_ranges(args.exec, strips, tensor.rows * kColumns,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t s = first; s < last; ++s)
                      body(s * kColumns, smaller((s + 1) * kColumns, tensor.columns));
                  });
}

void largest_of(const AdafactorArgs& args, const AdafactorTensorArgs& tensor) {
  for_rows(args, tensor, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* row = gradient_row(tensor, r);
      F32 most = F32::zero();
      for_each_vector(0, tensor.columns, [&](std::int64_t c, auto lanes) {
        most = max_bits(most, abs(F32::load(row + c, lanes)));
      });
      const std::int32_t bits = reduce_max_bits(most);
      if (bits > tensor.row.largest[r]) tensor.row.largest[r] = bits;
    }
  });
  for_columns(args, tensor, [&](std::int64_t begin, std::int64_t end) {
    // Bits of magnitudes are those of floats.
    auto* largest = reinterpret_cast<float*>(tensor.column.largest);
    for (std::int64_t r = 0; r < tensor.rows; ++r) {
      const float* row = gradient_row(tensor, r);
      for_each_vector(begin, end, [&](std::int64_t c, auto lanes) {
        max_bits(F32::load(largest + c, lanes), abs(F32::load(row + c, lanes)))
            .store(largest + c, lanes);
      });
    }
  });
}

/// x^2 on the grid of m.
TRIREME_INLINE F64 on_grid(F64 x, F64 m) { return fma(x, x, m) - m; }

/// The same by the element: loops' ends.
TRIREME_INLINE double on_grid(float x, double m) {
  return __builtin_fma(static_cast<double>(x), static_cast<double>(x), m) - m;
}

/// The sum over x[0, count), exact where its bound is kept.
TRIREME_INLINE double sum_on_grid(const float* x, std::int64_t count, double m) {
  F64 sums[2] = {F64::zero(), F64::zero()};
  const F64 all = F64::broadcast(m);
  std::int64_t i = 0;
  for (; i + 2 * F64::kWidth <= count; i += 2 * F64::kWidth) {
    sums[0] = sums[0] + on_grid(F64::load(x + i), all);
    sums[1] = sums[1] + on_grid(F64::load(x + i + F64::kWidth), all);
  }
  double lanes[F64::kWidth], sum = 0;
  (sums[0] + sums[1]).store(lanes);
  for (int l = 0; l < F64::kWidth; ++l) sum += lanes[l];
  for (; i < count; ++i) sum += on_grid(x[i], m);
  return sum;
}

void sums_of(const AdafactorArgs& args, const AdafactorTensorArgs& tensor) {
  for_rows(args, tensor, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const double m = line_rounder(tensor.row.largest[r], tensor.row.terms);
      tensor.row.sums[r] += sum_on_grid(gradient_row(tensor, r), tensor.columns, m);
    }
  });
  for_columns(args, tensor, [&](std::int64_t begin, std::int64_t end) {
    double m[kColumns];
    double* sums = tensor.column.sums + begin;
    const std::int64_t count = end - begin;
    for (std::int64_t c = 0; c < count; ++c)
      m[c] = line_rounder(tensor.column.largest[begin + c], tensor.column.terms);
    for (std::int64_t r = 0; r < tensor.rows; ++r) {
      const float* row = gradient_row(tensor, r) + begin;
      std::int64_t c = 0;
      for (; c + F64::kWidth <= count; c += F64::kWidth)
        (F64::load(sums + c) + on_grid(F64::load(row + c), F64::load(m + c))).store(sums + c);
      for (; c < count; ++c) sums[c] += on_grid(row[c], m[c]);
    }
  });
}

void lines_of(const AdafactorArgs& args, const AdafactorLinesArgs& lines, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto mean =
        static_cast<float>(args.square_scale * lines.sums[i] / static_cast<double>(lines.terms));
    const float variance = __builtin_fmaf(args.share, mean - lines.variance[i], lines.variance[i]);
    lines.variance[i] = variance;
    lines.sums[i] = static_cast<double>(variance);
  }
}

void largest(const AdafactorArgs& args) {
  for_each_matrix(args, [&](const AdafactorTensorArgs& tensor) { largest_of(args, tensor); });
}

void sums(const AdafactorArgs& args) {
  for_each_matrix(args, [&](const AdafactorTensorArgs& tensor) { sums_of(args, tensor); });
}

void lines(const AdafactorArgs& args) {
  for_each_matrix(args, [&](const AdafactorTensorArgs& tensor) {
    lines_of(args, tensor.row, tensor.rows);
    lines_of(args, tensor.column, tensor.columns);
  });
}

void variances(const AdafactorArgs& args) {
  const F32 share = F32::broadcast(args.share), scale = F32::broadcast(args.gradient_scale);
  for (std::int64_t t = 0; t < args.tensor_count; ++t) {
    const AdafactorTensorArgs& tensor = args.tensors[t];
    if (tensor.variance == nullptr) continue;
    for_each_vector(0, tensor.columns, [&](std::int64_t i, auto lanes) {
      const F32 g = F32::load(tensor.gradient + i, lanes) * scale,
                v = F32::load(tensor.variance + i, lanes);
      fma(share, g * g - v, v).store(tensor.variance + i, lanes);
    });
  }
}

/// u of columns [begin, end) of a row: body(c, u, lanes).
template <class Body>
TRIREME_INLINE void for_step(const AdafactorTensorArgs& tensor, float gradient_scale,
                             std::int64_t r, std::int64_t begin, std::int64_t end,
                             const Body& body) {
  const F32 scale = F32::broadcast(gradient_scale),
            least = F32::broadcast(kAdafactorEps * kAdafactorEps);
  const bool matrix = tensor.variance == nullptr;
  const F32 of_row = F32::broadcast(matrix ? tensor.row.variance[r] / tensor.scalars[0] : 1.0F);
  const float* variances = matrix ? tensor.column.variance : tensor.variance;
  const float* row = gradient_row(tensor, r);
  for_each_vector(begin, end, [&](std::int64_t c, auto lanes) {
    const F32 v = max(least, of_row * F32::load(variances + c, lanes));
    body(c, F32::load(row + c, lanes) * scale / sqrt(v), lanes);
  });
}

/// body(r, from, to): the columns of each row that elements [begin, end) have part in.
template <class Body>
TRIREME_INLINE void for_each_row(const AdafactorTensorArgs& tensor, std::int64_t begin,
                                 std::int64_t end, const Body& body) {
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t r = at / tensor.columns, first = r * tensor.columns;
    const std::int64_t last = smaller(end, first + tensor.columns);
    body(r, at - first, last - first);
    at = last;
  }
}

void update(const AdafactorArgs& args) {
  for (std::int64_t t = 0; t < args.tensor_count; ++t) {
    const AdafactorTensorArgs& tensor = args.tensors[t];
    const F32 keep = F32::broadcast(tensor.scalars[1]), step = F32::broadcast(tensor.scalars[2]);
    const auto update_part = [&](std::int64_t begin, std::int64_t end) {
      for_each_row(tensor, begin, end, [&](std::int64_t r, std::int64_t from, std::int64_t to) {
        float* row = tensor.parameter + r * tensor.columns;
        BFloat16* copy = tensor.copy == nullptr ? nullptr : tensor.copy + r * tensor.columns;
        for_step(tensor, args.gradient_scale, r, from, to, [&](std::int64_t c, F32 u, auto lanes) {
          const F32 p = fnma(step, u, F32::load(row + c, lanes) * keep);
          p.store(row + c, lanes);
          if (copy != nullptr) p.store(copy + c, lanes);
        });
      });
    };
    parallel_ranges(args.exec, tensor.rows * tensor.columns, 4, update_part);
  }
}

double weight_squares(const AdafactorTensorArgs& tensor, std::int64_t begin, std::int64_t end) {
  return sum_on_grid(tensor.parameter + begin, end - begin, rounder_of(kWeightGrid));
}

double step_squares(const AdafactorTensorArgs& tensor, float gradient_scale, std::int64_t begin,
                    std::int64_t end) {
  double sum = 0;
  for_each_row(tensor, begin, end, [&](std::int64_t r, std::int64_t from, std::int64_t to) {
    constexpr std::int64_t kAtOnce = 64;
    for (std::int64_t at = from; at < to; at += kAtOnce) {
      const std::int64_t last = smaller(at + kAtOnce, to);
      float steps[kAtOnce];
      for_step(tensor, gradient_scale, r, at, last,
               [&](std::int64_t c, F32 u, auto lanes) { u.store(steps + (c - at), lanes); });
      sum += sum_on_grid(steps, last - at, rounder_of(kStepGrid));
    }
  });
  return sum;
}

}  // namespace

const AdafactorKernels adafactor_cpu = {largest, sums,           lines,       variances,
                                        update,  weight_squares, step_squares};

}  // namespace trireme::TRIREME_ISA
