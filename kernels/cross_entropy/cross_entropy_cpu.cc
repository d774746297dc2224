#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/cross_entropy/cross_entropy_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr float kInfinity = __builtin_inff(), kLowest = -__FLT_MAX__;
constexpr std::int64_t kWorkPerExp = 4;

/// The column of a token's target, or -1 where it stands in another part or is not counted.
TRIREME_INLINE std::int64_t target_column(const CrossEntropyRows& rows, std::int32_t target) {
  const std::int64_t column = target - rows.vocabulary_first;
  return target >= 0 && column >= 0 && column < rows.valid ? column : -1;
}

template <class L>
float row_maximum(const L* logits, std::int64_t valid) {
  const F32 lowest = F32::broadcast(-kInfinity);
  F32 best[4] = {lowest, lowest, lowest, lowest};
  std::int64_t v = 0;
  for (; v + 4 * F32::kWidth <= valid; v += 4 * F32::kWidth) {
    for (int i = 0; i < 4; ++i) best[i] = max(F32::load(logits + v + i * F32::kWidth), best[i]);
  }
  for_each_vector(v, valid, [&](std::int64_t c, auto lanes) {
    best[0] = max(select(lanes, F32::load(logits + c, lanes), lowest), best[0]);
  });
  return reduce_max(max(max(best[0], best[1]), max(best[2], best[3])));
}

/// In blocks, so that the error stays near that of a short sum for any size of vocabulary.
template <class L>
float row_sum(const L* logits, std::int64_t valid, float maximum) {
  constexpr std::int64_t kBlock = 1024;
  const F32 m = F32::broadcast(maximum);
  F32 total = F32::zero();
  for (std::int64_t first = 0; first < valid; first += kBlock) {
    const std::int64_t end = first + kBlock < valid ? first + kBlock : valid;
    F32 a = F32::zero(), b = F32::zero();
    std::int64_t v = first;
    for (; v + 2 * F32::kWidth <= end; v += 2 * F32::kWidth) {
      a = a + exp(F32::load(logits + v) - m);
      b = b + exp(F32::load(logits + v + F32::kWidth) - m);
    }
    for_each_vector(v, end, [&](std::int64_t c, auto lanes) {
      a = a + select(lanes, exp(F32::load(logits + c, lanes) - m), F32::zero());
    });
    total = total + (a + b);
  }
  return reduce_add(total);
}

template <class L>
void statistics_of(const CrossEntropyStatisticsArgs& args) {
  const CrossEntropyRows& rows = args.rows;
  parallel_ranges(args.exec, rows.tokens, rows.valid * kWorkPerExp,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) {
                      const L* logits = static_cast<const L*>(args.logits) + t * rows.columns;
                      const float maximum = row_maximum(logits, rows.valid);
                      const std::int64_t column = target_column(rows, args.targets[t]);
                      args.maximum[t] = maximum;
                      // Where all is -inf, exponentials are 0; where a NaN is among them, NaN.
                      const float base = maximum == -kInfinity ? kLowest : maximum;
                      args.sum[t] = row_sum(logits, rows.valid, base);
                      args.target_logit[t] = column < 0 ? 0.0F : to_float(logits[column]);
                    }
                  });
}

void statistics(const CrossEntropyStatisticsArgs& args) {
  if (args.logits_type == DType::kF32) return statistics_of<float>(args);
  statistics_of<BFloat16>(args);
}

void merge(const CrossEntropyMergeArgs& args) {
  const std::int64_t stride = 3 * args.tokens;
  const float *sums = args.parts + args.tokens, *target_logits = sums + args.tokens;
  parallel_ranges(
      args.exec, args.tokens, args.part_count * kWorkPerExp,
      [&](std::int64_t begin, std::int64_t end) {
        for_each_vector(begin, end, [&](std::int64_t t, auto lanes) {
          F32 maximum = F32::load(args.parts + t, lanes);
          for (std::int64_t r = 1; r < args.part_count; ++r)
            maximum = max(F32::load(args.parts + r * stride + t, lanes), maximum);
          const F32 base = max(maximum, F32::broadcast(kLowest));
          F32 sum = F32::zero(), target_logit = F32::zero();
          for (std::int64_t r = 0; r < args.part_count; ++r) {
            const F32 weight = exp(F32::load(args.parts + r * stride + t, lanes) - base);
            sum = sum + F32::load(sums + r * stride + t, lanes) * weight;
            target_logit = target_logit + F32::load(target_logits + r * stride + t, lanes);
          }
          maximum.store(args.maximum + t, lanes);
          sum.store(args.sum + t, lanes);
          target_logit.store(args.target_logit + t, lanes);
        });
      });
}

