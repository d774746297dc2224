#include "kernels/common/parallel.h"
#include "kernels/common/partial_sums.h"
#include "kernels/common/simd.h"
#include "kernels/norm/norm_table.h"
#include "kernels/quantize/quantize_values.h"

namespace trireme::TRIREME_ISA {
namespace {

enum class Kind { kRms, kLayer };

template <class T>
const T* row_of(const void* matrix, std::int64_t row, std::int64_t channels) {
  return matrix == nullptr ? nullptr : static_cast<const T*>(matrix) + row * channels;
}
template <class T>
T* row_of(void* matrix, std::int64_t row, std::int64_t channels) {
  return matrix == nullptr ? nullptr : static_cast<T*>(matrix) + row * channels;
}

/// In double: it is one number for a row, and eps may be far below an f32's resolution of the mean.
float inverse_root(float sum_of_squares, std::int64_t channels, double eps) {
  return static_cast<float>(
      1.0 /
      __builtin_sqrt(static_cast<double>(sum_of_squares) / static_cast<double>(channels) + eps));
}

/// A row once its sums are known.
template <Kind kKind, class T>
struct NormedRow {
  const T *s, *weight, *bias;
  F32 shift, scale, offset;

  /// Columns [begin, end) of y.
  void store(T* to, std::int64_t begin, std::int64_t end) const {
    for_each_vector(begin, end, [&](std::int64_t c, auto lanes) {
      F32 out = (F32::load(s + c, lanes) - shift) * scale * (F32::load(weight + c, lanes) + offset);
      if (kKind == Kind::kLayer && bias != nullptr) out = out + F32::load(bias + c, lanes);
      out.store(to + c - begin, lanes);
    });
  }
};

template <Kind kKind, class T>
NormedRow<kKind, T> normed_row(const NormForwardArgs& args, std::int64_t t) {
  const std::int64_t n = args.channels;
  const T* s = row_of<T>(args.x, t, n);
  if (args.residual != nullptr) {
    const T* residual = row_of<T>(args.residual, t, n);
    T* sum = row_of<T>(args.sum, t, n);
    for_each_vector(0, n, [&](std::int64_t c, auto lanes) {
      (F32::load(s + c, lanes) + F32::load(residual + c, lanes)).store(sum + c, lanes);
    });
    s = sum;  // as it was rounded
  }
  float mean = 0;
  if constexpr (kKind == Kind::kLayer) {
    mean = sum_over(0, n, [&](std::int64_t c, auto lanes) { return F32::load(s + c, lanes); }) /
           static_cast<float>(n);
    args.mean[t] = mean;
  }
  const F32 shift = F32::broadcast(mean);
  const float squares = sum_over(0, n, [&](std::int64_t c, auto lanes) {
    const F32 x = F32::load(s + c, lanes) - shift;
    return x * x;
  });
  const float rstd = inverse_root(squares, n, args.eps);
  args.rstd[t] = rstd;
  return {s,
          static_cast<const T*>(args.weight),
          static_cast<const T*>(args.bias),
          shift,
          F32::broadcast(rstd),
          F32::broadcast(args.weight_offset)};
}

/// Rows [first, last), and the codes of some at a time, or of parts of one. Gives the bits of y's
/// largest magnitude.
template <Kind kKind, class T>
std::int32_t forward_codes(const NormForwardArgs& args, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kColumns = kBlocksAtOnce * RowCodes::kBlock;
  const std::int64_t n = args.channels, width = args.quantized.width;
  const std::int64_t at_once = width < kColumns ? kColumns / width : 1;
  T part[kColumns];
  std::int32_t most = 0;
  const auto encode = [&](std::int64_t row, std::int64_t column, const MadeRows<T>& made) {
    const std::int32_t of_made = encode_blocks(args.quantized, row, column, made);
    most = most < of_made ? of_made : most;
  };
  for (std::int64_t t = first; t < last; t += at_once) {
    const std::int64_t rows = t + at_once < last ? at_once : last - t;
    if (at_once > 1) {
      T* made = args.y == nullptr ? part : row_of<T>(args.y, t, n);
      for (std::int64_t r = 0; r < rows; ++r)
        normed_row<kKind, T>(args, t + r).store(made + r * n, 0, n);
      encode(t, 0, {made, n, rows, n});
      continue;
    }
    const NormedRow<kKind, T> row = normed_row<kKind, T>(args, t);
    for (std::int64_t c = 0; c < n; c += kColumns) {
      const std::int64_t end = c + kColumns < n ? c + kColumns : n;
      T* made = args.y == nullptr ? part : row_of<T>(args.y, t, n) + c;
      row.store(made, c, end);
      encode(t, c, {made, n, 1, end - c});
    }
  }
  return most;
}

template <Kind kKind, class T>
void forward_of(const NormForwardArgs& args) {
  const RowCodes& left = args.quantized;
  parallel_ranges(args.exec, args.tokens, 4 * args.channels,
                  [&](std::int64_t begin, std::int64_t end) {
                    std::int32_t most = 0;
                    if (left.codes != nullptr) most = forward_codes<kKind, T>(args, begin, end);
                    for (std::int64_t t = begin; left.codes == nullptr && t < end; ++t) {
                      T* y = row_of<T>(args.y, t, args.channels);
                      normed_row<kKind, T>(args, t).store(y, 0, args.channels);
                      if (left.amax == nullptr) continue;
                      const std::int32_t of_row = max_of_run(y, 0, args.channels);
                      most = most < of_row ? of_row : most;
                    }
                    if (left.amax != nullptr) join_maximum(left.amax, most);
                  });
}
template <Kind kKind>
void forward(const NormForwardArgs& args) {
  if (args.dtype == DType::kF32) return forward_of<kKind, float>(args);
  forward_of<kKind, BFloat16>(args);
}

/// The sums of a piece; a null pointer where the gradient is not wanted.
struct WeightSums {
  PartialSum weight, bias;
  bool has_weight, has_bias;
};

template <Kind kKind, class T>
void backward_row(const NormBackwardArgs& args, std::int64_t t, const WeightSums& sums) {
  const std::int64_t n = args.channels;
  const T *dy = row_of<T>(args.dy, t, n), *s = row_of<T>(args.s, t, n);
  const T* dresidual = row_of<T>(args.dresidual, t, n);
  const T* weight = static_cast<const T*>(args.weight);
  const T* bias = static_cast<const T*>(args.bias);
  T *dx = row_of<T>(args.dx, t, n), *y = row_of<T>(args.y, t, n);
  const F32 rstd = F32::broadcast(args.rstd[t]);
  const F32 shift = F32::broadcast(kKind == Kind::kLayer ? args.mean[t] : 0.0F);
  const auto normalised = [&](std::int64_t c, auto lanes) {
    return (F32::load(s + c, lanes) - shift) * rstd;
  };
  const F32 offset = F32::broadcast(args.weight_offset);
  const auto gradient = [&](std::int64_t c, auto lanes) {
    return F32::load(dy + c, lanes) * (F32::load(weight + c, lanes) + offset);
  };

  const float count = static_cast<float>(n);
  const F32 mean_gn = F32::broadcast(sum_over(0, n,
                                              [&](std::int64_t c, auto lanes) {
                                                return gradient(c, lanes) * normalised(c, lanes);
                                              }) /
                                     count);
  const F32 mean_g =
      F32::broadcast(kKind == Kind::kLayer ? sum_over(0, n, gradient) / count : 0.0F);
  for_each_vector(0, n, [&](std::int64_t c, auto lanes) {
    const F32 d = F32::load(dy + c, lanes), x = normalised(c, lanes),
              w = F32::load(weight + c, lanes) + offset;
    if (sums.has_weight) sums.weight.add(c, lanes, d * x);
    if (kKind == Kind::kLayer && sums.has_bias) sums.bias.add(c, lanes, d);
    F32 out = fnma(x, mean_gn, d * w);
    if (kKind == Kind::kLayer) out = out - mean_g;
    out = out * rstd;
    if (dresidual != nullptr) out = out + F32::load(dresidual + c, lanes);
    out.store(dx + c, lanes);
    if (y != nullptr) {
      F32 again = x * w;  // as in forward_row
      if (kKind == Kind::kLayer && bias != nullptr) again = again + F32::load(bias + c, lanes);
      again.store(y + c, lanes);
    }
  });
}

template <class T>
std::int32_t max_of_dx(const NormBackwardArgs& args, std::int64_t t) {
  return max_of_run(row_of<T>(args.dx, t, args.channels), 0, args.channels);
}

/// sum = a + b, rounded, or a; copy = of, or that sum. Both may be null.
template <class T>
void add_row(std::int64_t n, T* sum, T* copy, const T* a, const T* b, const T* of) {
  for_each_vector(0, n, [&](std::int64_t c, auto lanes) {
    F32 value = F32::load(a + c, lanes);
    if (b != nullptr) value = value + F32::load(b + c, lanes);
    const F32 other = of == nullptr ? value : F32::load(of + c, lanes);
    if (sum != nullptr) value.store(sum + c, lanes);
    if (copy != nullptr) other.store(copy + c, lanes);
  });
}

template <class T>
void none_forward_of(const NormForwardArgs& args) {
  const std::int64_t n = args.channels;
  parallel_ranges(args.exec, args.tokens, 2 * n, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      add_row<T>(n, row_of<T>(args.sum, t, n), row_of<T>(args.y, t, n), row_of<T>(args.x, t, n),
                 row_of<T>(args.residual, t, n), nullptr);
  });
}
void none_forward(const NormForwardArgs& args) {
  if (args.dtype == DType::kF32) return none_forward_of<float>(args);
  none_forward_of<BFloat16>(args);
}

template <class T>
void none_backward_of(const NormBackwardArgs& args) {
  const std::int64_t n = args.channels;
  parallel_ranges(args.exec, args.tokens, 2 * n, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      add_row<T>(n, row_of<T>(args.dx, t, n), row_of<T>(args.y, t, n), row_of<T>(args.dy, t, n),
                 row_of<T>(args.dresidual, t, n), row_of<T>(args.s, t, n));
  });
}
void none_backward(const NormBackwardArgs& args) {
  if (args.dtype == DType::kF32) return none_backward_of<float>(args);
  none_backward_of<BFloat16>(args);
}

int pieces_of(const NormBackwardArgs& args) {
  return piece_count(args.exec.threads, args.tokens, 8 * args.channels);
}

std::int64_t backward_scratch_floats(const NormBackwardArgs& args) {
  return 2 * pieces_of(args) * PartialSum::floats(args.channels);
}

template <Kind kKind>
void backward(const NormBackwardArgs& args) {
  const int pieces = pieces_of(args);
  float* weight_memory = args.partial_sums;
  float* bias_memory = weight_memory + pieces * PartialSum::floats(args.channels);
  parallel_pieces(pieces, args.tokens, [&](int piece, std::int64_t begin, std::int64_t end) {
    const WeightSums sums{PartialSum::of_piece(weight_memory, piece, args.channels),
                          PartialSum::of_piece(bias_memory, piece, args.channels),
                          args.dweight != nullptr, args.dbias != nullptr};
    std::int32_t most = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      if (args.dtype == DType::kF32) {
        backward_row<kKind, float>(args, t, sums);
      } else {
        backward_row<kKind, BFloat16>(args, t, sums);
      }
      if (sums.has_weight) sums.weight.finish_row(t - begin, t + 1 == end);
      if (sums.has_bias) sums.bias.finish_row(t - begin, t + 1 == end);
      if (args.amax == nullptr) continue;
      const std::int32_t of_row =
          args.dtype == DType::kF32 ? max_of_dx<float>(args, t) : max_of_dx<BFloat16>(args, t);
      most = most < of_row ? of_row : most;
    }
    if (args.amax != nullptr) join_maximum(args.amax, most);
  });
  if (args.dweight != nullptr) add_pieces(args.dweight, weight_memory, pieces, args.channels);
  if (args.dbias != nullptr) add_pieces(args.dbias, bias_memory, pieces, args.channels);
}

}  // namespace

const NormKernels norm_cpu = {forward<Kind::kRms>,    forward<Kind::kLayer>,  none_forward,
                              backward<Kind::kRms>,   backward<Kind::kLayer>, none_backward,
                              backward_scratch_floats};

}  // namespace trireme::TRIREME_ISA