TRIREME_INLINE F32 log_sum_exp(F32 maximum, F32 sum) { return maximum + log(sum); }

void loss(const CrossEntropyLossArgs& args) {
  parallel_ranges(args.exec, args.tokens, 2 * kWorkPerExp,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_each_vector(begin, end, [&](std::int64_t t, auto lanes) {
                      const F32 maximum = F32::load(args.maximum + t, lanes),
                                sum = F32::load(args.sum + t, lanes);
                      const F32 gap = maximum - F32::load(args.target_logit + t, lanes);
                      (gap + log(sum)).store(args.loss + t, lanes);
                      if (args.square == nullptr) return;
                      const F32 lse = log_sum_exp(maximum, sum);
                      (lse * lse).store(args.square + t, lanes);
                    });
                    for (std::int64_t t = begin; t < end; ++t) {
                      if (args.targets[t] >= 0) continue;
                      args.loss[t] = 0;
                      if (args.square != nullptr) args.square[t] = 0;
                    }
                  });
}

template <class L, class T>
void gradient_row(const CrossEntropyGradientArgs& args, std::int64_t t) {
  const CrossEntropyRows& rows = args.rows;
  const L* logits = static_cast<const L*>(args.logits) + t * rows.columns;
  T* dlogits = static_cast<T*>(args.dlogits) + t * rows.columns;
  const std::int64_t column = target_column(rows, args.targets[t]);
  const F32 maximum = F32::broadcast(args.maximum[t]), scale = F32::broadcast(*args.scale);
  F32 inverse = F32::broadcast(1.0F) / F32::broadcast(args.sum[t]);
  if (args.z_loss != 0) {
    const F32 lse = log_sum_exp(maximum, F32::broadcast(args.sum[t]));
    inverse = inverse * (F32::broadcast(1.0F) + F32::broadcast(2 * args.z_loss) * lse);
  }
  // Read before the row is written: both may be the same memory.
  const F32 target_logit = F32::broadcast(column < 0 ? 0.0F : to_float(logits[column]));
  for_each_vector(0, rows.valid, [&](std::int64_t v, auto lanes) {
    const F32 p = exp(F32::load(logits + v, lanes) - maximum) * inverse;
    (p * scale).store(dlogits + v, lanes);
  });
  for_each_vector(rows.valid, rows.columns,
                  [&](std::int64_t v, auto lanes) { F32::zero().store(dlogits + v, lanes); });
  if (column < 0) return;
  const F32 p = exp(target_logit - maximum) * inverse;
  ((p - F32::broadcast(1.0F)) * scale).store(dlogits + column, Tail(1));
}

template <class L, class T>
void gradient_of(const CrossEntropyGradientArgs& args) {
  const std::int64_t columns = args.rows.columns;
  parallel_ranges(args.exec, args.rows.tokens, columns * kWorkPerExp,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) {
                      if (args.targets[t] >= 0) {
                        gradient_row<L, T>(args, t);
                        continue;
                      }
                      T* row = static_cast<T*>(args.dlogits) + t * columns;
                      for_each_vector(0, columns, [&](std::int64_t v, auto lanes) {
                        F32::zero().store(row + v, lanes);
                      });
                    }
                  });
}

void gradient(const CrossEntropyGradientArgs& args) {
  if (args.dlogits_type == DType::kF32) return gradient_of<float, float>(args);
  if (args.logits_type == DType::kF32) return gradient_of<float, BFloat16>(args);
  gradient_of<BFloat16, BFloat16>(args);
}

}  // namespace

const CrossEntropyKernels cross_entropy_cpu = {statistics, merge, loss, gradient};

}  // namespace trireme::TRIREME_ISA
